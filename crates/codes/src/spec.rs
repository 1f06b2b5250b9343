//! Specs: the notation of codes. `family(1,2,key=value)`, in any case and with blanks between words, or HDFS's policy
//! names: `RS-6-3-1024k`.

use crate::{FAMILIES, Family, SharedCode};

/// The most bytes of a spec.
const SPEC_BYTES_MAX: usize = 200;

/// Parses a spec. A cell size, as in HDFS's notation, is ignored: [`parse_policy`] returns it too.
pub fn parse(spec: &str) -> Result<SharedCode, SpecError> {
    parse_policy(spec).map(|(code, _)| code)
}

/// Parses a spec; also returns the cell size in bytes, if the spec has one (`RS-6-3-1024k`: 1 MiB).
pub fn parse_policy(spec: &str) -> Result<(SharedCode, Option<u64>), SpecError> {
    let unreadable = || SpecError::Unreadable { spec: spec.chars().take(40).collect() };
    if spec.len() > SPEC_BYTES_MAX {
        return Err(unreadable());
    }
    // Blanks are allowed around words, not within them.
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

/// The arguments in parentheses.
#[derive(Debug, Clone)]
pub struct Arguments<'a> {
    spec: &'a str,
    positional: Vec<usize>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> Arguments<'a> {
    /// Exactly `N` numbers; no keys other than `keys`, and none twice.
    pub fn numbers<const N: usize>(&self, usage: &str, keys: &[&str]) -> Result<[usize; N], SpecError> {
        for (at, (key, _)) in self.named.iter().enumerate() {
            if !keys.contains(key) {
                return Err(self.wrong(usage, format!("unknown parameter '{key}'")));
            }
            if self.named[..at].iter().any(|(earlier, _)| earlier == key) {
                return Err(self.wrong(usage, format!("'{key}' is given twice")));
            }
        }
        let found = self.positional.len();
        let numbers: &[usize; N] = (self.positional.as_slice().try_into())
            .map_err(|_| self.wrong(usage, format!("it needs {N} numbers, but has {found}")))?;
        Ok(*numbers)
    }

    /// The value of a key, if it is given.
    pub fn value(&self, key: &str) -> Option<&'a str> {
        self.named.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    /// The error for invalid arguments, with the expected form.
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

/// The error for a name without arguments: a family without its arguments, or an unknown name.
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

/// Converts HDFS's `CODEC-k-m-cell` to one of our specs, with the cell's bytes. Its RS and XOR are the same as ours.
/// Its RS-LEGACY is a different code, which weft does not have, and is not accepted as RS.
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

/// An invalid spec, with a hint at valid ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// It cannot be parsed.
    #[error("'{spec}' is not a code: use, for example, rs(10,4) or HDFS's RS-10-4-1024k")]
    Unreadable {
        /// The spec, shortened.
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
    /// The parameters are invalid.
    #[error("{spec}: {problem}; the form is {usage}")]
    WrongArguments {
        /// The spec.
        spec: String,
        /// What is wrong.
        problem: String,
        /// The expected form.
        usage: String,
    },
    /// The code would not be MDS with these parameters.
    #[error("{code} would lose data: blocks {lost:?}, no more than its {m} parity blocks, could not be recovered; {remedy}")]
    NotMds {
        /// The code's spec.
        code: String,
        /// Its parity blocks.
        m: usize,
        /// As many blocks as there are parity blocks, which could not be recovered.
        lost: Vec<u8>,
        /// What to use instead.
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
    fn only_hdfs_names_contain_a_cell_size() {
        for (spec, cell_len) in
            [("RS-6-3-1024k", Some(1 << 20)), ("RS-6-3-1m", Some(1 << 20)), ("rs-6-3-4096", Some(4096)), ("rs(6,3)", None)]
        {
            assert_eq!(parse_policy(spec).unwrap().1, cell_len, "{spec}");
        }
    }

    #[test]
    fn an_invalid_spec_gets_an_error_that_names_valid_ones() {
        let long = "9".repeat(10_000);
        for (spec, says) in [
            ("", "rs(10,4) or HDFS's"),
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
            ("rs()", "it needs 2 numbers, but has 0"),
            ("rs(10)", "it needs 2 numbers, but has 1"),
            ("rs(10,4,2)", "it needs 2 numbers, but has 3"),
            ("rs(10,4,color=red)", "unknown parameter 'color'"),
            ("rs(10,4,matrix=cauchy,matrix=cauchy)", "'matrix' is given twice"),
            ("rs(10,4,matrix=hilbert)", "'hilbert'"),
            ("rs(0,4)", "k must be at least 1"),
            ("rs(10,0)", "m must be at least 1"),
            ("rs(200,56)", "at most 255"),
            ("RS-200-56-1024k", "at most 255"),
            ("rs(10,5,matrix=vandermonde)", "would lose data"),
        ] {
            let error = parse(spec).map(|code| code.spec()).expect_err(spec).to_string();
            assert!(error.contains(says), "{spec}: {error}");
        }
    }
}
