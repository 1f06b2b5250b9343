//! Figures 6 and 7 of "Repair Pipelining for Erasure-Coded Storage" (Li, Li, Lee, Huang; USENIX ATC 2017), §6.1 and §6.2. The paper's
//! text gives numbers for some of the points only; these are the claims here.

use super::{At, Base, Claim, Figure, How, Links, Mark, Paper, Recovery, Setup, Table, Value};
use crate::{
    bench::repair::Case,
    testbed::{LinkRate, Matrix},
};
use weft_types::{AutoSize, ByteSize, Error};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The slice size of all figures that do not vary it.
const SLICE: u64 = 32 * KIB;
/// The code of all figures that do not vary it; the paper writes (14,10).
const CODE: &str = "rs(10,4)";

/// Two cores can carry links of this rate for all of these nodes.
const LINK: &str = "200mbit";

const DIRECT: &str = "direct";
const CONVENTIONAL: &str = "conventional";
const PPR: &str = "ppr";
const PIPELINE: &str = "pipeline";
const CYCLIC: &str = "cyclic";
const RANDOM_PATH: &str = "pipeline, random path";
const BEST_PATH: &str = "pipeline, best path";
const BY_INDEX: &str = "pipeline, helpers by index";
const IN_TURN: &str = "pipeline, helpers in turn";
const LONG_SLICES: &str = "conventional, slices of 256 KiB";
const PPR_AT_RANDOM: &str = "ppr, helpers at random";

/// The paper's Table 1.
const NORTH_AMERICA: &str = include_str!("north-america.csv");
const ASIA: &str = include_str!("asia.csv");

pub(crate) static PAPER: Paper = Paper {
    name: "ecpipe",
    title: "Repair Pipelining for Erasure-Coded Storage (R. Li, X. Li, P. P. C. Lee, Q. Huang; USENIX ATC 2017)",
    time: "repair time",
    sizes: "blocks",
    links: "1gbit",
    figures: &[SLICE_SIZE, BLOCK_SIZE, PARAMETERS, FRIENDLY_CODES, RECOVERY, EDGE, GEOGRAPHY],
};

const SLICE_SIZE: Figure = Figure {
    name: "6a",
    title: "Repair time and slice size",
    about: "Rebuilds one block of rs(10,4) with slices of different sizes; a direct send, conventional repair and PPR use no slices and \
        appear as lines. The paper uses blocks of 64 MiB; our smallest slice is a page of 4 KiB.",
    differs: "Each slice costs the paper a request, and costs us a frame, so our slices can be smaller before the overhead shows. At \
        the other end, filling the chain takes (k-1)/s of a block's time, which is more for our smaller blocks. PPR takes the time of \
        four blocks here, as its steps require; the numbers of the paper's text give five and a half. A cyclic repair also fills its \
        chains, and none of its helpers' links is ever idle, so it loses more with longer slices.",
    x: "slice size",
    value: Value::Seconds,
    mark: Mark::LogLines,
    schemes: &[DIRECT, CONVENTIONAL, PPR, PIPELINE, CYCLIC],
    base: Base { scheme: DIRECT, x: None },
    link: LINK,
    block_len: 16 * MIB,
    runs: 5,
    nodes: 16,
    racks: 1,
    slow: &[],
    setups: |scale| {
        let mut cases = Vec::new();
        let slices = [4, 8, 16, 32, 64, 128, 256, 1024].map(|kib| kib * KIB);
        for slice in slices.into_iter().filter(|slice| *slice <= scale.block_len) {
            for scheme in [PIPELINE, CYCLIC] {
                cases.push((Some(ByteSize(slice).to_string()), case(scheme, slice, scale.block_len)));
            }
        }
        cases.extend([DIRECT, CONVENTIONAL, PPR].map(|scheme| (None, case(scheme, SLICE, scale.block_len))));
        Ok(vec![Setup { code: CODE.to_owned(), block_len: scale.block_len, links: Links::Even, cases }])
    },
    claims: &[
        claim("pipeline less than conventional, slices of 32 KiB", "90.9 %", PIPELINE, CONVENTIONAL, At::X("32KiB"), How::Less),
        claim("pipeline less than PPR, slices of 32 KiB", "80.4 %", PIPELINE, PPR, At::X("32KiB"), How::Less),
        claim("pipeline less than cyclic, slices of 32 KiB", "10.7 %", PIPELINE, CYCLIC, At::X("32KiB"), How::Less),
        claim("pipeline more than a direct send, slices of 32 KiB", "7.0 %", PIPELINE, DIRECT, At::X("32KiB"), How::More),
    ],
    tables: &[],
};

