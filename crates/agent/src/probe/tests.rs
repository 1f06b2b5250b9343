use super::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    time::sleep,
};

/// A link behind a token bucket that passes `burst` bytes at once and then `bytes_per_s`, in packets.
async fn shape(mut from: DuplexStream, mut to: DuplexStream, bytes_per_s: f64, burst: usize) {
    let (begin, mut sent, mut packet) = (Instant::now(), 0, [0; 1448]);
    while let Ok(len @ 1..) = from.read(&mut packet).await {
        sent += len;
        let due = Duration::from_secs_f64(sent.saturating_sub(burst) as f64 / bytes_per_s);
        sleep(due.saturating_sub(begin.elapsed())).await;
        if to.write_all(&packet[..len]).await.is_err() {
            return;
        }
    }
}

async fn probe(bytes_per_s: f64, burst: usize, pause: Duration) -> (Option<Measured>, Duration) {
    let (near, queue) = tokio::io::duplex(64 << 10);
    let (end, far) = tokio::io::duplex(4 << 10);
    let shaping = tokio::spawn(shape(queue, end, bytes_per_s, burst));
    let sending = tokio::spawn(async move {
        let mut sender = LinkSender::new(FrameStream::new(near), LINK, 1, SLOWEST);
        let zeros = vec![0; LARGE as usize];
        for slice in slices() {
            sleep(pause).await;
            if sender.send(slice, &zeros[..slice.len() as usize]).await.is_err() {
                return;
            }
        }
        drop(sender.end().await);
    });
    let begin = Instant::now();
    let (came, _) = watch(FrameStream::new(Box::new(far))).await.unwrap();
    let took = begin.elapsed();
    shaping.abort();
    sending.abort();
    (measure(&came), took)
}

#[tokio::test(start_paused = true)]
async fn fast_and_slow_links_are_measured_in_time_despite_token_bucket_bursts() {
    for burst in [0, 128 << 10, 256 << 10] {
        for (mbit, tolerance) in [(1.0, 0.2), (10.0, 0.1), (30.0, 0.05), (200.0, 0.05)] {
            let bytes_per_s = mbit * 125e3;
            let (measured, took) = probe(bytes_per_s, burst, Duration::ZERO).await;
            let found = measured.unwrap().bytes_per_s;
            assert!((found / bytes_per_s - 1.0).abs() < tolerance, "{mbit} Mbit/s, burst {burst}: {found}");
            assert!(took <= TIME_MAX + Duration::from_millis(1), "{mbit} Mbit/s took {took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_very_slow_link_takes_a_bounded_time_and_a_dead_one_is_not_measured() {
    let (measured, took) = probe(10e3, 0, Duration::ZERO).await;
    let found = measured.unwrap().bytes_per_s;
    assert!((found / 10e3 - 1.0).abs() < 0.2, "{found}");
    assert!(took <= SLOWEST + Duration::from_millis(1), "{took:?}");
    assert_eq!(probe(10.0, 0, Duration::ZERO).await.0, None);
}

#[tokio::test(start_paused = true)]
async fn overhead_per_slice_is_separated_from_the_time_per_byte() {
    let (measured, _) = probe(1e9, 0, Duration::from_millis(1)).await;
    let Measured { bytes_per_s, slice_overhead_s } = measured.unwrap();
    // Six large slices of 1 ms each, plus 0.26 ms for their bytes; the timer has a resolution of 1 ms.
    assert!((1e8..3e8).contains(&bytes_per_s), "{bytes_per_s}");
    let overhead_s = slice_overhead_s.unwrap();
    assert!((0.5e-3..1.5e-3).contains(&overhead_s), "{overhead_s}");
}

#[test]
fn a_probe_is_bounded_in_bytes() {
    let bytes: u64 = slices().map(Span::len).sum();
    assert_eq!(bytes, 2304 << 10);
    assert_eq!(slices().last().map(|slice| slice.end), Some(bytes), "the slices do not cover all bytes");
}
