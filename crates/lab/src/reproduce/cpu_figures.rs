//! Figures 5 to 12 of "CPU: Cross-Rack-Aware Pipelining Update for Erasure-Coded Storage" (Wu, Du, Gong, Wu), §6, measured. The paper's text gives
//! numbers for some of the points only; these are the claims here.

use super::{
    At, Base, Claim, Figure, How, Links, Mark, Paper, Setup, Table, Updating, Value,
    cpu::{CODE, NAME, TITLE, regions},
};
use crate::bench::repair::Case;
use weft_types::{AutoSize, ByteSize, Result};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The slice of all figures that do not vary it.
const SLICE: u64 = 64 * KIB;
const LINK: &str = "200mbit";

const STAR: &str = "star";
const CONCURRENT: &str = "concurrent star";
const TREE: &str = "tree";
const PIPELINE: &str = "pipeline";
const AUTO: &str = "auto";
const ONE_SLICE: &str = "pipeline, one slice";
const TABU: &str = "path by tabu search";
const RANDOM: &str = "random path";
const WORST: &str = "worst path";
const QUARTER: &str = "pipeline, a quarter of the chunk";
const HALF: &str = "pipeline, half of the chunk";

pub(crate) static PAPER: Paper = Paper {
    name: NAME,
    title: TITLE,
    time: "update time",
    sizes: "updates",
    links: "those of EC2",
    figures: &[REGIONS, ONE_CHUNK, PATHS, SLICES, RACKS, SIZES, IN_A_STRIPE, ACROSS_STRIPES],
};

const REGIONS: Figure = Figure {
    name: "5",
    title: "Update time across regions",
    about: "Updates part of a block of rs(9,3), with three blocks in each of four regions, whose links have the rates of the paper's Table 2 (the rates \
        are not scaled), from each region. The client is in the data node's region. The paper updates chunks of 32 MB.",
    differs: "The paper's bandwidths changed during its measurements, and Table 2 is one of them. Our tree is the one that ends the soonest over the \
        measured links; the paper does not say in which order its tree takes the regions, so it can be slower. Our update is durable on all four nodes \
        before it is acknowledged.",
    x: "region",
    value: Value::Seconds,
    mark: Mark::Bars,
    schemes: &[STAR, CONCURRENT, TREE, PIPELINE, AUTO],
    base: Base { scheme: STAR, x: None },
    link: LINK,
    block_len: 4 * MIB,
    runs: 5,
    nodes: 12,
    racks: 4,
    slow: &[],
    setups: |scale| {
        in_regions(
            scale.block_len,
            &[(STAR, STAR), (TREE, TREE), (PIPELINE, PIPELINE), (CONCURRENT, "concurrent-star"), (AUTO, AUTO)],
        )
    },
    claims: &[
        claim("pipeline less than star", "50.1-66.7 %", PIPELINE, STAR, At::All, How::Less),
        claim("pipeline less than tree", "32.2-65.6 %", PIPELINE, TREE, At::All, How::Less),
        claim("pipeline less than concurrent star", "-", PIPELINE, CONCURRENT, At::All, How::Less),
        claim("auto more than pipeline", "-", AUTO, PIPELINE, At::All, How::More),
    ],
    tables: &[Table::OverBound(&[STAR, CONCURRENT, TREE, PIPELINE])],
};

const ONE_CHUNK: Figure = Figure {
    name: "6",
    title: "Update time without slices",
    about: "Updates part of a block of rs(4,3), whose parities are in three racks, over equal links. The path sends the update in one slice.",
    differs: "Theory gives both the same time: R transfers, one after another. The paper's gain, above all for large chunks, has another reason: the load of its \
        data node.",
    x: "size of the update",
    value: Value::Seconds,
    mark: Mark::Lines,
    schemes: &[STAR, ONE_SLICE],
    base: Base { scheme: STAR, x: None },
    link: LINK,
    block_len: 16 * MIB,
    runs: 5,
    nodes: 7,
    racks: 7,
    slow: &[],
    setups: |scale| {
        let of = |len: u64| vec![named(STAR, STAR, SLICE), named(ONE_SLICE, PIPELINE, len)];
        Ok(sizes(scale.block_len).map(|len| even("rs(4,3)", len, 1, 1, at(&ByteSize(len).to_string(), of(len)))).into())
    },
    claims: &[
        claim("one slice less than star, largest", "less", ONE_SLICE, STAR, At::Last, How::Less),
        claim("one slice to its link bound", "-", ONE_SLICE, "", At::All, How::OverBound),
    ],
    tables: &[Table::OverBound(&[STAR, ONE_SLICE])],
};

