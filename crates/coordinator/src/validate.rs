//! Checks requests: names, keys, codes and sizes. Every error says what would be valid.

pub(crate) mod jobs;

use weft_codes::SharedCode;
use weft_meta::PolicyRecord;
use weft_proto::v1;
use weft_types::{
    Ack, ByteSize, CELL_BYTES_USUAL, Error, FailureDomain, Layout, ObjectName, PAGE_LEN, REPLICAS_MAX, Result, UpdatesInPlace,
    usual_cell_len,
};

/// The most bytes in the name of a bucket, a policy or a node.
const NAME_BYTES_MAX: usize = 63;
/// The most bytes in the name of a rack or a zone.
const LABEL_BYTES_MAX: usize = 255;
/// The most bytes of a key.
const KEY_BYTES_MAX: usize = 1024;
/// The largest block, so that the checksums of a stripe fit in one message.
const BLOCK_BYTES_MAX: u64 = 4 << 30;

/// How an object is coded.
#[derive(Debug, Clone)]
pub(crate) struct Coding {
    pub(crate) code: SharedCode,
    pub(crate) layout: Layout,
}

/// Checks a name; `what` is the kind of thing it names.
pub(crate) fn name(what: &str, name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins_well && name.len() <= NAME_BYTES_MAX && name.chars().all(good) {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_BYTES_MAX).flat_map(char::escape_default).collect();
    Err(Error::invalid(format!(
        "'{shown}' is not a valid name for a {what}: use 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.', starting with a \
         letter or a digit"
    )))
}

/// Checks the name of a rack or zone.
pub(crate) fn label(what: &str, label: &str) -> Result<()> {
    if (1..=LABEL_BYTES_MAX).contains(&label.len()) && !label.contains(char::is_control) {
        return Ok(());
    }
    Err(Error::invalid(format!("the name of a {what} must have 1 to {LABEL_BYTES_MAX} bytes and no control characters")))
}

/// Checks an object's name.
pub(crate) fn object(bucket: &str, key: &str) -> Result<ObjectName> {
    name("bucket", bucket)?;
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::invalid(format!("a key must have 1 to {KEY_BYTES_MAX} bytes, not {}", key.len())));
    }
    if let Some(at) = key.find(char::is_control) {
        return Err(Error::invalid(format!("a key must not have control characters: this one has one at byte {at}")));
    }
    Ok(ObjectName { bucket: bucket.to_owned(), key: key.to_owned() })
}

/// Parses a code and its sizes. A size of 0 is taken from `fallback`, adjusted to the requested one if they do not fit.
pub(crate) fn coding(spec: &str, block_len: u64, cell_len: u64, fallback: Option<&PolicyRecord>) -> Result<Coding> {
    let (code, spelled_cell) = weft_codes::parse_policy(spec).map_err(Error::invalid)?;
    let alpha = u32::try_from(code.alpha()).map_err(|_| Error::invalid(format!("{spec} has too many sub-blocks")))?;
    let asked = |len: u64| (len > 0).then_some(len);
    let cell_asked = asked(cell_len).or(spelled_cell);
    // Requested sizes are checked first, so that errors are about them.
    for (what, len) in [("block", asked(block_len)), ("cell", cell_asked)] {
        len.map_or(Ok(()), |len| check_size(&code, what, len, alpha, fallback))?;
    }
    let block_len = match (asked(block_len), fallback) {
        (Some(asked), _) => asked,
        (None, Some(policy)) => {
            let cell_len = cell_asked.unwrap_or_else(|| cell_len_of(policy, &code));
            (policy.block_len / cell_len).max(1).saturating_mul(cell_len)
        }
        (None, None) => return Err(Error::invalid("the block size must be greater than zero")),
    };
    let cell_len = match (cell_asked, fallback) {
        (Some(asked), _) => asked,
        (None, Some(policy)) => cell_len_within(block_len, cell_len_of(policy, &code), alpha),
        (None, None) => return Err(Error::invalid("the cell size must be greater than zero")),
    };
    Ok(Coding { code, layout: Layout::new(block_len, cell_len, alpha)? })
}

