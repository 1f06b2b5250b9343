//! Figures of "Mist: Efficient Dissemination of Erasure-Coded Data in Data Centers" (J. Li, B. Li, B. Li), §7. The paper's text gives
//! numbers for some of the points only; these are the claims here.

use super::{At, Base, Claim, Figure, How, Links, Mark, Paper, Setup, Shows, Table, Value, Writing};
use crate::bench::{put, repair::Case};
use weft_types::{AutoSize, ByteSize, Result};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Slices of a block in all figures that do not vary them: the paper sends 256 MB in slices of 1 MB.
const SLICES: u64 = 128;

const DIRECT: &str = "direct";
const MIST: &str = "mist";
const RS_DIRECT: &str = "RS, direct";
const RS_MIST: &str = "RS, mist";
const MSR_DIRECT: &str = "MSR, direct";
const MSR_MIST: &str = "MSR, mist";
const LRC_DIRECT: &str = "LRC, direct";
const LRC_MIST: &str = "LRC, mist";
const HSRC_DIRECT: &str = "HSRC, direct";
const HSRC_MIST: &str = "HSRC, mist";
const RS: &str = "RS";
const LRC: &str = "LRC";
const MSR_6: &str = "MSR, d = 6";
const MSR_8: &str = "MSR, d = 8";
const MSR_10: &str = "MSR, d = 10";

const TWO_DIRECT: &str = "2 copies, direct";
const TWO_MIST: &str = "2 copies, mist";
const THREE_DIRECT: &str = "3 copies, direct";
const THREE_MIST: &str = "3 copies, mist";
const BY_SPEED: &str = "mist, by speed";
const AT_RANDOM: &str = "mist, at random";
const SLOW_LAST: &str = "mist, slow last";

pub(crate) static PAPER: Paper = Paper {
    name: "mist",
    title: "Mist: Efficient Dissemination of Erasure-Coded Data in Data Centers (J. Li, B. Li, B. Li)",
    time: "put time",
    sizes: "objects",
    links: "those of EC2",
    figures: &[RECEIVERS, DATA_SIZE, PARTS, SLICE_SIZE, TRAFFIC, REPLICAS, WRITERS, SPEEDS],
};

const RECEIVERS: Figure = Figure {
    name: "9",
    title: "Put time and the number of nodes that get a block",
    about: "Writes an object of one stripe from outside of the nodes, with (n,4) codes: Reed-Solomon, MSR with d = 6, LRC with two \
        groups, and HSRC, where such codes exist. The paper writes 256 MB.",
    differs: "In the paper, encoding at the writer limits the direct put, not the writer's link, and its 96.3 % is the most of all \
        codes: mist saves more there than the n/k that the links allow. The paper says that HSRC takes less time because it needs the \
        least arithmetic. Here arithmetic limits nothing, and the links allow all codes the same, because no receiver sends more than \
        the writer: HSRC saves 1 to 5 %, less than single runs differ. With 10 nodes it moves least, two blocks for each parity. With 20 \
        and 25 nodes it moves most: a receiver that knows all data of RS sends a further one a single block, while a parity of HSRC needs \
        at least two. The fastest run of every point takes at most 1.08 of its bound, and some runs up to a fifth longer, each time at \
        other points: MSR with 20 nodes took 1.02 of its bound in its fastest run and 1.25 in its slowest. So the plans are not the \
        reason, and something else on the machine is.",
    x: "nodes",
    value: Value::Seconds,
    mark: Mark::LogLines,
    schemes: &[RS_DIRECT, RS_MIST, MSR_DIRECT, MSR_MIST, LRC_DIRECT, LRC_MIST, HSRC_DIRECT, HSRC_MIST],
    base: Base { scheme: RS_DIRECT, x: None },
    link: "50mbit",
    block_len: 8 * MIB,
    runs: 2,
    nodes: 25,
    racks: 1,
    slow: &[],
    setups: |scale| {
        let counts: &[usize] = if scale.quick { &[5, 25] } else { &[5, 8, 10, 15, 20, 25] };
        let mut setups = Vec::new();
        for n in counts {
            let code = |from: usize, code: String, labels| (*n >= from).then_some((code, labels));
            let codes = [
                code(5, format!("rs(4,{})", n - 4), [RS_DIRECT, RS_MIST]),
                code(7, format!("msr(4,{},d=6)", n - 4), [MSR_DIRECT, MSR_MIST]),
                code(7, format!("lrc(4,2,{})", n.saturating_sub(6)), [LRC_DIRECT, LRC_MIST]),
                code(9, format!("hsrc({n},4)"), [HSRC_DIRECT, HSRC_MIST]),
            ];
            for (code, labels) in codes.into_iter().flatten() {
                setups.push(written(&n.to_string(), &code, scale.block_len, labels)?);
            }
        }
        Ok(setups)
    },
    claims: &[
        claim("mist less than direct, RS, at most", "96.3 %, best of all codes", RS_MIST, RS_DIRECT, At::Most, How::Less),
        claim("mist less than direct, MSR, at most", "-", MSR_MIST, MSR_DIRECT, At::Most, How::Less),
        claim("mist less than direct, LRC, at most", "-", LRC_MIST, LRC_DIRECT, At::Most, How::Less),
        claim("mist to its link bound, RS, all numbers of nodes", "very close to 1", RS_MIST, "", At::All, How::OverBound),
        claim("mist to its link bound, MSR, all numbers of nodes", "very close to 1", MSR_MIST, "", At::All, How::OverBound),
        claim("mist to its link bound, LRC, all numbers of nodes", "very close to 1", LRC_MIST, "", At::All, How::OverBound),
        claim("mist to its link bound, HSRC, all numbers of nodes", "-", HSRC_MIST, "", At::All, How::OverBound),
        claim(
            "HSRC less than RS, both mist, all numbers of nodes",
            "less, except few nodes",
            HSRC_MIST,
            RS_MIST,
            At::All,
            How::Less,
        ),
    ],
    tables: &[
        Table::OverBound(&[RS_DIRECT, RS_MIST, MSR_MIST, LRC_MIST, HSRC_MIST]),
        Table::Topologies(&[RS_MIST, MSR_MIST, LRC_MIST, HSRC_MIST]),
    ],
};

