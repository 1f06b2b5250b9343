use super::*;
use weft_proto::to_status;

fn progress(bytes: u64) -> Result<ConvertEvent, Status> {
    Ok(ConvertEvent { event: Some(convert_event::Event::Progress(ConvertProgress { bytes })) })
}

/// With a report each second of progress out of 1000.
async fn each_second(far: impl Fn(u64) -> u64) -> (Duration, Unfinished) {
    let (begin, silence) = (Instant::now(), Duration::from_secs(5));
    let events = futures::stream::iter(0..1200).then(async |second| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        progress(far(second))
    });
    let end = followed(std::pin::pin!(events), 1000, silence, |_| {}).await;
    (begin.elapsed(), end.unwrap_err())
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_silent_or_makes_no_progress_is_given_up() {
    let (after, why) = each_second(|second| second.min(10)).await;
    assert!(matches!(&why, Unfinished::Broken(why) if why.contains("no progress for 60s")), "{why:?}");
    assert_eq!(after.as_secs(), 11 + 60);
    let (after, why) = each_second(|second| second / 59).await;
    assert!(matches!(&why, Unfinished::Broken(why) if why.contains("disconnected")), "{why:?}");
    assert_eq!(after.as_secs(), 1200);
    // The coordinator may have to rebuild lost blocks before it answers that the stripe has ended.
    let (after, why) = each_second(|second| if second < 10 { second } else { 1000 }).await;
    assert!(matches!(&why, Unfinished::Broken(why) if why.contains("no progress for 600s")), "{why:?}");
    assert_eq!(after.as_secs(), 11 + 600);
    for status in [Status::unavailable("broken pipe"), Status::from_error("stream closed".into()), Status::unknown("h2")] {
        let broken = followed(futures::stream::iter([Err(status)]), 1000, Duration::from_secs(5), |_| {}).await;
        assert!(matches!(&broken, Err(Unfinished::Broken(_))), "a lost node must not count as busy: {broken:?}");
    }
    let busy = futures::stream::iter([Err(to_status(&Error::retry("busy")))]);
    let busy = followed(busy, 1000, Duration::from_secs(5), |_| {}).await;
    assert!(matches!(&busy, Err(Unfinished::Failed(error)) if *error == Error::retry("busy")), "{busy:?}");
    let silent = followed(futures::stream::pending(), 1000, Duration::from_secs(5), |_| {}).await;
    assert!(matches!(&silent, Err(Unfinished::Broken(why)) if why.contains("sent no report")), "{silent:?}");
}