const PATHS: Figure = Figure {
    name: "7",
    title: "Update time and the path",
    about: "The same as in figure 5, with paths that are selected in other ways. Each run has its own seed. With three regions to reach there are six paths.",
    differs: "A tabu search over six paths finds the best one each time.",
    x: "region",
    value: Value::Seconds,
    mark: Mark::Bars,
    schemes: &[TREE, WORST, RANDOM, TABU, PIPELINE],
    base: Base { scheme: TREE, x: None },
    link: LINK,
    block_len: 4 * MIB,
    runs: 10,
    nodes: 12,
    racks: 4,
    slow: &[],
    setups: |scale| {
        let cases = [(TREE, TREE), (TABU, PIPELINE), (RANDOM, PIPELINE), (WORST, PIPELINE), (PIPELINE, PIPELINE)];
        in_regions(scale.block_len, &cases)
    },
    claims: &[
        claim("path by tabu search less than random path", "15.0-45.4 %", TABU, RANDOM, At::All, How::Less),
        claim("worst path more than tree", "more in some regions", WORST, TREE, At::All, How::More),
        claim("path by tabu search more than the best path", "-", TABU, PIPELINE, At::All, How::More),
    ],
    tables: &[Table::OverBound(&[TREE, WORST, RANDOM, TABU, PIPELINE])],
};

const SLICES: Figure = Figure {
    name: "8",
    title: "Update time and slice size",
    about: "Updates part of a block of rs(4,3), whose parities are in three racks, over equal links, in slices of different sizes. Star and tree send it whole \
        and appear as lines. The paper's chunks are 16, 32 and 64 MB.",
    differs: "A path takes 1+(R-1)/g of the time of one link for g slices. Our largest update is a quarter of the paper's, so the region in which the time is \
        nearly the same ends at a quarter of the paper's slice, too.",
    x: "slice size",
    value: Value::Seconds,
    mark: Mark::LogLines,
    schemes: &[STAR, TREE, QUARTER, HALF, PIPELINE],
    base: Base { scheme: PIPELINE, x: Some("64KiB") },
    link: LINK,
    block_len: 16 * MIB,
    runs: 5,
    nodes: 7,
    racks: 7,
    slow: &[],
    setups: |scale| {
        let mut setups = Vec::new();
        for (label, part) in [(QUARTER, 4), (HALF, 2), (PIPELINE, 1)] {
            let len = scale.block_len / part;
            let slices = [4, 16, 64, 128, 256, 512, 1024].map(|kib| kib * KIB).into_iter();
            let mut cases: Vec<(Option<String>, Case)> =
                slices.map(|slice| (Some(ByteSize(slice).to_string()), named(label, PIPELINE, slice))).collect();
            if part == 1 {
                cases.extend([STAR, TREE].map(|scheme| (None, named(scheme, scheme, SLICE))));
            }
            setups.push(even("rs(4,3)", len, 1, 1, cases));
        }
        Ok(setups)
    },
    claims: &[
        claim("pipeline less than star, slices of 64 KiB", "67 %", PIPELINE, STAR, At::X("64KiB"), How::Less),
        claim("pipeline less than tree, slices of 64 KiB", "48.2 %", PIPELINE, TREE, At::X("64KiB"), How::Less),
        claim("slices of 4 KiB to those of 64 KiB", "nearly the same", PIPELINE, "", At::X("4KiB"), How::Ratio),
        claim("slices of 128 KiB to those of 64 KiB", "nearly the same", PIPELINE, "", At::X("128KiB"), How::Ratio),
        claim("slices of 512 KiB to those of 64 KiB", "nearly the same", PIPELINE, "", At::X("512KiB"), How::Ratio),
    ],
    tables: &[Table::OverBound(&[QUARTER, HALF, PIPELINE])],
};