/// Checks a size: sub-blocks must be whole pages, because pages are the unit of reads and checks.
fn check_size(code: &SharedCode, what: &str, len: u64, alpha: u32, fallback: Option<&PolicyRecord>) -> Result<()> {
    if len > BLOCK_BYTES_MAX {
        let (asked, most) = (ByteSize(len), ByteSize(BLOCK_BYTES_MAX));
        return Err(Error::invalid(format!("a {what} of {asked} is too large: at most {most}")));
    }
    let unit = PAGE_LEN * u64::from(alpha);
    if len.is_multiple_of(unit) {
        return Ok(());
    }
    // Suggests whole cells of the length that would be chosen, if the size has that many.
    let cell_len = fallback.map_or(unit, |policy| cell_len_of(policy, code));
    let step = if len < cell_len { unit } else { cell_len };
    let (below, above) = (len / step * step, len.next_multiple_of(step));
    let would = [below, above].into_iter().filter(|len| (1..=BLOCK_BYTES_MAX).contains(len)).map(|len| ByteSize(len).to_string());
    let (asked, would) = (ByteSize(len), would.collect::<Vec<_>>().join(" or "));
    let why = match alpha {
        1 => "whole pages".to_owned(),
        _ => format!("{alpha} sub-blocks of whole pages"),
    };
    let (unit, spec) = (ByteSize(unit), code.spec());
    Err(Error::invalid(format!("a {what} of {asked} is not a multiple of {unit} ({spec} has {why}): use {would}")))
}

/// The cell length of a policy for a code: for the policy's own code, the one set when the policy was created.
fn cell_len_of(policy: &PolicyRecord, code: &SharedCode) -> u64 {
    match code.spec() == policy.code {
        true => policy.cell_len,
        false => usual_cell_len(policy.cell_len, code.alpha() as u32),
    }
}

/// The shortest cell that divides the block, has whole pages in each sub-block, and is at least as long as the best
/// length; the whole block if there is none.
fn cell_len_within(block_len: u64, best: u64, alpha: u32) -> u64 {
    let unit = PAGE_LEN * u64::from(alpha);
    let fits = |count: &u64| block_len.is_multiple_of(*count) && (block_len / count).is_multiple_of(unit);
    block_len / (1..=block_len / best).rev().find(fits).unwrap_or(1)
}

/// Reads a policy.
pub(crate) fn policy(asked: &v1::Policy) -> Result<PolicyRecord> {
    name("policy", &asked.name)?;
    let Coding { code, layout } = coding(&asked.code, asked.block_len, asked.cell_len, Some(&default_policy()))?;
    Ok(PolicyRecord {
        name: asked.name.clone(),
        code: code.spec(),
        block_len: layout.block_len,
        cell_len: layout.cell_len,
        failure_domain: failure_domain(&asked.failure_domain)?,
        ack: ack(&asked.ack, &code)?,
        replicas: replicas(asked.replicas)?,
        updates: updates_in_place(&asked.updates)?,
        is_default: asked.is_default,
    })
}

/// The policy of a new cluster. It tolerates the loss of three blocks of nine at a cost of 50 % more disk space. Three
/// racks suffice to survive the loss of one, and nine nodes to start with; wider codes save little more and need many
/// more nodes. Blocks of 64 MiB keep the metadata small. Cells of 1 MiB let a put start to send early.
pub(crate) fn default_policy() -> PolicyRecord {
    PolicyRecord {
        name: "default".into(),
        code: "rs(6,3)".into(),
        block_len: 64 << 20,
        cell_len: CELL_BYTES_USUAL,
        failure_domain: FailureDomain::Rack,
        ack: Ack { missing_max: 0 },
        replicas: 1,
        updates: UpdatesInPlace::Allowed,
        is_default: true,
    }
}

fn updates_in_place(text: &str) -> Result<UpdatesInPlace> {
    let known = UpdatesInPlace::ALL.into_iter().find(|known| known.name() == text || text.is_empty());
    known.ok_or_else(|| Error::invalid(format!("'{text}' says nothing about updates in place: use allowed or refused")))
}

pub(crate) fn failure_domain(text: &str) -> Result<FailureDomain> {
    match text {
        "" | "rack" => Ok(FailureDomain::Rack),
        "node" => Ok(FailureDomain::Node),
        other => Err(Error::invalid(format!("'{other}' is not a failure domain: use rack or node"))),
    }
}

