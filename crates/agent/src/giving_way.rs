//! The network of an agent that does a client's work for a class that gives way: what it sends passes the agent's uplink.

use crate::line::Passage;
use async_trait::async_trait;
use std::{io, sync::Arc};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, copy, duplex, split};
use weft_engine::classes::FRAME_BYTES_MAX;
use weft_proto::{BoxStream, Listen, Net};

/// A network whose outgoing connections pass an uplink.
pub(crate) struct GivingWay {
    pub(crate) net: Arc<dyn Net>,
    pub(crate) uplink: Passage,
}

#[async_trait]
impl Net for GivingWay {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        let stream = self.net.connect(address).await?;
        let (ours, theirs) = duplex(FRAME_BYTES_MAX as usize);
        tokio::spawn(pump(stream, theirs, self.uplink.clone()));
        Ok(Box::new(ours))
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>> {
        self.net.listen(address).await
    }
}

/// Until either side closes, which then closes the other.
async fn pump(stream: BoxStream, client: DuplexStream, uplink: Passage) {
    let (mut from_peer, mut to_peer) = split(stream);
    let (mut from_client, mut to_client) = split(client);
    let up = async {
        let mut frame = vec![0; FRAME_BYTES_MAX as usize];
        loop {
            let len = from_client.read(&mut frame).await?;
            if len == 0 {
                return to_peer.shutdown().await;
            }
            uplink.pass(len as u64).await;
            to_peer.write_all(&frame[..len]).await?;
        }
    };
    let down = copy(&mut from_peer, &mut to_client);
    // If one way breaks, the other end sees a connection that closed too early.
    tokio::select! {
        biased;
        _ended = up => {}
        _ended = down => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;
    use tokio::time::{Duration, Instant};
    use weft_plan::Class;
    use weft_plan::Precedence;
    use weft_proto::MemoryNet;
    use weft_types::ByteSize;

    #[tokio::test(start_paused = true)]
    async fn what_is_sent_passes_the_uplink_and_what_comes_does_not() {
        let uplink = Passage::new(&Line::new(Some(ByteSize(1 << 20))), Precedence::of(Class::Repair));
        let net = GivingWay { net: Arc::new(MemoryNet::default()), uplink };
        let listener = net.listen("127.0.0.1:0").await.unwrap();
        let mut client = net.connect(&listener.local_address().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let (sent, mut came) = (vec![7; 1 << 20], vec![0; 1 << 20]);
        for (up, seconds) in [(true, 0.7..1.1), (false, 0.0..0.1)] {
            let begin = Instant::now();
            let (from, to) = if up { (&mut client, &mut server) } else { (&mut server, &mut client) };
            let (wrote, read) = tokio::join!(from.write_all(&sent), to.read_exact(&mut came));
            assert!(wrote.is_ok() && read.is_ok() && came == sent);
            assert!(seconds.contains(&begin.elapsed().as_secs_f64()), "{:?}, up: {up}", begin.elapsed());
        }
        client.write_all(b"last").await.unwrap();
        drop(client);
        let mut last = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(1), server.read_to_end(&mut last)).await;
        assert!(closed.is_ok() && last == b"last", "{closed:?}, {last:?}");
    }
}
