//! What theory and the links say of the time of an update in place.

use super::{DIRECT, repair::Case};
use weft_plan::{Class, Network, WantKind, predict};
use weft_schemes::{
    Request, Run, Scheme, Select,
    path::{Selector, Tabu},
    plan,
    update::{Pipeline, Star, Tree, UpdateScheme, overwrite},
};
use weft_types::{AutoSize, BlockId, Error, Layout, NodeId, Party, PlanId, Result, StripeId};

/// The path of a case that is drawn by the seed of its run.
pub(crate) const RANDOM: &str = "random";
/// The slice of a case that does not say one: the paper's.
pub(crate) const SLICE: u64 = 64 << 10;

/// The blocks that change with a data block, without itself.
pub(crate) fn concerned(code: &str, block: u8) -> Result<Vec<u8>> {
    let job = job(code, 4096, block, |index| Party::Node(NodeId(u32::from(index))))?;
    Ok(job.wants.iter().filter(|want| want.kind == WantKind::Patch && want.index != block).map(|want| want.index).collect())
}

fn job(code: &str, len: u64, block: u8, home: impl Fn(u8) -> Party) -> Result<weft_plan::Job> {
    let code = weft_codes::parse(code).map_err(Error::invalid)?;
    let layout = layout(code.alpha(), len)?;
    let id = |index: u8| BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 };
    let changed: Vec<(u8, u16)> = (0..code.alpha() as u16).map(|sub_block| (block, sub_block)).collect();
    Ok(overwrite(code.as_ref(), layout, &changed, |index| (home(index), id(index))))
}

fn layout(alpha: usize, len: u64) -> Result<Layout> {
    let len = len.next_multiple_of(4096 * alpha as u64);
    Layout::new(len, len, alpha as u32)
}

/// The least time that the links allow for an update of a data block by a scheme. `home`: where each block is.
pub(crate) fn bound_s(
    (code, block, len): (&str, u8, u64),
    case: &Case,
    seed: u64,
    network: &Network,
    home: impl Fn(u8) -> Party,
) -> Result<Option<f64>> {
    let pipeline = |path| Box::new(Pipeline { path: Some(path) }) as Box<dyn UpdateScheme>;
    let scheme: Box<dyn UpdateScheme> = match case.scheme.as_str() {
        "star" => Box::new(Star { concurrent: false }),
        DIRECT | "concurrent-star" => Box::new(Star { concurrent: true }),
        "tree" => Box::new(Tree),
        "pipeline" => match case.select.as_str() {
            "tabu" => pipeline(Selector::Tabu(Tabu { seed, ..Tabu::default() })),
            RANDOM => pipeline(Selector::Random { seed }),
            "worst" => pipeline(Selector::Worst),
            _ => pipeline(Selector::Exact),
        },
        _ => return Ok(None),
    };
    let job = job(code, len, block, home)?;
    let code = weft_codes::parse(code).map_err(Error::invalid)?;
    let slice_len = if scheme.sends_in_turn() { len } else { slice_of(case).min(len) };
    let run = Run::new(PlanId(1), 0, Class::Foreground, slice_len);
    let stripe = layout(code.alpha(), len)?.full_stripe(code.k() as u32, code.m() as u32);
    let request = Request { network, select: Select::Best, ..Request::new(code.as_ref(), stripe, &job, run) };
    let plan = plan(&request, Scheme::Update(scheme.as_ref()))?;
    Ok(Some(predict(&plan, network)?).filter(|seconds| seconds.is_finite()))
}

/// The slices of a case.
fn slice_of(case: &Case) -> u64 {
    match case.slice_len {
        AutoSize::Bytes(size) => size.0,
        AutoSize::Auto => SLICE,
    }
}

/// What theory says, in times of one delta over one link: a star to R racks takes R, a tree ⌈log2(R+1)⌉, a pipeline of g slices 1+(R-1)/g.
pub(crate) fn theory(case: &Case, racks: usize, update_len: u64) -> Option<f64> {
    let racks = racks as f64;
    match case.scheme.as_str() {
        DIRECT => Some(1.0),
        // Whether at once or one after another: all deltas go over the one link of the data node.
        "star" | "concurrent-star" => Some(racks),
        "tree" => Some((racks + 1.0).log2().ceil()),
        "pipeline" => match case.slice_len {
            AutoSize::Bytes(slice) => Some(1.0 + (racks - 1.0) / update_len.div_ceil(slice.0.max(1)).max(1) as f64),
            // The slices are chosen by the rates of the links.
            AutoSize::Auto => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(scheme: &str) -> Case {
        Case::parse(scheme, AutoSize::bytes(SLICE), 1 << 20).unwrap().remove(0)
    }

    #[test]
    fn theory_counts_deltas_over_one_link() {
        let of = |scheme: &str, racks| theory(&case(scheme), racks, 16 << 20).unwrap();
        assert_eq!([1, 2, 3, 4].map(|racks| of("star", racks)), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!([1, 2, 3, 4, 7, 8].map(|racks| of("tree", racks)), [1.0, 2.0, 2.0, 3.0, 3.0, 4.0]);
        assert_eq!([1, 3].map(|racks| of("pipeline", racks)), [1.0, 1.0 + 2.0 / 256.0]);
        assert_eq!((of("pipeline@block", 3), of("direct", 3)), (1.0 + 2.0 / 16.0, 1.0));
        assert_eq!(theory(&case("auto"), 3, 1 << 20), None);
        assert_eq!(theory(&case("pipeline@auto"), 3, 1 << 20), None);
    }

    /// On equal links, the plans' times are what theory says.
    #[test]
    fn the_bound_by_the_plans_is_theory_on_equal_links() {
        let network =
            Network { up_bytes_per_s: (0..7).map(|node| (Party::Node(NodeId(node)), 1e6)).collect(), ..Network::uniform(1e6) };
        let home = |index: u8| Party::Node(NodeId(u32::from(index)));
        for scheme in ["star", "tree", "pipeline", "pipeline@256KiB", "concurrent-star"] {
            let bound = bound_s(("rs(4,3)", 0, 1 << 20), &case(scheme), 1, &network, home).unwrap().unwrap();
            let expected = theory(&case(scheme), 3, 1 << 20).unwrap() * f64::from(1 << 20) / 1e6;
            assert!((bound / expected - 1.0).abs() < 0.02, "{scheme}: {bound}, {expected}");
        }
        assert_eq!(bound_s(("rs(4,3)", 0, 1 << 20), &case("auto"), 1, &network, home).unwrap(), None);
    }
}