const BLOCK_SIZE: Figure = Figure {
    name: "6b",
    title: "Repair time and block size",
    about: "Rebuilds one block of rs(10,4) with blocks of different sizes, in slices of 32 KiB. The table shows our largest block, the \
        size that the paper uses by default; the paper's numbers are the most over its block sizes.",
    differs: "The paper's text says that the gain over conventional repair and PPR grows with the block, which has more slices then. \
        Smaller blocks have fewer slices, so the fixed cost of a repair weighs more. It is largest for cyclic, which opens nine chains: \
        it takes 14 to 28 ms longer than a chain, which is a fifth of a repair of 1 MiB, and little of 64 MiB.",
    x: "block size",
    value: Value::Seconds,
    mark: Mark::LogLines,
    schemes: &[CONVENTIONAL, PPR, PIPELINE, CYCLIC],
    base: Base { scheme: CONVENTIONAL, x: None },
    link: LINK,
    block_len: 64 * MIB,
    runs: 2,
    nodes: 16,
    racks: 1,
    slow: &[],
    setups: |scale| {
        let sizes = [64, 16, 4, 1].map(|part| whole_pages(scale.block_len / part));
        Ok(sizes.map(|len| setup(ByteSize(len).to_string(), CODE, len, &[PIPELINE, CYCLIC, CONVENTIONAL, PPR])).into())
    },
    claims: &[
        claim("pipeline less than conventional, largest block", "up to 91.4 %", PIPELINE, CONVENTIONAL, At::Last, How::Less),
        claim("pipeline less than PPR, largest block", "up to 80.9 %", PIPELINE, PPR, At::Last, How::Less),
        claim("pipeline less than cyclic, largest block", "up to 16.7 %", PIPELINE, CYCLIC, At::Last, How::Less),
        claim("pipeline less than cyclic, smallest block", "-", PIPELINE, CYCLIC, At::First, How::Less),
    ],
    tables: &[],
};

const PARAMETERS: Figure = Figure {
    name: "6c",
    title: "Repair time and code parameters",
    about: "Rebuilds one block in slices of 32 KiB. The paper's text names k from 6 to 12; the number of parity blocks does not matter, \
        because a repair reads k blocks.",
    differs: "PPR takes ⌈log2(k+1)⌉ steps of one block each: three with k = 6 and four with k = 12, and here it takes that long; by the \
        numbers of the paper's text, with a chain that takes 1.07 blocks for any k, its PPR takes the time of 4.4 and 6.4 blocks.",
    x: "code",
    value: Value::Seconds,
    mark: Mark::Bars,
    schemes: &[DIRECT, CONVENTIONAL, PPR, PIPELINE, CYCLIC],
    base: Base { scheme: DIRECT, x: None },
    link: LINK,
    block_len: 16 * MIB,
    runs: 3,
    nodes: 18,
    racks: 1,
    slow: &[],
    setups: |scale| {
        let codes = ["rs(6,4)", "rs(8,4)", "rs(10,4)", "rs(12,4)"];
        let schemes = [PIPELINE, CYCLIC, DIRECT, CONVENTIONAL, PPR];
        Ok(codes.map(|code| setup(code.to_owned(), code, scale.block_len, &schemes)).into())
    },
    claims: &[
        claim("pipeline less than conventional, k = 6", "85.1 %", PIPELINE, CONVENTIONAL, At::X("rs(6,4)"), How::Less),
        claim("pipeline less than conventional, k = 12", "92.1 %", PIPELINE, CONVENTIONAL, At::X("rs(12,4)"), How::Less),
        claim("pipeline less than PPR, k = 6", "75.7 %", PIPELINE, PPR, At::X("rs(6,4)"), How::Less),
        claim("pipeline less than PPR, k = 12", "83.3 %", PIPELINE, PPR, At::X("rs(12,4)"), How::Less),
    ],
    tables: &[],
};

