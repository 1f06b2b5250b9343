//! This binary and the `weft` beside it must have the same version; otherwise nothing is done.

use std::{
    env::VarError,
    process::{Command, Stdio},
};
use weft_cli::beside::{self, HANDED_OVER_BY, WEFT};
use weft_types::{Error, Result};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How this binary was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Caller {
    /// By `weft`, of this version.
    Weft(String),
    /// Directly, by a user or a script.
    Direct,
}

impl Caller {
    /// From the environment.
    pub(crate) fn of_this_process() -> Self {
        match std::env::var(HANDED_OVER_BY) {
            Ok(version) => Self::Weft(version),
            Err(VarError::NotPresent) => Self::Direct,
            Err(VarError::NotUnicode(version)) => Self::Weft(version.to_string_lossy().into_owned()),
        }
    }

    /// Whether `weft` handed over.
    pub(crate) fn is_weft(&self) -> bool {
        matches!(self, Self::Weft(_))
    }

    /// Fails if a `weft` of another version handed over.
    pub(crate) fn check_handed_over(&self) -> Result<()> {
        match self {
            Self::Weft(version) => same(version),
            Self::Direct => Ok(()),
        }
    }

    /// Fails if this binary was started directly and the `weft` beside it has another version. Without any `weft`, commands that need it fail.
    pub(crate) fn check_beside(&self) -> Result<()> {
        let Some(weft) = (*self == Self::Direct).then(|| beside::find(WEFT)).transpose()?.flatten() else { return Ok(()) };
        let silent = |why: &str| Error::fatal(format!("cannot get the version of {}: {why}", weft.display()));
        let said = Command::new(&weft).arg("--version").stdin(Stdio::null()).output();
        let said = said.map_err(|error| silent(&error.to_string()))?;
        let text = String::from_utf8_lossy(&said.stdout);
        match text.trim().strip_prefix(WEFT) {
            Some(version) if said.status.success() => same(version.trim()),
            _ => Err(silent(text.lines().next().unwrap_or("it printed nothing"))),
        }
    }
}

fn same(weft: &str) -> Result<()> {
    match weft == VERSION {
        true => Ok(()),
        false => Err(Error::fatal(format!(
            "this is weft-lab {VERSION}, but the weft beside it is {weft}: build both from one checkout with `make lab`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_refused_and_named() {
        assert_eq!(Caller::Weft(VERSION.to_owned()).check_handed_over(), Ok(()));
        assert_eq!(Caller::Direct.check_handed_over(), Ok(()));
        let error = Caller::Weft("9.8.7".to_owned()).check_handed_over().unwrap_err().message;
        assert!(error.contains("weft beside it is 9.8.7") && error.contains(&format!("weft-lab {VERSION}")), "{error}");
    }
}