const DATA_SIZE: Figure = Figure {
    name: "10",
    title: "Put time and data size",
    about: "Writes an object of one stripe from outside of the nodes, with (8,4) codes: Reed-Solomon, MSR with d = 6, LRC with two \
        groups.",
    differs: "The fixed cost of a put weighs more for less data.",
    x: "data size, relative to the largest",
    value: Value::Seconds,
    mark: Mark::Lines,
    schemes: &[RS_DIRECT, RS_MIST, MSR_DIRECT, MSR_MIST, LRC_DIRECT, LRC_MIST],
    base: Base { scheme: RS_MIST, x: Some("1/8") },
    link: "100mbit",
    block_len: 32 * MIB,
    runs: 2,
    nodes: 8,
    racks: 1,
    slow: &[],
    setups: |scale| {
        let mut setups = Vec::new();
        for (x, part) in [("1/8", 8), ("1/4", 4), ("1/2", 2), ("1", 1)] {
            let codes = [
                ("rs(4,4)", [RS_DIRECT, RS_MIST]),
                ("msr(4,4,d=6)", [MSR_DIRECT, MSR_MIST]),
                ("lrc(4,2,2)", [LRC_DIRECT, LRC_MIST]),
            ];
            for (code, labels) in codes {
                setups.push(written(x, code, (scale.block_len / part).max(1), labels)?);
            }
        }
        Ok(setups)
    },
    claims: &[
        claim("time for 8 times the data, RS by mist", "linear: 8", RS_MIST, "", At::X("1"), How::Ratio),
        claim("mist less than direct, RS, most of the data", "-", RS_MIST, RS_DIRECT, At::X("1"), How::Less),
    ],
    tables: &[],
};

const PARTS: Figure = Figure {
    name: "11",
    title: "Time of each part of a put",
    about: "Writes an object of one stripe from outside of the nodes with rs(4,7), by mist. Shows the time that the writer and the \
        busiest node of each level spend on reading, arithmetic and storing, the time of the data on the writer's link, and the time of \
        the put. The paper measures each part on its own, with memory in place of the network.",
    differs: "Here the writer computes all checksums, also those of blocks that nodes compute. The link's time is not measured but \
        computed from its configured rate.",
    x: "part",
    value: Value::Seconds,
    mark: Mark::Bars,
    schemes: &[RS_MIST],
    base: Base { scheme: RS_MIST, x: Some("link") },
    link: "100mbit",
    block_len: 32 * MIB,
    runs: 3,
    nodes: 11,
    racks: 1,
    slow: &[],
    setups: |scale| {
        let mut setup = written("put", "rs(4,7)", scale.block_len, [RS_DIRECT, RS_MIST])?;
        setup.cases.retain(|(_, case)| case.scheme == MIST);
        setup.links = Links::Written(Writing { size: scale.block_len, writers: 0, replicas: 1, shows: Shows::Parts });
        Ok(vec![setup])
    },
    claims: &[
        claim("the writer, relative to its link", "much less", RS_MIST, "", At::X("writer"), How::Ratio),
        claim("a node of level 1, relative to the link", "much less", RS_MIST, "", At::X("level 1"), How::Ratio),
        claim("a node of level 2, relative to the link", "more than of level 1", RS_MIST, "", At::X("level 2"), How::Ratio),
        claim("the put, relative to the link", "a little more", RS_MIST, "", At::X("put"), How::Ratio),
    ],
    tables: &[],
};

