//! Caches results for known patterns: recipes, and the lanes of repairs, writes and checks. Most stripes of a code lose blocks
//! in the same way, and new stripes are written alike; their plans differ only in parties, positions and lengths.

use std::{fmt, sync::Arc};
use weft_codes::{Ask, Code, Recipe, SubBlock};
use weft_plan::{Cache, Counts, Lane, WantKind};
use weft_types::Result;

/// The latest recipes and lanes. Plans are the same with and without the cache.
#[derive(Debug)]
pub struct Patterns {
    recipes: Cache<RecipeKey, Found>,
    lanes: Cache<LanesKey, (Arc<Recipe>, Arc<Vec<Lane>>)>,
    writes: Cache<WriteKey, Arc<Lane>>,
    checks: Cache<CheckKey, Arc<Vec<Lane>>>,
}

/// Everything that determines the lanes of a check.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CheckKey {
    pub(crate) code: String,
    /// See [`identity`].
    pub(crate) scheme: Arc<str>,
    pub(crate) window: u32,
    /// The helpers' vertices and blocks, in the order of the walk.
    pub(crate) helpers: Vec<(u16, Vec<u8>)>,
    pub(crate) checker: u16,
    pub(crate) rows: usize,
    pub(crate) seed: u64,
}

/// Everything that determines a lane of a write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct WriteKey {
    pub(crate) code: String,
    /// See [`identity`].
    pub(crate) scheme: Arc<str>,
    pub(crate) window: u32,
    pub(crate) writer: u16,
    /// The data blocks that the writer has.
    pub(crate) inputs: Vec<u8>,
    /// What goes to which vertex; the copy of a stored block; and whether its home is near.
    pub(crate) wants: Vec<(Want, Option<u8>, bool)>,
}

/// What goes to a vertex: the kind, the block, and the sub-blocks.
pub(crate) type Want = (u16, WantKind, u8, Vec<u16>);

/// A scheme's question to a code. The code is identified by its spec: if that were wrong, verification would refuse the
/// resulting plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RecipeKey {
    code: String,
    /// See [`identity`].
    scheme: Arc<str>,
    wanted: Vec<SubBlock>,
    available: Vec<u8>,
    read_anyway: Vec<u8>,
    /// Whether the answer depends on the order. Otherwise an ordered question that happens to be sorted would find
    /// [`Found::DependsOnOrder`].
    is_ordered: bool,
}

/// The answer to a question.
#[derive(Debug, Clone)]
enum Found {
    Recipe(Arc<Recipe>),
    /// The answer depends on the preference.
    DependsOnOrder,
}

/// The transfer of a recipe's shares by a scheme, from these helpers to these requestors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LanesKey {
    /// The address of the recipe, which the entry keeps alive.
    pub(crate) recipe: usize,
    /// See [`identity`].
    pub(crate) scheme: Arc<str>,
    pub(crate) window: u32,
    /// The helpers' blocks and vertices, in the order of the walk.
    pub(crate) helpers: Vec<(u8, u16)>,
    /// What goes to which vertex.
    pub(crate) wants: Vec<Want>,
}

impl Patterns {
    /// Caches recipes of up to `terms_max` coefficients, and as many coefficients of lanes of repairs, of writes and of checks.
    pub fn new(terms_max: usize) -> Self {
        let (recipes, lanes) = (Cache::new(terms_max), Cache::new(terms_max));
        Self { recipes, lanes, writes: Cache::new(terms_max), checks: Cache::new(terms_max) }
    }

    /// How often lanes were found, and how often not.
    pub fn counts(&self) -> Counts {
        let all = [self.lanes.counts(), self.writes.counts(), self.checks.counts()];
        Counts { hits: all.iter().map(|counts| counts.hits).sum(), misses: all.iter().map(|counts| counts.misses).sum() }
    }

    /// The lane of a write: from the cache, or from `make`.
    pub(crate) fn write(&self, key: WriteKey, make: impl FnOnce() -> Result<Lane>) -> Result<Lane> {
        if let Some(lane) = self.writes.get(&key, |_| true) {
            return Ok((*lane).clone());
        }
        let lane = make()?;
        self.writes.put(key, Arc::new(lane.clone()), terms(std::slice::from_ref(&lane)));
        Ok(lane)
    }

    /// The lanes of a check: from the cache, or from `make`.
    pub(crate) fn check(&self, key: CheckKey, make: impl FnOnce() -> Result<Vec<Lane>>) -> Result<Vec<Lane>> {
        if let Some(lanes) = self.checks.get(&key, |_| true) {
            return Ok(lanes.to_vec());
        }
        let lanes = make()?;
        self.checks.put(key, Arc::new(lanes.clone()), terms(&lanes));
        Ok(lanes)
    }