const FRIENDLY_CODES: Figure = Figure {
    name: "6d",
    title: "Repair-efficient codes, and schemes that need none",
    about: "Rebuilds one data block in slices of 32 KiB; times are relative to conventional repair with rs(12,4).",
    differs: "The published layout of Rotated Reed-Solomon reads 7.5 blocks for a data block (8.6 on average over all blocks), not \
        nine; the table counts the blocks that it sends.",
    x: "code",
    value: Value::Ratio,
    mark: Mark::Bars,
    schemes: &[CONVENTIONAL, PPR, PIPELINE],
    base: Base { scheme: CONVENTIONAL, x: Some("rs(12,4)") },
    link: LINK,
    block_len: 16 * MIB,
    runs: 3,
    nodes: 18,
    racks: 1,
    slow: &[],
    setups: |scale| {
        let codes = ["rs(12,4)", "rotated-rs(12,4)", "lrc(12,2,2)"];
        Ok(codes.map(|code| setup(code.to_owned(), code, scale.block_len, &[PIPELINE, CONVENTIONAL, PPR])).into())
    },
    claims: &[
        claim("blocks sent, LRC", "6", CONVENTIONAL, "", At::X("lrc(12,2,2)"), How::Blocks),
        claim("blocks sent, Rotated Reed-Solomon", "9 on average", CONVENTIONAL, "", At::X("rotated-rs(12,4)"), How::Blocks),
        claim("pipeline with rs(12,4), to its conventional repair", "about 0.1", PIPELINE, "", At::X("rs(12,4)"), How::Ratio),
    ],
    tables: &[],
};

/// Nodes that hold blocks; the paper's cluster has as many.
const HOLDERS: u32 = 18;
const REQUESTORS_MAX: u32 = 16;
/// With these slices, a link's window of four slices is 1 MiB instead of 128 KiB.
const LONG: u64 = 256 * KIB;

