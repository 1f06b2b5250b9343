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
