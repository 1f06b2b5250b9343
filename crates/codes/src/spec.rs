//! Specs: how codes are written. `family(1,2,key=value)`, in any case and with blanks anywhere between the words, or as HDFS
//! names its policies: `RS-6-3-1024k`.

use crate::{FAMILIES, Family, SharedCode};

/// A spec is at most this long.
const SPEC_BYTES_MAX: usize = 200;

/// Reads a spec. A cell size, which HDFS's spelling has, is left out: [`parse_policy`] gives it too.
pub fn parse(spec: &str) -> Result<SharedCode, SpecError> {
    parse_policy(spec).map(|(code, _)| code)
}

/// Reads a spec; with the cell size in bytes if the spec says one (`RS-6-3-1024k`: 1 MiB).
pub fn parse_policy(spec: &str) -> Result<(SharedCode, Option<u64>), SpecError> {
    let unreadable = || SpecError::Unreadable { spec: spec.chars().take(40).collect() };
    if spec.len() > SPEC_BYTES_MAX {
        return Err(unreadable());
    }
    // Blanks may stand around words, not within them.
    let word = |text: &str| text.trim().to_owned();
    let text = spec.split('(').map(word).collect::<Vec<_>>().join("(");
    let text = text.split(')').map(word).collect::<Vec<_>>().join(")");
    let text = text.split(',').map(word).collect::<Vec<_>>().join(",");
    let text = text.split('=').map(word).collect::<Vec<_>>().join("=").to_ascii_lowercase();
    if text.contains(char::is_whitespace) {
        return Err(unreadable());
    }
    if let Some((head, tail)) = text.split_once('(') {
        let arguments = Arguments::read(&text, tail.strip_suffix(')').ok_or_else(unreadable)?).ok_or_else(unreadable)?;
        return Ok((build(head, &arguments)?, None));
    }
    let is_word = || !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let (spelled, cell_len) = hdfs(&text).ok_or_else(|| match family(&text).is_some() || is_word() {
        true => bare_name(&text),
        false => unreadable(),
    })?;
    Ok((parse(&spelled)?, cell_len))
}

/// What stands in the brackets of a spec.
#[derive(Debug, Clone)]
pub struct Arguments<'a> {
    spec: &'a str,
    positional: Vec<usize>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> Arguments<'a> {
    /// Exactly `N` numbers, and no keys other than `keys`, none of them twice.
    pub fn numbers<const N: usize>(&self, usage: &str, keys: &[&str]) -> Result<[usize; N], SpecError> {
        for (at, (key, _)) in self.named.iter().enumerate() {
            if !keys.contains(key) {
                return Err(self.wrong(usage, format!("there is no '{key}'")));
            }
            if self.named[..at].iter().any(|(earlier, _)| earlier == key) {
                return Err(self.wrong(usage, format!("'{key}' is said twice")));
            }
        }
        let found = self.positional.len();
        let numbers: &[usize; N] = (self.positional.as_slice().try_into())
            .map_err(|_| self.wrong(usage, format!("it needs {N} numbers and has {found}")))?;
        Ok(*numbers)
    }

    /// The value of a key, if it is said.
    pub fn value(&self, key: &str) -> Option<&'a str> {
        self.named.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    /// The error that says what is wrong with these arguments, and how they are written.
    pub fn wrong(&self, usage: &str, problem: impl Into<String>) -> SpecError {
        SpecError::WrongArguments { spec: self.spec.to_owned(), problem: problem.into(), usage: usage.to_owned() }
    }

    /// Numbers first, then `key=value`s.
    fn read(spec: &'a str, inside: &'a str) -> Option<Self> {
        let (mut positional, mut named) = (Vec::new(), Vec::new());
        for part in inside.split(',').filter(|_| !inside.is_empty()) {
            match part.split_once('=') {
                Some((key, value)) if !key.is_empty() && !value.is_empty() => named.push((key, value)),
                None if named.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) => positional.push(part.parse().ok()?),
                _ => return None,
            }
        }
        Some(Self { spec, positional, named })
    }
}

fn build(name: &str, arguments: &Arguments<'_>) -> Result<SharedCode, SpecError> {
    match family(name) {
        Some(family) => (family.build)(arguments),
        None => Err(SpecError::UnknownFamily { name: name.to_owned(), known: known() }),
    }
}

/// A name with no arguments: either it is a family, and its arguments are missing, or we do not know it.
fn bare_name(name: &str) -> SpecError {
    match family(name) {
        Some(family) => SpecError::WrongArguments {
            spec: name.to_owned(),
            problem: "its parameters are missing".to_owned(),
            usage: family.usage.to_owned(),
        },
        None => SpecError::UnknownFamily { name: name.to_owned(), known: known() },
    }
}

