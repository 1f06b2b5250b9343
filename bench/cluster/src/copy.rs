//! The copier that puts and gets are compared with: a process that only copies parts of a file over loopback connections, with one
//! thread at each end of each connection.

use crate::Result;
use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Arc,
    thread,
};

/// The argument that makes this binary the copier.
pub const COMMAND: &str = "copy";

/// Equal to weft's slices of reads and writes.
const SLICE_BYTES: usize = 256 << 10;

/// What the other end does with the bytes.
enum Sink {
    Nothing,
    /// Writes them to a separate file for each connection, and fsyncs it.
    Files,
    /// Writes them to their place in one file, which is fsynced at the end.
    OneFile(Arc<File>),
}

/// The process itself: `copy FILE PARTS CONNECTIONS nothing|files|one-file DIR`. Each connection carries one of the PARTS parts
/// of FILE; with more connections than parts, some parts are carried twice.
pub fn run(words: &[String]) -> Result<()> {
    let [file, parts, connections, sink, dir] = words else { return Err("usage: copy FILE PARTS CONNECTIONS SINK DIR".into()) };
    let (parts, connections): (u64, u64) = (parts.parse()?, connections.parse()?);
    let (file, dir) = (Arc::new(File::open(file)?), Path::new(dir));
    let part_len = file.metadata()?.len().div_ceil(parts);
    let sink = match sink.as_str() {
        "nothing" => Sink::Nothing,
        "files" => Sink::Files,
        "one-file" => Sink::OneFile(Arc::new(File::create(dir.join("copy"))?)),
        other => return Err(format!("no such sink: {other}").into()),
    };
    let mut ends = Vec::new();
    for connection in 0..connections {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let sender = TcpStream::connect(listener.local_addr()?)?;
        sender.set_nodelay(true)?;
        let (receiver, _) = listener.accept()?;
        let offset = connection % parts * part_len;
        let (into, at) = match &sink {
            Sink::Nothing => (None, 0),
            Sink::Files => (Some(Arc::new(File::create(dir.join(format!("copy-{connection}")))?)), 0),
            Sink::OneFile(file) => (Some(Arc::clone(file)), offset),
        };
        let file = Arc::clone(&file);
        ends.push(thread::spawn(move || send(&file, offset, part_len, sender)));
        let fsync = matches!(sink, Sink::Files);
        ends.push(thread::spawn(move || receive(receiver, into.as_deref(), at, fsync)));
    }
    for end in ends {
        end.join().map_err(|_| "a copying thread has panicked")??;
    }
    match sink {
        Sink::OneFile(file) => Ok(file.sync_all()?),
        Sink::Nothing | Sink::Files => Ok(()),
    }
}

fn send(file: &File, offset: u64, len: u64, mut to: TcpStream) -> Result<()> {
    let mut slice = vec![0; SLICE_BYTES];
    let mut sent = 0;
    while sent < len {
        let room = slice.len().min((len - sent) as usize);
        let read = file.read_at(&mut slice[..room], offset + sent)?;
        if read == 0 {
            break;
        }
        to.write_all(&slice[..read])?;
        sent += read as u64;
    }
    Ok(())
}

fn receive(mut from: TcpStream, into: Option<&File>, mut at: u64, fsync: bool) -> Result<()> {
    let mut slice = vec![0; SLICE_BYTES];
    loop {
        let mut filled = 0;
        while filled < slice.len() {
            match from.read(&mut slice[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        if filled == 0 {
            break;
        }
        if let Some(file) = into {
            file.write_all_at(&slice[..filled], at)?;
            at += filled as u64;
        }
    }
    match into {
        Some(file) if fsync => Ok(file.sync_all()?),
        _ => Ok(()),
    }
}