const RECOVERY: Figure = Figure {
    name: "6e",
    title: "Recovery of a whole node on several requestors",
    about: "18 nodes hold stripes of rs(10,4). One of them loses its 16 blocks, which are rebuilt at the same time, in slices of 32 \
        KiB, evenly on 1 to 16 nodes that hold nothing else. The helpers of a stripe are the nodes with the lowest numbers, or the \
        least recently used ones. The paper has 64 blocks. With --quick: 8 blocks, and 1 and 4 requestors.",
    differs: "The first table of points is what the plans allow. With one requestor, its downlink is the bottleneck: it receives 160 \
        blocks by conventional repair, 32 by PPR (two for each stripe), and 16 by a chain. With 16 requestors, it is the uplink of the \
        helper that is among the lowest numbers of 15 of 16 stripes. It sends as much by conventional repair as by a chain, so the \
        links allow a chain no gain, and the paper's 1.63 x has another reason. Choosing helpers in turn could gain more than in the paper, \
        because with 16 stripes instead of 64 the busiest of the lowest numbers has more than its share. The processors of this \
        machine take about half of that: they were idle for 6 % of the time with chains to 16 requestors. Conventional repair on \
        16 requestors takes 1.14 of its bound in slices of 32 KiB and 1.07 in slices of 256 KiB: a requestor adds up ten streams in \
        step, and each has a window of four slices at each end, so one stream on a busy uplink can hold up the nine others. The \
        paper's uses no slices. PPR takes 1.3 to 1.5 of its bound because the links idle while a step waits for the one before. Its \
        helpers stand in the order of their numbers, so a node has about the same place in the tree of most stripes, and 18 blocks go \
        over the busiest link to 16 requestors. With helpers at random, both helpers and places change, and it is 13.",
    x: "requestors",
    value: Value::Rate,
    mark: Mark::Lines,
    schemes: &[CONVENTIONAL, LONG_SLICES, PPR, PPR_AT_RANDOM, BY_INDEX, IN_TURN],
    base: Base { scheme: CONVENTIONAL, x: None },
    link: LINK,
    block_len: 4 * MIB,
    runs: 2,
    nodes: HOLDERS + REQUESTORS_MAX,
    racks: 1,
    slow: &[],
    setups: |scale| {
        let (all, lost): (&[usize], usize) = if scale.quick { (&[1, 4], 8) } else { (&[1, 2, 4, 8, 16], 16) };
        let setup = |requestors: &usize| {
            let by = |label: &str, scheme, select: &str| {
                let case = Case { label: label.to_owned(), select: select.to_owned(), ..case(scheme, SLICE, scale.block_len) };
                (Some(requestors.to_string()), case)
            };
            let long =
                Case { label: LONG_SLICES.to_owned(), select: "index".to_owned(), ..case(CONVENTIONAL, LONG, scale.block_len) };
            let cases = vec![
                by(IN_TURN, PIPELINE, "lru"),
                by(BY_INDEX, PIPELINE, "index"),
                by(PPR, PPR, "index"),
                by(PPR_AT_RANDOM, PPR, "random"),
                by(CONVENTIONAL, CONVENTIONAL, "index"),
                (Some(requestors.to_string()), long),
            ];
            let links = Links::Node(Recovery { holders: HOLDERS, requestors: *requestors, lost });
            Setup { code: CODE.to_owned(), block_len: scale.block_len, links, cases }
        };
        Ok(all.iter().map(setup).collect())
    },
    claims: &[
        claim("rate of pipeline by index to conventional, 16 requestors", "1.63 x", BY_INDEX, CONVENTIONAL, AT_16, How::Times),
        claim("rate in turn more than by index, 16 requestors", "27.9 %", IN_TURN, BY_INDEX, AT_16, How::Faster),
        claim("rate of PPR to conventional, 1 requestor", "-", PPR, CONVENTIONAL, At::X("1"), How::Times),
        claim("rate of PPR to conventional, 16 requestors", "close", PPR, CONVENTIONAL, AT_16, How::Times),
        claim(
            "rate of PPR with helpers at random to conventional, 16 requestors",
            "-",
            PPR_AT_RANDOM,
            CONVENTIONAL,
            AT_16,
            How::Times,
        ),
        claim(
            "rate of pipeline by index to conventional with long slices, 16 requestors",
            "-",
            BY_INDEX,
            LONG_SLICES,
            AT_16,
            How::Times,
        ),
    ],
    tables: &[
        Table::BusiestLink(&[CONVENTIONAL, LONG_SLICES, PPR, PPR_AT_RANDOM, BY_INDEX, IN_TURN]),
        Table::OverBound(&[CONVENTIONAL, LONG_SLICES, PPR, PPR_AT_RANDOM, BY_INDEX, IN_TURN]),
    ],
};
const AT_16: At = At::X("16");

const EDGE: Figure = Figure {
    name: "6f",
    title: "Repair time and the bandwidth of the links to the requestor",
    about: "The requestor is at the edge: each link from a helper to it carries only a fraction of the others' rate. Rebuilds one block \
        of rs(10,4) in slices of 32 KiB.",
    differs: "The link bound also exceeds the paper's number: its cyclic repair gained less than its links allow.",
    x: "rate of each link to the requestor",
    value: Value::Seconds,
    mark: Mark::Lines,
    schemes: &[PIPELINE, CYCLIC],
    base: Base { scheme: CYCLIC, x: None },
    link: LINK,
    block_len: 16 * MIB,
    runs: 5,
    nodes: 16,
    racks: 1,
    slow: &[],
    setups: |scale| {
        let edge = |part: f64| {
            let rate = LinkRate::new(scale.link.bits_per_s() * part).map_err(Error::invalid)?;
            let setup = setup(rate.to_string(), CODE, scale.block_len, &[CYCLIC, PIPELINE]);
            Ok(Setup { links: Links::Edge(rate), ..setup })
        };
        [0.1, 0.2, 0.4, 0.6, 0.8, 1.0].into_iter().map(edge).collect()
    },
    claims: &[claim(
        "cyclic less than pipeline, links to the requestor at a tenth of the others",
        "80.1 %",
        CYCLIC,
        PIPELINE,
        At::First,
        How::Less,
    )],
    tables: &[],
};

const IN_NORTH_AMERICA: &[&str] = &["California", "Canada", "Ohio", "Oregon"];
const IN_ASIA: &[&str] = &["Mumbai", "Seoul", "Singapore", "Tokyo"];

