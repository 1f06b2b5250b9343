//! The list of all schemes. A scheme's name is written only in its own file; code elsewhere gets its properties from the registry.

use crate::{
    check::{self, CheckScheme},
    disseminate::{self, WriteScheme},
    door::Kind,
    repair::{self, RepairScheme, Walk},
    update::{self, UpdateScheme},
};
use weft_types::{Error, Result};

/// The name with which a user leaves the choice of the scheme open.
pub const AUTO: &str = "auto";

/// Every scheme, in display order: for each kind of job, the simplest first.
pub const SCHEMES: &[Scheme<'static>] = &[
    Scheme::Repair(&repair::conventional::Conventional),
    Scheme::Repair(&repair::ppr::Ppr),
    Scheme::Repair(&repair::pipeline::Pipeline),
    Scheme::Repair(&repair::cyclic::Cyclic),
    Scheme::Repair(&repair::direct::Direct),
    Scheme::Write(&disseminate::direct::Direct),
    Scheme::Write(&disseminate::Mist { reserve: None }),
    Scheme::Update(&update::star::Star { concurrent: false }),
    Scheme::Update(&update::star::Star { concurrent: true }),
    Scheme::Update(&update::tree::Tree),
    Scheme::Update(&update::pipeline::Pipeline { path: None }),
    Scheme::Update(&update::chain::Chain),
    Scheme::Check(&check::chain::Chain),
];

/// What every scheme has. Its `Debug` output must contain its settings, because caches identify it by them.
pub trait Named: std::fmt::Debug + Sync {
    /// Its name, unique among schemes of its family.
    fn name(&self) -> &'static str;

    /// What it does, in one line.
    fn summary(&self) -> &'static str;
}

/// A scheme, by the kind of lanes that it makes.
#[derive(Debug, Clone, Copy)]
pub enum Scheme<'a> {
    /// Brings helpers' shares of a sum to the requestors. All of these read available blocks in the same way.
    Repair(&'a dyn RepairScheme),
    /// Brings new blocks to their homes.
    Write(&'a dyn WriteScheme),
    /// Brings changes to the nodes that patch their blocks.
    Update(&'a dyn UpdateScheme),
    /// Adds up all blocks' parts of a parity check.
    Check(&'a dyn CheckScheme),
}

impl Scheme<'_> {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.named().name()
    }

    /// What it does, in one line.
    pub fn summary(&self) -> &'static str {
        self.named().summary()
    }

    /// Whether it is considered for such jobs if the choice is open.
    pub fn answers(&self, kind: Kind) -> bool {
        match self {
            Self::Repair(scheme) => self.is_for(kind) && scheme.rebuilds() == (kind == Kind::Repair),
            Self::Write(_) | Self::Update(_) | Self::Check(_) => self.is_for(kind),
        }
    }

    /// Whether it can be named for such jobs.
    pub(crate) fn is_for(&self, kind: Kind) -> bool {
        self.family() == family(kind)
    }

    /// Whether agents can run its plans (see [`weft_plan::check_for_agents`]). [`crate::choose_of`] chooses among these.
    pub fn is_for_agents(&self) -> bool {
        !matches!(self, Self::Update(scheme) if scheme.sends_in_turn())
    }

    /// Whether it repairs a block over a path, whose links have an order.
    pub fn has_paths(&self) -> bool {
        matches!(self, Self::Repair(scheme) if matches!(scheme.walk(), Walk::Chain | Walk::Cycle))
    }

    /// Whether it can repair a block over several paths.
    pub fn has_several_paths(&self) -> bool {
        matches!(self, Self::Repair(scheme) if scheme.walk() == Walk::Chain)
    }

    fn named(&self) -> &dyn Named {
        match self {
            Self::Repair(scheme) => *scheme,
            Self::Write(scheme) => *scheme,
            Self::Update(scheme) => *scheme,
            Self::Check(scheme) => *scheme,
        }
    }

    fn family(&self) -> &'static str {
        family(match self {
            Self::Repair(_) => Kind::Repair,
            Self::Write(_) => Kind::Write,
            Self::Update(_) => Kind::Update,
            Self::Check(_) => Kind::Check,
        })
    }
}

/// The name of the schemes' family for a kind of job: reads, repairs and moves share one.
fn family(kind: Kind) -> &'static str {
    match kind {
        Kind::Read | Kind::Repair | Kind::Move => "repair",
        Kind::Write => "write",
        Kind::Update => "update",
        Kind::Check => "check",
    }
}

/// The schemes for a kind of job, in display order.
pub fn answering(kind: Kind) -> impl Iterator<Item = Scheme<'static>> + Clone {
    SCHEMES.iter().copied().filter(move |scheme| scheme.answers(kind))
}

/// The scheme with this name, for a kind of job. It may still refuse the job, and then says what it is for.
pub fn by_name(kind: Kind, name: &str) -> Result<Scheme<'static>> {
    let family = family(kind);
    let mut all = SCHEMES.iter().filter(|scheme| scheme.is_for(kind));
    let known = all.clone().map(Scheme::name).collect::<Vec<_>>().join(", ");
    let found = all.find(|scheme| scheme.name() == name).copied();
    found.ok_or_else(|| Error::invalid(format!("there is no {family} scheme '{name}': use {AUTO}, {known}")))
}

/// Checks that a name is a scheme for a kind of job, or leaves the choice open.
pub fn check_name(kind: Kind, name: &str) -> Result<()> {
    if name == AUTO { Ok(()) } else { by_name(kind, name).map(drop) }
}

/// Whether the named repair scheme can rebuild lost blocks; some only copy available ones.
pub fn rebuilds(name: &str) -> bool {
    name == AUTO || by_name(Kind::Repair, name).is_ok_and(|scheme| scheme.answers(Kind::Repair))
}

/// Of the schemes for a kind of job, the one that needs the least of all parties except requestors and writers.
pub fn simplest(kind: Kind) -> Result<Scheme<'static>> {
    answering(kind).next().ok_or_else(|| Error::fatal(format!("internal error: no scheme can {} blocks", kind.verb())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_an_unknown_scheme_lists_the_known_ones() {
        let told = |kind| by_name(kind, "pigeon").unwrap_err().message;
        for kind in [Kind::Read, Kind::Repair, Kind::Move] {
            let known = told(kind);
            let named = known.strip_prefix("there is no repair scheme 'pigeon': use auto, conventional, ").unwrap();
            let repairs_and_copies = answering(Kind::Repair).skip(1).chain(answering(Kind::Move));
            assert!(repairs_and_copies.clone().count() > 1);
            repairs_and_copies.for_each(|scheme| assert!(named.split(", ").any(|name| name == scheme.name()), "{known}"));
        }
        assert!(told(Kind::Write).starts_with("there is no write scheme 'pigeon': use auto, direct, mist"));
        assert!(check_name(Kind::Write, AUTO).is_ok() && check_name(Kind::Write, "pipeline").is_err());
    }

    #[test]
    fn every_scheme_is_found_by_its_name_and_solves_some_job() {
        for scheme in SCHEMES {
            let answered: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| scheme.answers(*kind)).collect();
            assert!(!answered.is_empty() && !scheme.summary().is_empty(), "{scheme:?}");
            for kind in answered {
                assert_eq!(by_name(kind, scheme.name()).unwrap().name(), scheme.name());
            }
        }
        assert!(Kind::ALL.into_iter().all(|kind| simplest(kind).is_ok()));
    }
}
