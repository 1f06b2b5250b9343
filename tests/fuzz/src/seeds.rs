//! The fuzzer's seeds: one of each kind, as weft itself writes it.

use crate::{LINK, SLICES, WIDTH, block_on};
use std::{io::Cursor, sync::Arc, time::Duration};
use weft_plan::{Class, Hold, Input, Job, Plan, Want, WantKind, cut, to_json};
use weft_proto::{
    Direction, FrameStream, Hello, LinkSender, LinkToken, crc32c, encode_task,
    frame::HEADER_LEN,
    updates::{Found, Hop, LoadHead, LoadId, LoadPart, OpenRead, Packet, PartRef, ReadRefusal, Route, packet_stream},
};
use weft_schemes::{Kind, Request, Run, by_name, plan};
use weft_store::{Sidecar, conformance};
use weft_types::{BlockId, ClusterId, Layout, NodeId, PAGE_LEN, Party, PlanId, Result, Span, StripeId, StripeLayout};
use weft_update::{
    Claim, Incarnation, Message, NotRun, Part as UpdatePart, Record, Report, Session, Stamp, Told, UpdateId, Version,
};

const STALL: Duration = Duration::from_secs(10);
const CODE: &str = "rs(3,2)";
/// Of a block that was updated in place. It ends with the checksum of a sector, not with its own.
const SIDECAR_V3: &[u8] = include_bytes!("../../../crates/store/src/sidecar/sidecar-v3.bin");

/// The seeds of the entry with this name.
pub fn seeds(entry: &str) -> Result<Vec<Vec<u8>>> {
    match entry {
        "frames" => Ok(vec![behind(0, link()?), behind(1, link()?)]),
        "hello" => Ok(vec![hello(Direction::Push)?, hello(Direction::Pull)?]),
        "sidecar" => Ok(vec![behind(1, sidecar(5000)?), behind(1, sidecar(0)?), behind(0, SIDECAR_V3.to_vec())]),
        "saved_plan" => plans()?.iter().map(|(plan, job)| to_json(plan, job, &[]).map(String::into_bytes)).collect(),
        "code_spec" => Ok(SPECS.iter().map(|spec| spec.as_bytes().to_vec()).collect()),
        "task" => {
            let tasks = plans()?.into_iter().flat_map(|(plan, _)| [cut(&plan, 0), cut(&plan, 1)]);
            tasks.map(|task| encode_task(&task)).collect()
        }
        "update_record" => Ok(UPDATE_RECORDS.iter().map(|record| record.to_vec()).collect()),
        "updates" => Ok(vec![packets(false)?, packets(true)?]),
        "update_message" => Ok(UPDATE_MESSAGES.iter().map(|message| message.to_vec()).collect()),
        other => Err(weft_types::Error::invalid(format!("there is no entry {other}"))),
    }
}

const SPECS: [&str; 6] = [CODE, " RS ( 10 , 4 ) ", "RS-6-3-1024k", "rs(1,1)", "RS-10-4-4k", "rs(200,55)"];

/// Records of the journal of updates: held, with a delta; opened; images; known; pages.
const UPDATE_RECORDS: [&[u8]; 5] = [
    &[
        1, 3, 1, 100, 2, 0, 0, 2, 1, 0, 0, 1, 1, 4, 0, 1, 1, 0, 1, 1, 1, 0, 0, 4, 1, 0, 5, 7, 1, 0, 3, 4, 1, 0, 0, 9, 10, 11, 12,
        13,
    ],
    &[1, 0, 0, 1, 1, 0, 0, 1],
    &[1, 6, 1, 0, 1, 1, 0, 1, 1, 100, 2, 0, 1, 0, 4, 1, 0, 1],
    &[1, 7, 1, 1, 100, 12, 1, 2, 0, 1, 0],
    &[1, 12, 1, 0, 4, 161, 183, 180, 252, 11, 10, 11, 12, 13],
];

