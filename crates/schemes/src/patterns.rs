//! What was made for known patterns: recipes, the lanes of repairs and those of writes. Most stripes of a code lose the same, and new ones
//! are written alike; what is made of them differs in its parties, positions and lengths only.

use std::{fmt, sync::Arc};
use weft_codes::{Ask, Code, Recipe, SubBlock};
use weft_plan::{Cache, Counts, Lane, WantKind};
use weft_types::Result;

/// The recipes and lanes that were made last. What is planned is the same with and without.
#[derive(Debug)]
pub struct Patterns {
    recipes: Cache<RecipeKey, Found>,
    lanes: Cache<LanesKey, (Arc<Recipe>, Arc<Vec<Lane>>)>,
    writes: Cache<WriteKey, Arc<Lane>>,
}

/// All that a lane of a write is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct WriteKey {
    pub(crate) code: String,
    /// See [`identity`].
    pub(crate) scheme: Arc<str>,
    pub(crate) window: u32,
    pub(crate) writer: u16,
    /// The data blocks that the writer has.
    pub(crate) inputs: Vec<u8>,
    /// What goes to whom; of a block that is stored, which copy it is; and whether that home is near.
    pub(crate) wants: Vec<(Want, Option<u8>, bool)>,
}

/// What goes to a vertex: as what, of which block, which sub-blocks.
pub(crate) type Want = (u16, WantKind, u8, Vec<u16>);

/// A question to a code, for a scheme. The spec stands for the code: if it were wrong, the proof would refuse what is made of the recipe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RecipeKey {
    code: String,
    /// See [`identity`].
    scheme: Arc<str>,
    wanted: Vec<SubBlock>,
    available: Vec<u8>,
    read_anyway: Vec<u8>,
    /// The answer depends on the order. Otherwise an ordered question that happens to be sorted would find [`Found::DependsOnOrder`].
    is_ordered: bool,
}

/// What is known of a question.
#[derive(Debug, Clone)]
enum Found {
    Recipe(Arc<Recipe>),
    /// The answer depends on who is preferred.
    DependsOnOrder,
}

/// A recipe's shares go by a scheme from these to those.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LanesKey {
    /// Where the recipe is in memory: an entry keeps it there.
    pub(crate) recipe: usize,
    /// See [`identity`].
    pub(crate) scheme: Arc<str>,
    pub(crate) window: u32,
    /// The helpers' blocks and vertices, in the order of the walk.
    pub(crate) helpers: Vec<(u8, u16)>,
    /// What goes to whom.
    pub(crate) wants: Vec<Want>,
}

impl Patterns {
    /// Remembers recipes of up to `terms_max` coefficients, and lanes of repairs and of writes of as many each.
    pub fn new(terms_max: usize) -> Self {
        Self { recipes: Cache::new(terms_max), lanes: Cache::new(terms_max), writes: Cache::new(terms_max) }
    }

    /// How often lanes were known, and how often not.
    pub fn counts(&self) -> Counts {
        let (repairs, writes) = (self.lanes.counts(), self.writes.counts());
        Counts { hits: repairs.hits + writes.hits, misses: repairs.misses + writes.misses }
    }

    /// The lane of a write that `make` makes, or has made before.
    pub(crate) fn write(&self, key: WriteKey, make: impl FnOnce() -> Result<Lane>) -> Result<Lane> {
        if let Some(lane) = self.writes.get(&key, |_| true) {
            return Ok((*lane).clone());
        }
        let lane = make()?;
        let terms = lane.stages.iter().map(|stage| stage.matrix.steps().terms().len()).sum::<usize>().max(TERMS_MIN);
        self.writes.put(key, Arc::new(lane.clone()), terms);
        Ok(lane)
    }

    /// The lanes that `make` makes of a recipe, or has made of it before.
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
        let stages = lanes.iter().flat_map(|lane| &lane.stages);
        let terms = stages.map(|stage| stage.matrix.steps().terms().len()).sum::<usize>().max(TERMS_MIN);
        self.lanes.put(key, (Arc::clone(recipe), Arc::new(lanes.clone())), terms);
        Ok(lanes)
    }

    /// What `known` says, or else `make`.
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

/// Two schemes are the same if this is: the name is not enough, for a scheme may have settings.
pub(crate) fn identity(name: &str, scheme: &(impl fmt::Debug + ?Sized)) -> Arc<str> {
    format!("{name} {scheme:?}").into()
}

/// What anything counts as at least.
const TERMS_MIN: usize = 1024;

/// The recipe that a scheme chooses. Where it does not matter who of those that are available is preferred, it is the same for any
/// order of them: the question is asked for the blocks in the order of their indexes. That is so if all of them help; and of codes of
/// which any k whole blocks do, the first k help (of a shortened one, fewer).
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

/// Whether any [`dimension`](Code::dimension) whole blocks give the others, and cost the same.
fn takes_any(code: &dyn Code) -> bool {
    code.alpha() == 1 && code.tolerance() == code.m()
}

/// The question without an order, as far as it has the same answer.
fn in_order(code: &dyn Code, ask: &Ask) -> Ask {
    let mut available: Vec<u8> = ask.available.clone();
    if takes_any(code) {
        // What is wanted, and what is read anyway, helps first.
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
