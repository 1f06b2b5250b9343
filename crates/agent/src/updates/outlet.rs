//! The sending end of a connection for updates. Its task sends what waits in its queue. While nothing does, the thread of a disk sends a small packet
//! itself: otherwise each message of an update, of which there are three in a row, would wait until another thread has woken up.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;
use weft_proto::{
    FrameError,
    updates::{Packet, PartRef, UpdateWriter},
};

/// The sending end of a connection, for its task and for others. Without a connection, it sends nothing.
#[derive(Default)]
pub(crate) struct Outlet {
    state: Mutex<State>,
    /// Something was begun that the task must end, or has failed.
    behind: Notify,
}

#[derive(Default)]
struct State {
    /// While the task has nothing to send.
    writer: Option<UpdateWriter>,
    /// Why the writer is gone: part of a packet may be sent.
    failed: Option<FrameError>,
    is_behind: bool,
    was_used: bool,
}

/// The writer, while others may use it. The connection ends if this is dropped.
pub(crate) struct Lent<'a>(&'a Outlet);

impl Outlet {
    /// Lets others send until the writer is taken back. All that was fed to it is flushed.
    pub(crate) fn lend(&self, writer: UpdateWriter) -> Lent<'_> {
        *self.lock() = State { writer: Some(writer), ..State::default() };
        Lent(self)
    }

    /// Sends a packet if the task has nothing to send and the packet is small. It does not wait. Returns false if it does nothing; then queue the packet.
    /// If the connection fails, it ends, and the packet is lost as what was under way. Only in the context of a runtime.
    pub(crate) fn send(&self, packet: &Packet, parts: &[PartRef<'_>]) -> bool {
        let mut state = self.lock();
        let State { writer: Some(writer), is_behind: false, .. } = &mut *state else { return false };
        // A panic of a connection ends that connection, and not the thread of a disk.
        let sent = catch_unwind(AssertUnwindSafe(|| match writer.put(packet, parts) {
            Ok(true) => Some(writer.flush_now()),
            // What is invalid is queued, so that its error is reported there.
            Ok(false) | Err(_) => None,
        }));
        let flushed = match sent {
            Ok(Some(flushed)) => flushed,
            Ok(None) => return false,
            Err(_) => Err(FrameError::Unexpected("sending on this connection has panicked".into())),
        };
        state.was_used = true;
        match flushed {
            Ok(true) => return true,
            // The task waits until the connection takes the rest.
            Ok(false) => state.is_behind = true,
            // Not tried again: the other end could get it twice.
            Err(error) => {
                state.writer = None;
                state.failed = Some(error);
            }
        }
        self.behind.notify_one();
        true
    }

    /// A poisoned lock is safe to use: what was begun is flushed later.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lent<'_> {
    /// Returns when the writer must be taken back and flushed; sometimes without need.
    pub(crate) async fn falls_behind(&self) {
        self.0.behind.notified().await;
    }

    /// Whether others have sent anything.
    pub(crate) fn was_used(&self) -> bool {
        self.0.lock().was_used
    }

    /// Takes the writer back. Fails as the connection did.
    #[expect(clippy::result_large_err, reason = "it ends a connection")]
    pub(crate) fn take(self) -> Result<UpdateWriter, FrameError> {
        let State { writer, failed, .. } = mem::take(&mut *self.0.lock());
        writer.ok_or_else(|| failed.unwrap_or(FrameError::Closed))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let writer = self.0.lock().writer.take();
        drop(writer);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use async_trait::async_trait;
    use std::{io, sync::Arc, time::Duration};
    use tokio::{
        sync::mpsc,
        time::{sleep, timeout},
    };
    use weft_proto::{
        BoxStream, FrameStream, Listen, Net, Security, UpdatesHello,
        updates::{HeadMax, UpdateReader, accept, dial},
    };
    use weft_types::ClusterId;
    use weft_update::Told;

    /// Bytes that a connection takes before its other end reads any.
    const ROOM: usize = 4096;

    /// One that is dialled is accepted at the other end.
    pub(crate) struct Pipe(pub(crate) mpsc::UnboundedSender<BoxStream>);

    #[async_trait]
    impl Net for Pipe {
        async fn connect(&self, _address: &str) -> io::Result<BoxStream> {
            let (here, there) = tokio::io::duplex(ROOM);
            let _gone = self.0.send(Box::new(there));
            Ok(Box::new(here))
        }

        async fn listen(&self, _address: &str) -> io::Result<Box<dyn Listen>> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// The writer, the other end's reader, and what must stay open beside them.
    async fn connection() -> (UpdateWriter, UpdateReader, (UpdateReader, UpdateWriter)) {
        let (accepted, mut accepting) = mpsc::unbounded_channel();
        let hello = UpdatesHello { cluster: ClusterId(7), from: None, to: "one".into() };
        let (net, security) = (Pipe(accepted), Security::Insecure);
        let dialled = dial(&net, &security, "one:1", &hello, HeadMax::Small);
        let (dialled, (reader, other_writer)) = tokio::join!(dialled, other_end(&mut accepting));
        let (other_reader, writer) = dialled.unwrap();
        (writer, reader, (other_reader, other_writer))
    }

    /// The other end of what was dialled.
    pub(crate) async fn other_end(accepting: &mut mpsc::UnboundedReceiver<BoxStream>) -> (UpdateReader, UpdateWriter) {
        let mut frames = FrameStream::new(accepting.recv().await.unwrap());
        let Ok(weft_proto::Opening::Updates(hello)) = frames.read_opening().await else { panic!("no announcement") };
        accept(frames, &hello, &weft_proto::Peer::Anonymous, HeadMax::Small).await.unwrap()
    }

    fn answer(number: u64) -> Packet {
        Packet::Answer { number, told: Some(Told::Committed) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_packet_is_sent_at_once_while_the_task_has_none() {
        let ((writer, mut reader, _open), outlet) = (connection().await, Outlet::default());
        assert!(!outlet.send(&answer(0), &[]), "there is no connection");
        let lent = outlet.lend(writer);
        assert!(!lent.was_used() && outlet.send(&answer(1), &[]) && lent.was_used());
        assert_eq!(reader.next().await.unwrap(), (answer(1), vec![]));
        let long = vec![1; 64 << 10];
        assert!(!outlet.send(&answer(2), &[PartRef { stream: 0, start: 0, bytes: &long }]), "it would not fit");
        let writer = lent.take().unwrap();
        assert!(!outlet.send(&answer(3), &[]), "the task has the writer");
        drop(outlet.lend(writer));
        assert!(!outlet.send(&answer(4), &[]), "the connection has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn the_task_sends_what_the_connection_does_not_take_at_once() {
        let ((writer, mut reader, _open), outlet) = (connection().await, Arc::new(Outlet::default()));
        let lent = outlet.lend(writer);
        let sent = (0..).take_while(|number| outlet.send(&answer(*number), &[])).count() as u64;
        assert!(sent > 10, "{sent}");
        timeout(Duration::from_secs(1), lent.falls_behind()).await.expect("it is told");
        let mut writer = lent.take().unwrap();
        let reading = async {
            for number in 0..sent {
                assert_eq!(reader.next().await.unwrap(), (answer(number), vec![]), "in order, and each once");
                sleep(Duration::from_millis(1)).await;
            }
        };
        let (flushed, ()) = tokio::join!(writer.flush(), reading);
        flushed.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_ends_the_connection_and_not_the_thread_that_sends() {
        let ((writer, reader, (_near, other_writer)), outlet) = (connection().await, Outlet::default());
        let lent = outlet.lend(writer);
        drop((reader, other_writer));
        assert!(outlet.send(&answer(1), &[]), "part of it may be sent");
        assert!(!outlet.send(&answer(2), &[]), "the connection ends");
        timeout(Duration::from_secs(1), lent.falls_behind()).await.expect("it wakes");
        assert!(matches!(lent.take(), Err(FrameError::Io(_))));

        let ((writer, _reader, _open), outlet) = (connection().await, Outlet::default());
        let lent = outlet.lend(writer);
        // It panics outside of a runtime.
        let sent = std::thread::scope(|scope| scope.spawn(|| outlet.send(&answer(1), &[])).join());
        assert!(sent.unwrap() && !outlet.send(&answer(2), &[]));
        timeout(Duration::from_secs(1), lent.falls_behind()).await.expect("it wakes");
        assert!(matches!(lent.take(), Err(FrameError::Unexpected(_))));
    }
}