/// Messages of the update protocol: prepare; seal; a report; what a seal decided.
const UPDATE_MESSAGES: [&[u8]; 4] = [
    &[1, 0, 0, 1, 0, 1, 1, 0, 1, 100, 2, 0, 1, 2, 1, 0, 0, 1, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 0, 4, 1, 0, 5],
    &[1, 14, 3],
    &[1, 15, 3, 0, 1, 0, 1, 1, 0, 2, 0, 0],
    &[1, 16, 4, 2, 7, 0, 0, 1, 7, 2, 0, 1, 1, 0xac, 2, 9, 2, 1, 0, 1, 1, 5, 1, 0xac, 2, 9, 1],
];

/// An input: the byte that says whether checksums are corrected, then `bytes`.
fn behind(first: u8, bytes: Vec<u8>) -> Vec<u8> {
    [vec![first], bytes].concat()
}

/// Requests, reads, messages with bytes and with a report, and what travels over a route, in small frames or in large ones.
fn packets(in_small_frames: bool) -> Result<Vec<u8>> {
    let block = |index| BlockId { stripe: StripeId(7), index, copy: 0, generation: 1 };
    let id = UpdateId { session: Session { number: 300, ends_at_ms: 9 }, counter: 2, lead: 0 };
    let range = UpdatePart { stream: 0, number: 5, incarnation: Incarnation::default(), span: Span::new(0, 9) };
    let record = Arc::new(Record { id, term: 3, participants: vec![block(0), block(2)], parts: vec![range] });
    let stamp = Stamp { stream: 0, incarnation: Incarnation::default(), term: 3, watermark: 4 };
    let report = Report { records: [(id, (Arc::clone(&record), Claim::Committed))].into(), ..Report::default() };
    let of = |message| Packet::Message { from: block(0), to: block(2), message };
    let prepare = Message::Prepare { stamp, record, crcs: [(0, 77)].into() };
    let hops = vec![Hop { from: block(0), to: block(2) }, Hop { from: block(2), to: block(3) }];
    let route = Route { hops, in_turn: true, slice_len: 4096 };
    let load = LoadId { from: block(0), id, attempt: 7 };
    let ranges = [(0, 100, 14), (2, 0, 6)].map(|(stream, start, len)| LoadPart { stream, start, len });
    let head = LoadHead { route: route.clone(), parts: ranges.to_vec() };
    let version = Version { term: 3, trimmed: 5, numbers: vec![7, 300] };
    let (term, token, range) = (3, LinkToken([9; 32]), Span::new(100, 114));
    let (since, must_confirm) = (Some(version.clone()), true);
    let read = OpenRead { block: block(0), term, ends_at_ms: 9, token, range, since, must_confirm };
    let packets = [
        Packet::Content { number: 3, found: Found::Served { version, crc: 77 } },
        Packet::Request { number: 1, block: block(0), id, term: 3, token: LinkToken([9; 32]) },
        of(prepare.clone()),
        of(Message::Reported { term: 3, incarnation: Incarnation::default(), report }),
        Packet::Answer { number: 1, told: Some(Told::NotRun(NotRun::Busy)) },
        Packet::Routed { number: 2, block: block(0), id, term: 3, token: LinkToken([9; 32]), route },
        Packet::Slice { load, to: block(2), number: 0, head: Some(head) },
        Packet::Slice { load, to: block(2), number: 1, head: None },
    ];
    let without_parts = [
        Packet::Read { number: 3, read },
        Packet::Content { number: 4, found: Found::Refused(ReadRefusal::Undecided) },
        Packet::Announced { load, from: block(0), to: block(2), message: prepare },
        Packet::Arrived { load, at: block(3) },
        Packet::Stuck { load, at: block(3) },
        Packet::TooLong { from: block(2), to: block(0), id },
    ];
    let parts = [PartRef { stream: 0, start: 100, bytes: b"some new bytes" }, PartRef { stream: 2, start: 0, bytes: b"others" }];
    let failed = |error: weft_proto::FrameError| weft_types::Error::fatal(error.to_string());
    let mut stream = block_on(packet_stream(&packets, &parts)).map_err(failed)?;
    stream.extend(block_on(packet_stream(&without_parts, &[])).map_err(failed)?);
    Ok(behind(1, if in_small_frames { cut_frames(&stream) } else { stream }))
}

