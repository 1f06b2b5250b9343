//! This binary and the `weft` beside it belong together: they are of one version, or nothing is done.

use std::{
    env::VarError,
    process::{Command, Stdio},
};
use weft_cli::beside::{self, HANDED_OVER_BY, WEFT};
use weft_types::{Error, Result};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Who called this binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Caller {
    /// `weft`, of this version.
    Weft(String),
    /// A person or a script started `weft-lab` itself.
    Direct,
}

impl Caller {
    /// As the environment says.
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

    /// Fails if nobody handed over, and the `weft` beside this binary is of another version. None at all fails what needs one.
    pub(crate) fn check_beside(&self) -> Result<()> {
        let Some(weft) = (*self == Self::Direct).then(|| beside::find(WEFT)).transpose()?.flatten() else { return Ok(()) };
        let silent = |why: &str| Error::fatal(format!("{} does not tell its version: {why}", weft.display()));
        let said = Command::new(&weft).arg("--version").stdin(Stdio::null()).output();
        let said = said.map_err(|error| silent(&error.to_string()))?;
        let text = String::from_utf8_lossy(&said.stdout);
        match text.trim().strip_prefix(WEFT) {
            Some(version) if said.status.success() => same(version.trim()),
            _ => Err(silent(text.lines().next().unwrap_or("it says nothing"))),
        }
    }
}

fn same(weft: &str) -> Result<()> {
    match weft == VERSION {
        true => Ok(()),
        false => Err(Error::fatal(format!(
            "this is weft-lab {VERSION} and the weft beside it is {weft}: build both from one checkout, `make lab`"
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
