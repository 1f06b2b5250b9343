//! What agents are sent, through a gate that a test opens and closes: what moves data stops in its middle for as long as the test
//! wants, however fast the machine is.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
};

/// Bytes that pass at once.
const CHUNK: usize = 16 << 10;
/// All that comes passes.
const ALL: usize = usize::MAX;

/// The links to all agents of a cluster.
#[derive(Debug)]
pub(crate) struct Links(Arc<Gate>);

/// How many bytes may pass still, to all agents together.
#[derive(Debug)]
struct Gate {
    left: Mutex<usize>,
    more: Condvar,
}

/// Where an agent listens, and where others find it.
pub(crate) struct Addresses {
    pub(crate) listen: String,
    pub(crate) advertise: String,
}

impl Links {
    /// All that comes passes.
    pub(crate) fn open() -> Self {
        Self(Arc::new(Gate { left: Mutex::new(ALL), more: Condvar::new() }))
    }

    /// From now on so many bytes reach agents. The rest waits.
    pub(crate) fn let_pass(&self, bytes: usize) {
        *self.0.left.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
        self.0.more.notify_all();
    }

    /// All that waits passes, and all that comes.
    pub(crate) fn let_all_pass(&self) {
        self.let_pass(ALL);
    }

    /// A gate before one more agent. It stands until the tests have ended.
    pub(crate) fn add(&self) -> Addresses {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let outer = listener.local_addr().expect("it listens");
        // The same port of another address is free: nothing else asks for that address.
        let inner = SocketAddr::from(([127, 0, 0, 2], outer.port()));
        let gate = Arc::clone(&self.0);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A connection to an agent that is gone is closed.
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

/// Moves bytes until one end is gone, and then neither is there.
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