const SLICE_SIZE: Figure = Figure {
    name: "12",
    title: "Put time and slice size",
    about: "Writes an object of one stripe from outside of the nodes, with (11,4) codes: Reed-Solomon, MSR with d = 9, LRC with two \
        groups. What the paper calls a stripe is a slice of all k data blocks together; it writes 256 MB.",
    differs: "Less data means fewer slices, and large slices weigh more: each level of nodes waits for the first slice.",
    x: "a slice of all k data blocks",
    value: Value::Seconds,
    mark: Mark::Lines,
    schemes: &[RS_DIRECT, RS_MIST, MSR_DIRECT, MSR_MIST, LRC_DIRECT, LRC_MIST],
    base: Base { scheme: RS_MIST, x: Some("256KiB") },
    link: "100mbit",
    block_len: 32 * MIB,
    runs: 2,
    nodes: 11,
    racks: 1,
    slow: &[],
    setups: |scale| {
        let mut setups = Vec::new();
        let codes =
            [("rs(4,7)", [RS_DIRECT, RS_MIST]), ("msr(4,7,d=9)", [MSR_DIRECT, MSR_MIST]), ("lrc(4,2,5)", [LRC_DIRECT, LRC_MIST])];
        for (code, labels) in codes {
            for kib in [64, 128, 256, 512, 1024] {
                let mut setup = written(&ByteSize(kib * KIB).to_string(), code, scale.block_len, labels)?;
                for (_, case) in &mut setup.cases {
                    case.slice_len = AutoSize::Bytes(ByteSize(kib * KIB / 4));
                }
                setups.push(setup);
            }
        }
        Ok(setups)
    },
    claims: &[
        claim("RS by mist, relative to slices of 256 KiB", "about 1", RS_MIST, "", At::Range(SLICE_SIZES), How::Ratio),
        claim("mist less than direct, RS, slices of 256 KiB", "-", RS_MIST, RS_DIRECT, At::X("256KiB"), How::Less),
    ],
    tables: &[],
};
const SLICE_SIZES: &[&str] = &["64KiB", "128KiB", "256KiB", "512KiB", "1MiB"];

const TRAFFIC: Figure = Figure {
    name: "13",
    title: "Traffic of a put over all links",
    about: "Writes an object of one stripe from outside of the nodes, with (12,4) codes: Reed-Solomon, LRC with two groups, and MSR \
        with d = 6, 8 and 10. Counts what the agents received through their sockets. The paper writes 256 MB.",
    differs: "The paper's text gives no number for d = 6. Its topology reserves x = 2 blocks of each receiver's capacity for repairs of \
        MSR codes: then with d = 6 it moves 24 blocks, as many as with RS. Our plan takes the x that moves least, here x = 3: a single \
        receiver decodes, it computes the block of the next one too, and 21 blocks are moved. With d = 8 and 10 no x moves less than 2 \
        does.",
    x: "scheme",
    value: Value::Moved,
    mark: Mark::Bars,
    schemes: &[RS, LRC, MSR_6, MSR_8, MSR_10],
    base: Base { scheme: RS, x: Some(DIRECT) },
    link: "100mbit",
    block_len: 16 * MIB,
    runs: 1,
    nodes: 12,
    racks: 1,
    slow: &[],
    setups: |scale| {
        // Blocks of whole pages for all numbers of sub-blocks: 1, 3, 5 and 7.
        const PART: u64 = 4 * 105 * 4 * KIB;
        let size = (scale.block_len / PART).max(1) * PART;
        let codes =
            [("rs(4,8)", RS), ("lrc(4,2,6)", LRC), ("msr(4,8,d=6)", MSR_6), ("msr(4,8,d=8)", MSR_8), ("msr(4,8,d=10)", MSR_10)];
        let setup = |(code, label): (&str, &'static str)| {
            let mut setup = written("", code, size, [label, label])?;
            for (x, case) in &mut setup.cases {
                *x = Some(case.scheme.clone());
            }
            Ok(setup)
        };
        codes.into_iter().map(setup).collect()
    },
    claims: &[
        claim("RS by mist, relative to direct", "almost 2", RS, "", At::X(MIST), How::Traffic),
        claim("LRC less than RS, both mist", "4.2 %", LRC, RS, At::X(MIST), How::LessTraffic),
        claim("MSR with d = 6 less than RS, both mist", "-", MSR_6, RS, At::X(MIST), How::LessTraffic),
        claim("MSR with d = 8 less than RS, both mist", "15 %", MSR_8, RS, At::X(MIST), How::LessTraffic),
        claim("MSR with d = 10 less than RS, both mist", "21.4 %", MSR_10, RS, At::X(MIST), How::LessTraffic),
    ],
    tables: &[],
};