const RACKS: Figure = Figure {
    name: "9",
    title: "Update time and the number of parity racks",
    about: "Updates part of a block of rs(4,R), whose parities are in R racks, over equal links. The paper updates chunks of 64 MB.",
    differs: "With one parity rack, all four schemes are the same single hop, so their times differ by chance only.",
    x: "parity racks",
    value: Value::Seconds,
    mark: Mark::Lines,
    schemes: &[STAR, CONCURRENT, TREE, PIPELINE],
    base: Base { scheme: PIPELINE, x: Some("1") },
    link: LINK,
    block_len: 16 * MIB,
    runs: 5,
    nodes: 8,
    racks: 8,
    slow: &[],
    setups: |scale| {
        let setup = |racks: u32| even(&format!("rs(4,{racks})"), scale.block_len, 1, 1, at(&racks.to_string(), usual()));
        Ok([1, 2, 3, 4].map(setup).into())
    },
    claims: &[
        claim("pipeline less than star, 1 rack", "6.0 %", PIPELINE, STAR, At::X("1"), How::Less),
        claim("pipeline less than star, 4 racks", "75.7 %", PIPELINE, STAR, At::X("4"), How::Less),
        claim("pipeline less than tree, 1 rack", "6.0 %", PIPELINE, TREE, At::X("1"), How::Less),
        claim("pipeline less than tree, 4 racks", "66.2 %", PIPELINE, TREE, At::X("4"), How::Less),
        claim("pipeline to that with 1 rack", "nearly the same", PIPELINE, "", At::All, How::Ratio),
        claim("pipeline to its link bound", "about 1", PIPELINE, "", At::All, How::OverBound),
        claim("star to its link bound", "-", STAR, "", At::All, How::OverBound),
        claim("tree to its link bound", "-", TREE, "", At::All, How::OverBound),
    ],
    tables: &[Table::OverBound(&[STAR, CONCURRENT, TREE, PIPELINE])],
};

const SIZES: Figure = Figure {
    name: "10",
    title: "Update time and the size of the update",
    about: "Updates part of a block of rs(4,3), whose parities are in three racks, over equal links.",
    differs: "The fixed cost of an update, above all its syncs, weighs more for less data.",
    x: "size of the update",
    value: Value::Seconds,
    mark: Mark::Lines,
    schemes: &[STAR, CONCURRENT, TREE, PIPELINE],
    base: Base { scheme: STAR, x: None },
    link: LINK,
    block_len: 16 * MIB,
    runs: 5,
    nodes: 7,
    racks: 7,
    slow: &[],
    setups: |scale| {
        Ok(sizes(scale.block_len).map(|len| even("rs(4,3)", len, 1, 1, at(&ByteSize(len).to_string(), usual()))).into())
    },
    claims: &[
        claim("pipeline less than star, all sizes", "at least 62.3 %", PIPELINE, STAR, At::All, How::Less),
        claim("pipeline less than tree, all sizes", "at least 48.2 %", PIPELINE, TREE, At::All, How::Less),
    ],
    tables: &[Table::OverBound(&[STAR, CONCURRENT, TREE, PIPELINE])],
};

const IN_A_STRIPE: Figure = Figure {
    name: "11",
    title: "Updates of several data blocks of a stripe at once",
    about: "Updates parts of one to four data blocks of rs(4,3) at the same time, each from its own node, over equal links. Each parity is in a rack of its own. \
        The time is that of all updates. The paper updates chunks of 32 MB.",
    differs: "All deltas go to the same three nodes. With as many updates as parities, each of their links must carry all of them, whatever the scheme, and a star \
        is no slower than that.",
    x: "data blocks",
    value: Value::Seconds,
    mark: Mark::Lines,
    schemes: &[STAR, CONCURRENT, TREE, PIPELINE],
    base: Base { scheme: STAR, x: None },
    link: LINK,
    block_len: 8 * MIB,
    runs: 5,
    nodes: 7,
    racks: 7,
    slow: &[],
    setups: |scale| {
        let setup = |blocks: usize| even("rs(4,3)", scale.block_len, blocks, 1, at(&blocks.to_string(), usual()));
        Ok([1, 2, 3, 4].map(setup).into())
    },
    claims: &[
        claim("pipeline less than star, fewer updates than parities", "less", PIPELINE, STAR, At::Range(&["1", "2"]), How::Less),
        claim("pipeline less than tree, fewer updates than parities", "less", PIPELINE, TREE, At::Range(&["1", "2"]), How::Less),
        claim("pipeline less than star, all", "less", PIPELINE, STAR, At::All, How::Less),
        claim("pipeline less than tree, all", "less", PIPELINE, TREE, At::All, How::Less),
    ],
    tables: &[],
};