/// When a put is acknowledged: its own rule, or that of its bucket's policy. With another code than the policy's, the
/// put waits for the same number of blocks beyond k, and no more may be missing.
pub(crate) fn ack_of_put(text: &str, code: &SharedCode, policy: &PolicyRecord) -> Result<Ack> {
    if !text.is_empty() {
        return ack(text, code);
    }
    let missing_max = policy.ack.missing_max;
    if missing_max == 0 || code.spec() == policy.code {
        return Ok(policy.ack);
    }
    let of_policy = weft_codes::parse(&policy.code).map_err(Error::invalid)?;
    let more_than_k = (of_policy.m() as u32).saturating_sub(missing_max);
    let may_miss = (code.m() as u32).saturating_sub(more_than_k).min(code.tolerance() as u32);
    Ok(Ack { missing_max: missing_max.min(may_miss) })
}

/// Parses an acknowledgement rule. The put also waits until the missing blocks can be rebuilt from the others: with
/// `k+N`, more may be missing than the loss of which the code always tolerates.
fn ack(text: &str, code: &SharedCode) -> Result<Ack> {
    let wrong = || {
        let text: String = text.chars().take(NAME_BYTES_MAX).flat_map(char::escape_default).collect();
        Error::invalid(format!(
            "'{text}' is not an ack rule: use all, k+N (k+N blocks are durable) or tolerate=N (N blocks may be missing)"
        ))
    };
    let count = |count: &str| count.parse::<u32>().map_err(|_| wrong());
    let (spec, m, tolerance) = (code.spec(), code.m() as u32, code.tolerance() as u32);
    if matches!(text, "" | "all") {
        return Ok(Ack { missing_max: 0 });
    }
    if let Some(more) = text.strip_prefix("k+") {
        let missing_max = m.checked_sub(count(more)?);
        let missing_max = missing_max.ok_or_else(|| Error::invalid(format!("{spec} has k+{m} blocks, not {text}")))?;
        return Ok(Ack { missing_max });
    }
    let missing_max = count(text.strip_prefix("tolerate=").ok_or_else(wrong)?)?;
    if missing_max > tolerance {
        return Err(Error::invalid(format!("{spec} tolerates {tolerance} missing blocks, not {missing_max}")));
    }
    Ok(Ack { missing_max })
}