const REPLICAS: Figure = Figure {
    name: "14",
    title: "Put time with copies of the data blocks beside the coded ones",
    about: "Writes an object of one stripe from outside of the nodes with (n,3) Reed-Solomon codes and two or three copies of each data \
        block, including the coded one. n does not count the nodes with further copies.",
    differs: "The paper's text gives no time to which its 2 s relate; our direct put grows with the amount of data to send.",
    x: "n",
    value: Value::Seconds,
    mark: Mark::Bars,
    schemes: &[TWO_DIRECT, TWO_MIST, THREE_DIRECT, THREE_MIST],
    base: Base { scheme: TWO_MIST, x: None },
    link: "100mbit",
    block_len: 24 * MIB,
    runs: 2,
    nodes: 16,
    racks: 1,
    slow: &[],
    setups: |scale| {
        let counts: &[usize] = if scale.quick { &[4, 10] } else { &[4, 6, 8, 10] };
        let mut setups = Vec::new();
        for n in counts {
            for (replicas, labels) in [(2, [TWO_DIRECT, TWO_MIST]), (3, [THREE_DIRECT, THREE_MIST])] {
                let mut setup = written(&n.to_string(), &format!("rs(3,{})", n - 3), scale.block_len, labels)?;
                setup.links = Links::Written(Writing { size: scale.block_len, writers: 0, replicas, shows: Shows::Median });
                setups.push(setup);
            }
        }
        Ok(setups)
    },
    claims: &[
        claim("mist, three copies: more than two", "almost nothing", THREE_MIST, TWO_MIST, At::X("10"), How::More),
        claim("direct, three copies: more than two", "about 2 s", THREE_DIRECT, TWO_DIRECT, At::X("10"), How::More),
        claim("mist less than direct, three copies", "-", THREE_MIST, THREE_DIRECT, At::X("10"), How::Less),
    ],
    tables: &[],
};

const WRITERS: Figure = Figure {
    name: "15",
    title: "Time of concurrent puts",
    about: "Writers on eight nodes, one on each, write one object of one stripe each with rs(4,4) to all of them, at the same time; the \
        time is that of all. The other codes of the paper are not measured.",
    differs: "In the paper mist is still faster with eight writers. By its text encoding at the writer limits the direct put (at figure \
        9); here the writer's link does. Mist sends more than a direct put over all links together; once all links are full, a direct \
        put is faster. There is no link bound for several plans at once.",
    x: "writers",
    value: Value::Seconds,
    mark: Mark::Bars,
    schemes: &[RS_DIRECT, RS_MIST],
    base: Base { scheme: RS_MIST, x: Some("1") },
    link: "100mbit",
    block_len: 8 * MIB,
    runs: 3,
    nodes: 8,
    racks: 1,
    slow: &[],
    setups: |scale| {
        let counts: &[u32] = if scale.quick { &[1, 8] } else { &[1, 2, 4, 6, 8] };
        let setup = |writers: &u32| {
            let setup = written(&writers.to_string(), "rs(4,4)", scale.block_len, [RS_DIRECT, RS_MIST])?;
            Ok(Setup {
                links: Links::Written(Writing { size: scale.block_len, writers: *writers, replicas: 1, shows: Shows::Median }),
                ..setup
            })
        };
        counts.iter().map(setup).collect()
    },
    claims: &[
        claim("time of 8 writers by mist, relative to one", "almost linear", RS_MIST, "", At::X("8"), How::Ratio),
        claim("mist less than direct, 1 writer", "-", RS_MIST, RS_DIRECT, At::X("1"), How::Less),
        claim("mist less than direct, 8 writers", "still less", RS_MIST, RS_DIRECT, At::X("8"), How::Less),
    ],
    tables: &[],
};