const GEOGRAPHY: Figure = Figure {
    name: "7",
    title: "Repair across regions, by the requestor's region",
    about: "The blocks of rs(12,4) lie in four regions, whose links have the rates of the paper's Table 1 (the rates are not scaled, \
        the blocks are). Each region has five nodes, one of which is the requestor. Best paths use links that were measured just \
        before. With --quick: only North America.",
    differs: "The paper's bandwidths changed during its measurements; ours keep the rates of its table. We save less against PPR, \
        because our PPR comes as close to its link bound as a path does, while the paper's takes longer than its steps (see figure 6c). \
        A block has half as many slices as the paper's, because the shortest slice is a page.",
    x: "region of the requestor (North America, then Asia)",
    value: Value::Seconds,
    mark: Mark::Bars,
    schemes: &[PPR, RANDOM_PATH, BEST_PATH],
    base: Base { scheme: PPR, x: None },
    link: LINK,
    block_len: 4 * MIB,
    runs: 4,
    nodes: 20,
    racks: 4,
    slow: &[],
    setups: |scale| {
        let mut setups = Vec::new();
        let tables = [NORTH_AMERICA, ASIA];
        for table in tables.into_iter().take(if scale.quick { 1 } else { 2 }) {
            let matrix = Matrix::parse(table)?;
            for (number, name) in matrix.names.iter().enumerate() {
                // As many slices per block as in the paper, as far as pages allow.
                let slice = whole_pages(scale.block_len / (64 * MIB / SLICE));
                let by = |label: &str, scheme, select: &str| {
                    let case =
                        Case { label: label.to_owned(), select: select.to_owned(), ..case(scheme, slice, scale.block_len) };
                    (Some(name.clone()), case)
                };
                let cases = vec![by(BEST_PATH, PIPELINE, "best"), by(RANDOM_PATH, PIPELINE, "random"), by(PPR, PPR, "random")];
                let links = Links::Places(matrix.clone(), number);
                setups.push(Setup { code: "rs(12,4)".to_owned(), block_len: scale.block_len, links, cases });
            }
        }
        Ok(setups)
    },
    claims: &[
        claim(
            "random path less than PPR, North America",
            "62.7-78.0 %",
            RANDOM_PATH,
            PPR,
            At::Range(IN_NORTH_AMERICA),
            How::Less,
        ),
        claim("random path less than PPR, Asia", "66.6-87.1 %", RANDOM_PATH, PPR, At::Range(IN_ASIA), How::Less),
        claim(
            "best path less than random path, North America",
            "7.3-45.4 %",
            BEST_PATH,
            RANDOM_PATH,
            At::Range(IN_NORTH_AMERICA),
            How::Less,
        ),
        claim("best path less than random path, Asia", "14.5-45.0 %", BEST_PATH, RANDOM_PATH, At::Range(IN_ASIA), How::Less),
    ],
    tables: &[],
};

const fn claim(text: &'static str, paper: &'static str, of: &'static str, than: &'static str, at: At, how: How) -> Claim {
    Claim { text, paper, of, than, at, how }
}

/// One place of the axis on equal links, with the default slices.
fn setup(x: String, code: &str, block_len: u64, schemes: &[&str]) -> Setup {
    let cases = schemes.iter().map(|scheme| (Some(x.clone()), case(scheme, SLICE, block_len))).collect();
    Setup { code: code.to_owned(), block_len, links: Links::Even, cases }
}

/// PPR runs block by block, as in its paper; a chain uses one path through the helpers.
fn case(scheme: &str, slice_len: u64, block_len: u64) -> Case {
    let slice_len = if scheme == PPR { block_len } else { slice_len.min(block_len) };
    let slice_len = AutoSize::Bytes(ByteSize(slice_len));
    Case { label: scheme.to_owned(), scheme: scheme.to_owned(), slice_len, select: String::new(), paths: 1 }
}

/// Not less than one; codes with two sub-blocks fit too.
fn whole_pages(bytes: u64) -> u64 {
    const PAGES: u64 = 4 * KIB;
    (bytes / PAGES * PAGES).max(PAGES)
}