/// The same packets in frames of a few bytes. Their checksums are left to the fuzzer's correction.
fn cut_frames(mut stream: &[u8]) -> Vec<u8> {
    const PIECE: usize = 7;
    let mut cut = Vec::new();
    while let Some((header, rest)) = stream.split_at_checked(HEADER_LEN) {
        let len = u32::from_le_bytes([header[12], header[13], header[14], header[15]]) as usize;
        let (payload, others) = rest.split_at(len);
        let pieces = payload.chunks(PIECE);
        let last = pieces.len() - 1;
        for (number, piece) in pieces.enumerate() {
            let mut header = header.to_vec();
            header[5] = u8::from(number < last);
            header[12] = piece.len() as u8;
            header[13..16].fill(0);
            cut.extend(header);
            cut.extend(piece);
        }
        stream = others;
    }
    cut
}

fn link() -> Result<Vec<u8>> {
    let mut sender = LinkSender::new(FrameStream::new(Cursor::new(Vec::new())), LINK, WIDTH, STALL);
    block_on(async {
        for slice in SLICES {
            let rows: Vec<u8> = (0..u64::from(WIDTH) * slice.len()).map(|at| (at * 7 + slice.start) as u8).collect();
            sender.send(slice, &rows).await?;
        }
        sender.end().await
    })?;
    Ok(sender.into_frames().map(|frames| frames.into_inner().into_inner()).unwrap_or_default())
}

fn hello(direction: Direction) -> Result<Vec<u8>> {
    let hello = Hello {
        cluster: ClusterId(7),
        plan: PlanId(1 << 32 | 8),
        link: LINK,
        from: Party::Node(NodeId(3)),
        to: Party::Client(77),
        direction,
        token: LinkToken([9; 32]),
    };
    let mut stream = FrameStream::new(Cursor::new(Vec::new()));
    block_on(stream.send_hello(&hello)).map_err(|error| weft_types::Error::fatal(error.to_string()))?;
    Ok(stream.into_inner().into_inner().split_off(HEADER_LEN))
}

fn sidecar(len: u64) -> Result<Vec<u8>> {
    let pages = conformance::pattern(len).chunks(PAGE_LEN as usize).map(crc32c).collect();
    Sidecar::new(conformance::block(ClusterId(7), 300, len), pages)?.encode()
}

/// A write, and a repair by each scheme.
fn plans() -> Result<Vec<(Plan, Job)>> {
    let code = weft_codes::parse(CODE).map_err(weft_types::Error::invalid)?;
    let layout = Layout { block_len: 64 << 10, cell_len: 16 << 10, alpha: 1 };
    let stripe = StripeLayout { layout, k: code.k() as u32, m: code.m() as u32, data_len: 100_000 };
    let node = |index: u8| Party::Node(NodeId(u32::from(index) + 1));
    let block = |index, generation| BlockId { stripe: StripeId(5), index, copy: 0, generation };
    let store = |party, index| Want { kind: WantKind::Store, party, index, sub_blocks: vec![0], span: stripe.coded_span() };
    let run = |id| Run::new(PlanId(id), 1, Class::Repair, 16 << 10);
    let indices = 0..code.n() as u8;

    let writer = Party::Client(77);
    let inputs = (0..code.k() as u8).map(|index| Input { party: writer, index }).collect();
    let job = Job { inputs, wants: indices.clone().map(|index| store(node(index), index)).collect(), ..Job::default() };
    let stores: Vec<(Party, BlockId)> = indices.map(|index| (node(index), block(index, 1))).collect();
    let request = Request { stores: &stores, ..Request::new(code.as_ref(), stripe, &job, run(1)) };
    let mut plans = vec![(plan(&request, by_name(Kind::Write, "direct")?)?, job)];

    for (number, scheme) in (2..).zip(["conventional", "ppr", "pipeline"]) {
        let hold = |index| Hold { party: node(index), block: block(index, 1), span: stripe.coded_span() };
        let job = Job { holds: (1..4).map(hold).collect(), wants: vec![store(node(9), 0)], ..Job::default() };
        let stores = [(node(9), block(0, 2))];
        let request = Request { stores: &stores, ..Request::new(code.as_ref(), stripe, &job, run(number)) };
        plans.push((plan(&request, by_name(Kind::Repair, scheme)?)?, job));
    }
    Ok(plans)
}