const SPEEDS: Figure = Figure {
    name: "16",
    title: "Put time with slow processors",
    about: "Writes an object of one stripe repeatedly from outside of ten nodes, with rs(8,2) and by mist; two of the nodes code only \
        20 MiB per second. Blocks are assigned by speed, so faster nodes get the blocks that need more work; slow last, in the order of \
        the nodes' names, where the two slow nodes are the last and compute the parities; or at random. The paper has two slow machines \
        out of ten, compares the first two ways, and repeats each 100 times.",
    differs: "The paper's text gives seconds saved, and no time to which they relate; its machines and links are others, so only the \
        sign and the steadier times can be compared. Slow last is its baseline: without its rule, the two slow machines come after the \
        eight fast ones. At random is ours: such an order puts at least one slow node at a parity in 17 of 45 puts (38 %), and both in \
        one of 45.",
    x: "share of puts that take at most this time",
    value: Value::Seconds,
    mark: Mark::Lines,
    schemes: &[BY_SPEED, SLOW_LAST, AT_RANDOM],
    base: Base { scheme: BY_SPEED, x: None },
    link: "200mbit",
    block_len: 32 * MIB,
    runs: 30,
    nodes: 10,
    racks: 1,
    slow: &["node-09:coding=20MiB", "node-10:coding=20MiB"],
    setups: |scale| {
        let mut setup = written("", "rs(8,2)", scale.block_len, [BY_SPEED, AT_RANDOM])?;
        let of = |label: &str, select: &str| {
            let by_mist = |(x, case): &(Option<String>, Case)| {
                (x.clone(), Case { label: label.into(), scheme: MIST.into(), select: select.into(), ..case.clone() })
            };
            setup.cases.first().map(by_mist)
        };
        let cases = [of(BY_SPEED, ""), of(AT_RANDOM, put::AT_RANDOM), of(SLOW_LAST, put::BY_NAME)];
        setup.cases = cases.into_iter().flatten().collect();
        setup.links = Links::Written(Writing { size: scale.block_len, writers: 0, replicas: 1, shows: Shows::Spread });
        Ok(vec![setup])
    },
    claims: &[
        claim("by speed less than slow last, at all shares of puts", "0.88-1.34 s", BY_SPEED, SLOW_LAST, At::All, How::Saves),
        claim("by speed less than slow last, the slowest", "-", BY_SPEED, SLOW_LAST, At::X("100 %"), How::Less),
        claim("by speed less than slow last, half of them", "-", BY_SPEED, SLOW_LAST, At::X("50 %"), How::Less),
        claim("by speed less than at random, the slowest", "-", BY_SPEED, AT_RANDOM, At::X("100 %"), How::Less),
        claim("by speed less than at random, half of them", "-", BY_SPEED, AT_RANDOM, At::X("50 %"), How::Less),
    ],
    tables: &[],
};

const fn claim(text: &'static str, paper: &'static str, of: &'static str, than: &'static str, at: At, how: How) -> Claim {
    Claim { text, paper, of, than, at, how }
}

/// One place of the axis: data of `size`, written from outside; the first label is the direct put, the second mist.
fn written(x: &str, code: &str, size: u64, labels: [&str; 2]) -> Result<Setup> {
    const PAGE: u64 = 4 * KIB;
    let block_len = put::block_len(code, ByteSize(size))?;
    let slice_len = AutoSize::Bytes(ByteSize((block_len / SLICES / PAGE).max(1) * PAGE));
    let case = |(scheme, label): (&str, &str)| {
        let (label, scheme) = (label.to_owned(), scheme.to_owned());
        (Some(x.to_owned()), Case { label, scheme, slice_len, select: String::new(), paths: 1 })
    };
    let cases = [DIRECT, MIST].into_iter().zip(labels).map(case).collect();
    Ok(Setup {
        code: code.to_owned(),
        block_len,
        links: Links::Written(Writing { size, writers: 0, replicas: 1, shows: Shows::Median }),
        cases,
    })
}
