//! A gate in front of the agents that a test opens and closes: transfers stop in their middle for as long as the test needs, on any
//! machine.

use crate::harness::wait_for;
use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
};

/// Bytes that pass at once.
const CHUNK: usize = 16 << 10;
/// Everything passes.
const ALL: usize = usize::MAX;

/// The links to all agents of a cluster.
#[derive(Debug)]
pub(crate) struct Links(Arc<Gate>);

/// How many more bytes may pass, to all agents together.
#[derive(Debug)]
struct Gate {
    left: Mutex<usize>,
    more: Condvar,
}

/// Where an agent listens, and the address that it advertises.
pub(crate) struct Addresses {
    pub(crate) listen: String,
    pub(crate) advertise: String,
}

impl Links {
    /// Everything passes.
    pub(crate) fn open() -> Self {
        Self(Arc::new(Gate { left: Mutex::new(ALL), more: Condvar::new() }))
    }

    /// From now on only this many bytes reach agents. The rest waits.
    pub(crate) fn let_pass(&self, bytes: usize) {
        *self.0.left.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
        self.0.more.notify_all();
    }

    /// Lets some bytes pass, and some more, until what is waited for is there; then nothing. However much comes first to other agents, what
    /// the test waits for comes too.
    pub(crate) fn let_pass_until(&self, what: &str, some: usize, mut is_there: impl FnMut() -> bool) {
        wait_for(what, || {
            let is_there = is_there();
            self.let_pass(if is_there { 0 } else { some });
            is_there
        });
    }

    /// Everything passes, including what waits.
    pub(crate) fn let_all_pass(&self) {
        self.let_pass(ALL);
    }

    /// Puts a gate in front of one more agent, until the tests end.
    pub(crate) fn add(&self) -> Addresses {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let outer = listener.local_addr().expect("it listens");
        // The same port of another address is free, because nothing else uses that address.
        let inner = SocketAddr::from(([127, 0, 0, 2], outer.port()));
        let gate = Arc::clone(&self.0);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A connection to an agent that is down is closed.
                let Ok(agent) = TcpStream::connect(inner) else { continue };
                let [from, to] = [&stream, &agent].map(|it| it.try_clone().expect("a second handle"));
                let gate = Arc::clone(&gate);
                thread::spawn(move || pump(&from, &to, |len| gate.pass(len)));
                thread::spawn(move || pump(&agent, &stream, |_| {}));
            }
        });
        Addresses { listen: inner.to_string(), advertise: outer.to_string() }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.let_all_pass();
    }
}

impl Gate {
    fn pass(&self, len: usize) {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = self.more.wait_while(left, |left| *left < len).unwrap_or_else(PoisonError::into_inner);
        if *left != ALL {
            *left -= len;
        }
    }
}

/// Moves bytes until one end closes, then closes the other.
fn pump(mut from: &TcpStream, mut to: &TcpStream, pass: impl Fn(usize)) {
    let mut chunk = [0; CHUNK];
    while let Ok(len @ 1..) = from.read(&mut chunk) {
        pass(len);
        if to.write_all(&chunk[..len]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        let _gone = end.shutdown(Shutdown::Both);
    }
}
