//! The encoding of tasks.

use weft_plan::{Class, Sink, Source, Task, TaskBlock, TaskLane, TaskLink, TaskStage};
use weft_proto::task::{TASK_BYTES_MAX, decode_task, encode_task};
use weft_types::{BlockId, Layout, NodeId, Party, PlanId, Seq, Span, StripeId};

fn task() -> Task {
    let block = |index| BlockId { stripe: StripeId(5), index, copy: 0, generation: 1 };
    let matrix = weft_gf_matrix(1, 2, &[(0, 0, 1), (0, 1, 7)]);
    let stage = TaskStage {
        stage: 1,
        sources: vec![Source::Link(0), Source::Block { index: 3, sub_blocks: vec![0] }],
        matrix,
        sinks: vec![Sink::Link(1)],
    };
    let link = |link, sends| TaskLink { lane: 0, link, width: 1, peer: Party::Node(NodeId(2)), sends };
    Task {
        plan: PlanId(1 << 32 | 8),
        epoch: 1,
        class: Class::Repair,
        priority: 1,
        party: Party::Node(NodeId(1)),
        layout: Layout { block_len: 1 << 20, cell_len: 1 << 20, alpha: 1 },
        seq: Seq::default(),
        slice_len: 32768,
        lanes: vec![TaskLane { lane: 0, span: Span::new(0, 1 << 20), first: 0, step: 1, window: 4, stages: vec![stage] }],
        blocks: vec![TaskBlock { id: block(3), len: 1 << 20 }],
        stores: vec![],
        links: vec![link(0, false), link(1, true)],
    }
}

fn weft_gf_matrix(rows: usize, cols: usize, terms: &[(usize, usize, u8)]) -> weft_gf::Factored {
    weft_gf::SparseMatrix::new(rows, cols, terms.iter().copied()).unwrap().into()
}

#[test]
fn a_task_reads_back() {
    let bytes = encode_task(&task()).unwrap();
    assert_eq!(bytes[0], 3, "the version comes first");
    assert_eq!(decode_task(&bytes).unwrap(), task());
}

#[test]
fn bytes_that_are_not_a_task_are_refused() {
    let bytes = encode_task(&task()).unwrap();
    for len in 0..bytes.len() {
        assert!(decode_task(&bytes[..len]).is_err(), "{len} bytes");
    }
    assert!(decode_task(&[&bytes[..], &[0]].concat()).unwrap_err().message.contains("follow"));
    let mut other = bytes.clone();
    other[0] = 2;
    assert!(decode_task(&other).unwrap_err().message.contains("version 2"));
    assert!(decode_task(&vec![3; TASK_BYTES_MAX + 1]).is_err());
}

#[test]
fn a_matrix_that_does_not_fit_is_refused() {
    let with = |change: &dyn Fn(&mut TaskStage)| {
        let mut task = task();
        change(&mut task.lanes[0].stages[0]);
        decode_task(&encode_task(&task).unwrap())
    };
    assert!(with(&|_| ()).is_ok());
    assert!(with(&|stage| stage.matrix = weft_gf_matrix(1, 3, &[(0, 0, 1)])).is_err());
    assert!(with(&|stage| stage.matrix = weft_gf_matrix(2, 2, &[(0, 0, 1)])).is_err());
    assert!(with(&|stage| stage.sources[0] = Source::Link(9)).is_err());
    let wide = with(&|stage| {
        stage.sinks = vec![Sink::Check { width: u32::MAX }];
        stage.matrix = weft_gf_matrix(u32::MAX as usize, 2, &[]);
    });
    assert!(wide.unwrap_err().message.contains("at most"));
}