fn family(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

fn known() -> String {
    FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ")
}

/// HDFS's `CODEC-k-m-cell` as one of our specs, with the cell's bytes. Its RS is ours, and so is its XOR.
/// Its RS-LEGACY is another code, which we do not have: it is not taken for RS.
fn hdfs(text: &str) -> Option<(String, Option<u64>)> {
    let parts: Vec<&str> = text.split('-').collect();
    let number = |part: &str| part.parse::<usize>().ok().filter(|_| part.bytes().all(|b| b.is_ascii_digit()));
    let (name, k, m, cell) = match parts.as_slice() {
        [name, k, m] => (*name, number(k)?, number(m)?, None),
        [name, k, m, cell] => (*name, number(k)?, number(m)?, Some(cell_len(cell)?)),
        _ => return None,
    };
    match name {
        "rs" => Some((format!("rs({k},{m})"), cell)),
        "xor" if m == 1 => Some((format!("xor({k})"), cell)),
        _ => None,
    }
}

/// `1024k`, `1m` or a number of bytes.
fn cell_len(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['k', 'm']);
    let unit = match &text[digits.len()..] {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        _ => return None,
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|bytes| *bytes > 0)
}

/// A spec that is no code, and what would be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// It cannot be read at all.
    #[error("'{spec}' is not a code: rs(10,4) is one, and so is HDFS's RS-10-4-1024k")]
    Unreadable {
        /// The spec, cut short.
        spec: String,
    },
    /// No code has this name.
    #[error("there is no code '{name}': choose one of {known} (`weft code info` describes them)")]
    UnknownFamily {
        /// The name.
        name: String,
        /// The names of all codes.
        known: String,
    },
    /// The name is known, but the parameters make no code.
    #[error("{spec}: {problem}; it is written {usage}")]
    WrongArguments {
        /// The spec.
        spec: String,
        /// What is wrong.
        problem: String,
        /// What would be right.
        usage: String,
    },
    /// These parameters would make a code that does not keep what it promises.
    #[error("{code} would lose data: blocks {lost:?}, no more than its {m} parity blocks, could not be recovered; {remedy}")]
    NotMds {
        /// The code's spec.
        code: String,
        /// Its parity blocks.
        m: usize,
        /// As many blocks as there are parity blocks, that could not be recovered.
        lost: Vec<u8>,
        /// What would be right.
        remedy: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_read_in_any_case_and_spacing() {
        for (spec, canonical) in [
            ("rs(10,4)", "rs(10,4)"),
            (" RS ( 10 , 4 ) ", "rs(10,4)"),
            ("rs(6,3,matrix=cauchy)", "rs(6,3)"),
            ("rs(10,4, Matrix = Vandermonde)", "rs(10,4,matrix=vandermonde)"),
            ("RS-6-3-1024k", "rs(6,3)"),
            ("rs-10-4", "rs(10,4)"),
            ("XOR-2-1-1024k", "xor(2)"),
            ("LRC(12, 2, 2)", "lrc(12,2,2)"),
            ("hitchhiker-xor+ (10, 4)", "hitchhiker-xor+(10,4)"),
            ("Rotated-RS(6,3,r=2)", "rotated-rs(6,3)"),
            ("rotated-rs(6,3,r=4)", "rotated-rs(6,3,r=4)"),
            ("HSRC(7,3,d=3)", "hsrc(7,3)"),
        ] {
            assert_eq!(parse(spec).unwrap().spec(), canonical, "{spec}");
            assert_eq!(parse(canonical).unwrap().spec(), canonical);
        }
    }

    #[test]
    fn a_cell_size_comes_with_hdfs_spelling_only() {
        for (spec, cell_len) in
            [("RS-6-3-1024k", Some(1 << 20)), ("RS-6-3-1m", Some(1 << 20)), ("rs-6-3-4096", Some(4096)), ("rs(6,3)", None)]
        {
            assert_eq!(parse_policy(spec).unwrap().1, cell_len, "{spec}");
        }
    }

    #[test]
    fn what_is_no_code_is_told_what_would_be_one() {
        let long = "9".repeat(10_000);
        for (spec, says) in [
            ("", "rs(10,4) is one"),
            ("rs(10,4", "is not a code"),
            ("rs(10,,4)", "is not a code"),
            ("rs(10,4,matrix=)", "is not a code"),
            ("rs(-1,4)", "is not a code"),
            ("rs(99999999999999999999999,1)", "is not a code"),
            (&long, "is not a code"),
            ("rs-legacy-6-3-1024k", "is not a code"),
            ("rs-6-3-1024kk", "is not a code"),
            ("rs-6-3-0k", "is not a code"),
            ("XOR-2-2-1024k", "is not a code"),
            ("raid(5,1)", "there is no code 'raid': choose one of rs, xor, "),
            ("raid", "there is no code 'raid'"),
            ("rs", "its parameters are missing"),
            ("rotated-rs", "its parameters are missing"),
            ("rotated", "there is no code 'rotated'"),
            ("rs()", "it needs 2 numbers and has 0"),
            ("rs(10)", "it needs 2 numbers and has 1"),
            ("rs(10,4,2)", "it needs 2 numbers and has 3"),
            ("rs(10,4,color=red)", "there is no 'color'"),
            ("rs(10,4,matrix=cauchy,matrix=cauchy)", "'matrix' is said twice"),
            ("rs(10,4,matrix=hilbert)", "'hilbert'"),
            ("rs(0,4)", "k is at least 1"),
            ("rs(10,0)", "m is at least 1"),
            ("rs(200,56)", "at most 255"),
            ("RS-200-56-1024k", "at most 255"),
            ("rs(10,5,matrix=vandermonde)", "would lose data"),
        ] {
            let error = parse(spec).map(|code| code.spec()).expect_err(spec).to_string();
            assert!(error.contains(says), "{spec}: {error}");
        }
    }
}
