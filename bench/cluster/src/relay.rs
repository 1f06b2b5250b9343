//! The plain relay that a hop is compared with: a process with one thread that reads from one socket and writes to another.

use crate::{Result, Run, cpu};
use std::{
    env,
    io::{BufRead as _, BufReader, ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The argument that makes this binary the relay.
pub const COMMAND: &str = "relay";

/// A relay that is silent for this long has failed.
const STALL: Duration = Duration::from_secs(20);

/// The process itself: `relay SLICE_LEN`. It prints its port, reads from the first connection and writes to the second.
pub fn run(words: &[String]) -> Result<()> {
    let [slice_len] = words else { return Err("usage: relay SLICE_LEN".into()) };
    let mut slice = vec![0; slice_len.parse()?];
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    let (mut from, _) = listener.accept()?;
    let (mut to, _) = listener.accept()?;
    to.set_nodelay(true)?;
    loop {
        match from.read_exact(&mut slice) {
            Ok(()) => to.write_all(&slice)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends `len` bytes through a relay, in slices, and returns its CPU seconds.
pub fn cpu_seconds(run: &Run, slice_len: usize, len: usize) -> Result<f64> {
    let before = cpu::of_children()?;
    let mut relay = Command::new(env::current_exe()?).args([COMMAND, &slice_len.to_string()]).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(relay.stdout.take().ok_or("the relay has no output")?).read_line(&mut line)?;
    let port: u16 = line.trim().parse()?;
    let mut into = connect(port)?;
    let mut out_of = connect(port)?;
    let slices = len / slice_len;
    let sending = thread::spawn(move || -> Result<()> {
        let slice = vec![0x5a; slice_len];
        (0..slices).try_for_each(|_| into.write_all(&slice))?;
        Ok(into.shutdown(Shutdown::Write)?)
    });
    let mut slice = vec![0; slice_len];
    let received = (0..slices).try_for_each(|_| out_of.read_exact(&mut slice));
    sending.join().map_err(|_| "sending has panicked")??;
    received?;
    let late = Instant::now() > run.deadline;
    let status = relay.wait()?;
    if late || !status.success() {
        return Err(format!("the relay took too long, or failed: {status}").into());
    }
    Ok(cpu::of_children()? - before)
}

fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    Ok(stream)
}