    /// The lanes of a recipe: from the cache, or from `make`.
    pub(crate) fn lanes(
        &self,
        recipe: &Arc<Recipe>,
        key: LanesKey,
        make: impl FnOnce() -> Result<Vec<Lane>>,
    ) -> Result<Vec<Lane>> {
        if let Some((_, lanes)) = self.lanes.get(&key, |_| true) {
            return Ok(lanes.to_vec());
        }
        let lanes = make()?;
        self.lanes.put(key, (Arc::clone(recipe), Arc::new(lanes.clone())), terms(&lanes));
        Ok(lanes)
    }

    /// The cached answer, or that of `make`.
    fn recipe(&self, key: RecipeKey, make: impl FnOnce() -> Option<Found>) -> Option<Found> {
        if let Some(found) = self.recipes.get(&key, |_| true) {
            return Some(found);
        }
        let found = make()?;
        let terms = match &found {
            Found::Recipe(recipe) => {
                let shares = recipe.helpers.iter().map(|helper| helper.compute.terms().len()).sum::<usize>();
                (recipe.combine.steps().terms().len() + shares).max(TERMS_MIN)
            }
            Found::DependsOnOrder => TERMS_MIN,
        };
        self.recipes.put(key, found.clone(), terms);
        Some(found)
    }
}

/// Identifies a scheme with its settings, because a name alone does not.
pub(crate) fn identity(name: &str, scheme: &(impl fmt::Debug + ?Sized)) -> Arc<str> {
    format!("{name} {scheme:?}").into()
}

/// The least cost of any entry.
const TERMS_MIN: usize = 1024;

/// The cost of an entry with these lanes.
fn terms(lanes: &[Lane]) -> usize {
    let stages = lanes.iter().flat_map(|lane| &lane.stages);
    stages.map(|stage| stage.matrix.steps().terms().len()).sum::<usize>().max(TERMS_MIN)
}

/// The recipe that a scheme chooses. If the preference among the available blocks does not matter, the question is
/// asked in the order of their indexes, so that any order has the same answer. This holds if all available blocks help.
/// For codes of which any k whole blocks suffice, the first k help (fewer for a shortened code).
pub(crate) fn recipe(
    patterns: Option<&Patterns>,
    (code, scheme): (&dyn Code, &Arc<str>),
    ask: &Ask,
    choose: impl Fn(&[Recipe]) -> Option<&Recipe>,
) -> std::result::Result<Option<Arc<Recipe>>, weft_codes::NotRecoverable> {
    let sorted = in_order(code, ask);
    let key = |ask: &Ask, is_ordered: bool| {
        let (wanted, available, read_anyway) = (ask.wanted.clone(), ask.available.clone(), ask.read_anyway.clone());
        RecipeKey { code: code.spec(), scheme: Arc::clone(scheme), wanted, available, read_anyway, is_ordered }
    };
    let mut refused = None;
    let mut made = |ask: &Ask| match code.recipes(ask) {
        Ok(recipes) => choose(&recipes).cloned().map(Arc::new),
        Err(refusal) => {
            refused = Some(refusal);
            None
        }
    };
    let mut of_sorted = || {
        let recipe = made(&sorted)?;
        let all_help = recipe.helpers.len() == sorted.available.len() || takes_any(code);
        Some(if all_help { Found::Recipe(recipe) } else { Found::DependsOnOrder })
    };
    let found = match patterns {
        Some(patterns) => patterns.recipe(key(&sorted, false), &mut of_sorted),
        None => of_sorted(),
    };
    let found = match found {
        Some(Found::DependsOnOrder) => match patterns {
            Some(patterns) => patterns.recipe(key(ask, true), || made(ask).map(Found::Recipe)),
            None => made(ask).map(Found::Recipe),
        },
        found => found,
    };
    match (found, refused) {
        (Some(Found::Recipe(recipe)), _) => Ok(Some(recipe)),
        (_, Some(refusal)) => Err(refusal),
        _ => Ok(None),
    }
}

/// Whether any [`dimension`](Code::dimension) whole blocks determine the others, at equal cost.
fn takes_any(code: &dyn Code) -> bool {
    code.alpha() == 1 && code.tolerance() == code.m()
}

/// The question in index order, as far as this has the same answer.
fn in_order(code: &dyn Code, ask: &Ask) -> Ask {
    let mut available: Vec<u8> = ask.available.clone();
    if takes_any(code) {
        // Wanted blocks, and blocks that are read anyway, help first.
        let first = |index: &u8| match (ask.wanted.iter().any(|wanted| wanted.index == *index), ask.read_anyway.contains(index)) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        available.sort_by_key(first);
        available.truncate(code.dimension());
    }
    available.sort_unstable();
    let mut read_anyway = ask.read_anyway.clone();
    read_anyway.retain(|index| available.contains(index));
    read_anyway.sort_unstable();
    Ask { wanted: ask.wanted.clone(), available, read_anyway }
}