const ACROSS_STRIPES: Figure = Figure {
    name: "12",
    title: "Updates of several stripes at once",
    about: "Updates part of a data block in each of one to four stripes of rs(4,3) at the same time, each from its own node, over equal links. Twelve nodes hold the \
        stripes, each in a rack of its own, and some hold blocks of several. The time is that of all updates. The paper updates chunks of 32 MB.",
    differs: "",
    x: "stripes",
    value: Value::Seconds,
    mark: Mark::Lines,
    schemes: &[STAR, CONCURRENT, TREE, PIPELINE],
    base: Base { scheme: STAR, x: None },
    link: LINK,
    block_len: 8 * MIB,
    runs: 5,
    nodes: 12,
    racks: 12,
    slow: &[],
    setups: |scale| {
        let setup = |stripes: usize| even("rs(4,3)", scale.block_len, 1, stripes, at(&stripes.to_string(), usual()));
        Ok([1, 2, 3, 4].map(setup).into())
    },
    claims: &[
        claim("pipeline less than star, all", "less", PIPELINE, STAR, At::All, How::Less),
        claim("pipeline less than tree, all", "less", PIPELINE, TREE, At::All, How::Less),
    ],
    tables: &[],
};

const fn claim(text: &'static str, paper: &'static str, of: &'static str, than: &'static str, at: At, how: How) -> Claim {
    Claim { text, paper, of, than, at, how }
}

/// A case; a path is selected as its label says.
fn named(label: &str, scheme: &str, slice_len: u64) -> Case {
    let select = match label {
        TABU => "tabu",
        RANDOM => "random",
        WORST => "worst",
        _ => "exact",
    };
    let slice_len = AutoSize::Bytes(ByteSize(slice_len));
    Case { label: label.to_owned(), scheme: scheme.to_owned(), slice_len, select: select.to_owned(), paths: 1 }
}

fn usual() -> Vec<Case> {
    [(STAR, STAR), (TREE, TREE), (PIPELINE, PIPELINE), (CONCURRENT, "concurrent-star")]
        .map(|(label, scheme)| named(label, scheme, SLICE))
        .into()
}

/// All cases at one place of the axis.
fn at(x: &str, cases: Vec<Case>) -> Vec<(Option<String>, Case)> {
    cases.into_iter().map(|case| (Some(x.to_owned()), case)).collect()
}

/// The sizes of updates, up to the largest: whole pages.
fn sizes(most: u64) -> [u64; 4] {
    [8, 4, 2, 1].map(|part| (most / part / 4096).max(1) * 4096)
}

/// Updates over equal links, in racks of one node.
fn even(code: &str, block_len: u64, blocks: usize, stripes: usize, cases: Vec<(Option<String>, Case)>) -> Setup {
    Setup { code: code.to_owned(), block_len, links: Links::Updated(Updating { blocks, stripes, places: None }), cases }
}

/// An update from each region; labels and schemes.
fn in_regions(block_len: u64, cases: &[(&str, &str)]) -> Result<Vec<Setup>> {
    let setup = |(region, matrix): (String, _)| {
        let cases = cases.iter().map(|(label, scheme)| named(label, scheme, SLICE)).collect();
        let links = Links::Updated(Updating { blocks: 1, stripes: 1, places: Some(matrix) });
        Setup { code: CODE.to_owned(), block_len, links, cases: at(&region, cases) }
    };
    Ok(regions()?.into_iter().map(setup).collect())
}