/// Parses a number of copies of a data block, including the coded one; 0: one.
pub(crate) fn replicas(asked: u32) -> Result<u8> {
    let replicas = u8::try_from(asked.max(1)).ok().filter(|replicas| *replicas <= REPLICAS_MAX);
    replicas.ok_or_else(|| Error::invalid(format!("{asked} copies of each data block are too many: at most {REPLICAS_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::SUB_BLOCK_BYTES_GOOD;

    #[test]
    fn names_and_keys() {
        for good in ["a", "photos", "Photos-2024.old_1", "0"] {
            assert_eq!(name("bucket", good), Ok(()), "{good}");
        }
        for bad in ["", ".a", "-", "a/b", "a b", "ä", "a\n", &"x".repeat(64)] {
            let error = name("bucket", bad).unwrap_err();
            assert!(error.message.contains("a bucket: use 1 to 63 letters, digits"), "{error}");
            assert!(!error.message.contains('\n'));
        }
        assert_eq!(label("rack", "row 3, rack ä"), Ok(()));
        assert!(label("rack", "").is_err() && label("rack", "a\nb").is_err());
        assert!(object("b", "any / key ä").is_ok());
        assert!(object("b", "").unwrap_err().message.contains("1 to 1024"));
        assert!(object("b", &"k".repeat(1025)).unwrap_err().message.contains("1025"));
        assert!(object("b", "a\u{7}b").unwrap_err().message.contains("at byte 1"));
    }

    #[test]
    fn codes_and_sizes() {
        let policy = default_policy();
        let sizes = |coding: Coding| (coding.code.spec(), coding.layout.block_len, coding.layout.cell_len);
        let of = |spec, block, cell| coding(spec, block, cell, Some(&policy)).map(sizes);
        assert_eq!(of("rs(10,4)", 0, 0), Ok(("rs(10,4)".into(), 64 << 20, 1 << 20)));
        assert_eq!(of("RS-6-3-1024k", 4 << 20, 0), Ok(("rs(6,3)".into(), 4 << 20, 1 << 20)));
        assert_eq!(of("rs(4,2)", 64 << 10, 0), Ok(("rs(4,2)".into(), 64 << 10, 64 << 10)), "the cell is adjusted");

        let message = |spec, block, cell| of(spec, block, cell).unwrap_err().message;
        assert!(message("rs(4,2)", 10 << 20, 3 << 20).contains("does not divide"));
        assert!(message("rs(4,2)", 3000, 3000).contains("a block of 3000 is not a multiple of 4KiB (rs(4,2) has whole pages"));
        assert!(message("rs(4,2)", 1 << 50, 0).contains("at most 4GiB"));
        assert!(!message("rs(0,2)", 0, 0).is_empty());
        assert!(!message("nonsense(4,2)", 0, 0).is_empty());
        assert!(coding("rs(4,2)", 0, 0, None).unwrap_err().message.contains("greater than zero"));
        assert_eq!(of("rs(4,2)", 0, 3 << 20), Ok(("rs(4,2)".into(), 63 << 20, 3 << 20)), "the block is adjusted");
    }

    #[test]
    fn sub_blocks_are_large_unless_a_size_is_requested() {
        let policy = default_policy();
        let of = |spec, block, cell| coding(spec, block, cell, Some(&policy)).unwrap().layout;
        for (spec, alpha, block_len, cell_len) in [
            ("msr(3,3,d=5)", 3, 63 << 20, 1152 << 10),
            ("msr(5,5,d=9)", 5, 65_280 << 10, 1280 << 10),
            ("msr(3,7)", 7, 64_512 << 10, 1344 << 10),
            ("butterfly(4)", 8, 64 << 20, 1 << 20),
            ("clay(12,3)", 243, 62_208 << 10, 15_552 << 10),
            ("butterfly(10)", 512, 64 << 20, 32 << 20),
        ] {
            let layout = of(spec, 0, 0);
            assert_eq!((layout.alpha, layout.block_len, layout.cell_len), (alpha, block_len, cell_len), "{spec}");
            assert!(layout.sub_len() >= SUB_BLOCK_BYTES_GOOD);
        }
        // A requested block length gets the shortest sufficient cells that divide it, or is one cell.
        for (spec, block_len, cell_len) in [
            ("msr(3,3,d=5)", 60 << 20, 1536 << 10),
            ("msr(3,3,d=5)", 12 << 10, 12 << 10),
            ("msr(3,3,d=5)", 1020 << 10, 1020 << 10),
            ("butterfly(4)", 4 << 20, 1 << 20),
            ("butterfly(4)", 1568 << 10, 1568 << 10),
            ("clay(12,3)", 972 << 10, 972 << 10),
        ] {
            assert_eq!((of(spec, block_len, 0).block_len, of(spec, block_len, 0).cell_len), (block_len, cell_len), "{spec}");
        }
        assert_eq!(of("msr(3,3,d=5)", 0, 12 << 10), Layout::new(65_532 << 10, 12 << 10, 3).unwrap(), "the block is adjusted");
        assert_eq!(of("msr(3,3,d=5)", 24 << 10, 12 << 10), Layout::new(24 << 10, 12 << 10, 3).unwrap());
    }

    #[test]
    fn puts_without_sizes_use_those_of_the_policy() {
        for (spec, block_len, cell_len) in [
            ("rs(4,2)", 3 << 20, 0),
            ("rs(4,2)", 64 << 10, 0),
            ("msr(3,3,d=5)", 1020 << 10, 0),
            ("msr(3,3,d=5)", 24 << 10, 12 << 10),
            ("clay(12,3)", 972 << 10, 0),
            ("butterfly(4)", 0, 0),
        ] {
            let asked = v1::Policy { name: "p".into(), code: spec.into(), block_len, cell_len, ..v1::Policy::default() };
            let policy = policy(&asked).unwrap();
            let layout = coding(&policy.code, 0, 0, Some(&policy)).unwrap().layout;
            assert_eq!((layout.block_len, layout.cell_len), (policy.block_len, policy.cell_len), "{spec}");
            assert!(block_len == 0 || layout.block_len == block_len, "{spec}");
        }
    }

    #[test]
    fn an_unsuitable_size_is_refused_with_a_suitable_one() {
        let policy = default_policy();
        let says = |spec, block, cell, text: &str| {
            let error = coding(spec, block, cell, Some(&policy)).unwrap_err().message;
            assert!(error.contains(text), "{error}");
        };
        let spec = "msr(3,3,d=5)";
        says(spec, 64 << 20, 0, "a block of 64MiB is not a multiple of 12KiB (msr(3,3) has 3 sub-blocks of whole pages");
        says(spec, 64 << 20, 0, ": use 63MiB or 65664KiB");
        says(spec, 100 << 10, 0, "a block of 100KiB is not a multiple of 12KiB");
        says(spec, 100 << 10, 0, ": use 96KiB or 108KiB");
        says(spec, 4096, 0, ": use 12KiB");
        says(spec, 4 << 30, 0, ": use 4095MiB");
        says(spec, 0, 8 << 10, "a cell of 8KiB is not a multiple of 12KiB");
        says("clay(12,3)", 1 << 20, 0, "a block of 1MiB is not a multiple of 972KiB (clay(12,3) has 243 sub-blocks");
        says("clay(12,3)", 1 << 20, 0, ": use 972KiB or 1944KiB");
        says(spec, 36 << 10, 24 << 10, "does not divide the block size");
    }

    #[test]
    fn policies() {
        let asked =
            v1::Policy { name: "wide".into(), code: "rs(10,4)".into(), ack: "tolerate=2".into(), ..v1::Policy::default() };
        let wide = policy(&asked).unwrap();
        assert_eq!((wide.ack, wide.failure_domain, wide.block_len), (Ack { missing_max: 2 }, FailureDomain::Rack, 64 << 20));
        let message = |asked: v1::Policy| policy(&asked).unwrap_err().message;
        assert!(message(v1::Policy { ack: "tolerate=5".into(), ..asked.clone() }).contains("tolerates 4"));
        assert!(message(v1::Policy { ack: "most".into(), ..asked.clone() }).contains("tolerate=N"));
        assert!(message(v1::Policy { ack: "k+5".into(), ..asked.clone() }).contains("k+4"));
        assert!(message(v1::Policy { failure_domain: "zone".into(), ..asked }).contains("rack or node"));
        assert!(!policy(&v1::Policy { code: "rs(6,3)".into(), name: "p".into(), ..v1::Policy::default() }).unwrap().is_default);
    }

    #[test]
    fn an_ack_rule_counts_durable_or_missing_blocks() {
        let code = |spec| weft_codes::parse(spec).unwrap();
        let missing = |text, spec| ack(text, &code(spec)).map(|ack| ack.missing_max).map_err(|error| error.message);
        assert_eq!(
            ["", "all", "k+1", "k+4", "k+0", "tolerate=3"].map(|text| missing(text, "rs(10,4)")),
            [0, 0, 3, 0, 4, 3].map(Ok)
        );
        assert_eq!(missing("k+1", "lrc(4,2,2)"), Ok(3), "whether these suffice is checked later");
        for text in ["k", "k+", "k+-1", "k+x", "tolerate=", "most", "ALL"] {
            assert!(missing(text, "rs(10,4)").unwrap_err().contains("is not an ack rule"), "{text}");
        }
        let policy =
            |text| PolicyRecord { code: "rs(10,4)".into(), ack: ack(text, &code("rs(10,4)")).unwrap(), ..default_policy() };
        let of_put = |said, spec, policy| ack_of_put(said, &code(spec), &policy).unwrap().missing_max;
        assert_eq!(of_put("", "rs(10,4)", policy("k+1")), 3);
        assert_eq!(of_put("all", "rs(10,4)", policy("k+1")), 0);
        assert_eq!(of_put("k+1", "rs(4,2)", policy("all")), 1);
        assert_eq!(of_put("", "rs(4,2)", policy("k+1")), 1, "k+1 blocks are durable with this code, too");
        assert_eq!(of_put("", "rs(4,2)", policy("tolerate=1")), 0);
        assert_eq!(of_put("", "rs(12,8)", policy("tolerate=1")), 1);
    }
}
