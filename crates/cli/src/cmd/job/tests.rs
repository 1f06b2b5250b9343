use super::*;

#[test]
fn a_conversion_that_takes_days_gets_a_warning() {
    let amount = |bytes| Some(api::JobAmount { blocks: 1, bytes });
    let job = |state: &str, bytes_per_s, total, done| api::Job {
        id: 3,
        state: state.to_owned(),
        total: amount(total),
        done: amount(done),
        convert: Some(api::ConvertRequest { bytes_per_s, ..api::ConvertRequest::default() }),
        ..api::Job::default()
    };
    let says = |job: &api::Job| long(job).unwrap_or_default();
    assert_eq!(says(&job("running", 1, 86_400 * 10, 0)), "job 3 converts 843.8 KiB at 1 B/s: that can take about 10 days");
    let quick = [job("running", 1, 1 << 40, (1 << 40) - 9), job("running", 0, 1 << 40, 0), job("done", 1, 1 << 40, 0)];
    assert!(quick.iter().all(|job| long(job).is_none()));
}

#[test]
fn what_was_given_up_and_what_remains_have_their_own_keys() {
    let amount = |blocks| Some(api::JobAmount { blocks, bytes: 10 * blocks });
    let gave_up = api::LeftBlock { object: "b/k".into(), reason: "n3 is down".into(), index: 2, ..api::LeftBlock::default() };
    let repair = api::Job {
        state: "running".into(),
        total: amount(9),
        done: amount(4),
        left: amount(2),
        left_blocks: vec![gave_up],
        repair_node: Some(api::RepairNodeRequest { node: 3, ..api::RepairNodeRequest::default() }),
        ..api::Job::default()
    };
    let limited = api::Job { limit: "50MiB/s".into(), limited_ms: Some(600_000), ..repair.clone() };
    let text = Report::new(limited.clone(), &[]).text();
    assert!(text.contains("held back by the limit on repair, 50MiB/s; 10 min or more remaining ("), "{text}");
    let text = Report::new(api::Job { remaining_ms: Some(1_200_000), ..limited }, &[]).text();
    assert!(
        text.contains("about 20 min remaining\nheld back by the limit on repair, 50MiB/s (") && !text.contains("10 min"),
        "{text}"
    );
    let json = |job: api::Job| serde_json::to_value(Report::new(job, &[])).unwrap();
    let shown = json(repair.clone());
    assert_eq!(shown["gave_up"], serde_json::json!({"blocks": 2, "bytes": 20}));
    assert_eq!(shown["remaining"], serde_json::json!({"blocks": 3, "bytes": 30}));
    assert_eq!((&shown["gave_up_blocks"][0]["object"], &shown["gave_up_blocks"][0]["block"]), (&"b/k".into(), &2.into()));
    assert!(!shown.to_string().contains("left"), "{shown}");
    let uncounted = api::Job { total: amount(0), ..repair.clone() };
    assert!(json(uncounted.clone())["remaining"].is_null(), "it has not been counted");
    assert_eq!(json(api::Job { state: "done".into(), ..uncounted })["remaining"]["blocks"], 0);
    let convert = json(api::Job { convert: Some(api::ConvertRequest::default()), repair_node: None, ..repair });
    assert_eq!(convert["remaining"], serde_json::json!({"objects": 3, "bytes": 30}));
    assert_eq!(convert["gave_up_objects"][0]["object"], "b/k");
}

#[test]
fn the_remaining_time_what_was_moved_and_what_is_at_risk_are_shown() {
    let running = api::Job {
        state: "running".into(),
        remaining_ms: Some(600_000),
        moved_bytes: Some(4 << 20),
        stripes_at_risk: Some(2),
        repair_node: Some(api::RepairNodeRequest::default()),
        ..api::Job::default()
    };
    let lines = "about 10 min remaining\n4.0 MiB sent over links\n2 stripes of the cluster would not survive a further loss";
    let text = Report::new(running.clone(), &[]).text();
    assert!(text.contains(lines), "{text}");
    let json = |job: api::Job| serde_json::to_value(Report::new(job, &[])).unwrap();
    let shown = json(running.clone());
    assert_eq!([&shown["remaining_ms"], &shown["moved_bytes"], &shown["stripes_at_risk"]], [600_000, 4 << 20, 2]);
    assert!(shown["eta_error"].is_null(), "{shown}");

    let (eta_error_at_quarter, eta_error_at_half) = (Some(130), Some(-30));
    let done = api::Job {
        state: "done".into(),
        done: Some(api::JobAmount { blocks: 1, bytes: 1 }),
        remaining_ms: None,
        stripes_at_risk: None,
        eta_error_at_quarter,
        eta_error_at_half,
        ..running
    };
    let text = Report::new(done.clone(), &[]).text();
    assert!(
        text.contains("estimates of the remaining time: 13% too long at a quarter of the work, 3% too short at half of it"),
        "{text}"
    );
    assert!(!text.contains("remaining\n") && !text.contains("survive"), "{text}");
    assert_eq!(json(done)["eta_error"], serde_json::json!({"quarter": 0.13, "half": -0.03}));
}
