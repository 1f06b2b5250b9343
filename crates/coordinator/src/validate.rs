//! What may be asked: names, keys, codes and sizes. Every message says what would be right.

use weft_codes::SharedCode;
use weft_meta::{Ack, FailureDomain, ObjectName, PolicyRecord};
use weft_proto::v1;
use weft_types::{ByteSize, Error, Layout, PAGE_LEN, Result};

/// The longest name of a bucket, a policy or a node, bytes.
const NAME_BYTES_MAX: usize = 63;
/// The longest name of a rack or a zone, bytes.
const LABEL_BYTES_MAX: usize = 255;
/// The longest key, bytes.
const KEY_BYTES_MAX: usize = 1024;
/// The largest block of a cluster: the checksums of a stripe of them still fit into one message.
const BLOCK_BYTES_MAX: u64 = 4 << 30;

/// How an object is coded.
#[derive(Debug, Clone)]
pub(crate) struct Coding {
    pub(crate) code: SharedCode,
    pub(crate) layout: Layout,
}

/// Refuses a name that is not one: `what` says of what.
pub(crate) fn name(what: &str, name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins_well && name.len() <= NAME_BYTES_MAX && name.chars().all(good) {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_BYTES_MAX).flat_map(char::escape_default).collect();
    Err(Error::invalid(format!(
        "'{shown}' is not a name for a {what}: letters, digits, '-', '_' and '.' are, 1 to {NAME_BYTES_MAX} of them, the first a \
         letter or a digit"
    )))
}

/// Refuses a label of a place that cannot be printed.
pub(crate) fn label(what: &str, label: &str) -> Result<()> {
    if (1..=LABEL_BYTES_MAX).contains(&label.len()) && !label.contains(char::is_control) {
        return Ok(());
    }
    Err(Error::invalid(format!("the name of a {what} has 1 to {LABEL_BYTES_MAX} bytes and no control characters")))
}

/// Refuses an object's name that is not one.
pub(crate) fn object(bucket: &str, key: &str) -> Result<ObjectName> {
    name("bucket", bucket)?;
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::invalid(format!("a key has 1 to {KEY_BYTES_MAX} bytes, not {}", key.len())));
    }
    if let Some(at) = key.find(char::is_control) {
        return Err(Error::invalid(format!("a key has no control characters; this one has one at byte {at}")));
    }
    Ok(ObjectName { bucket: bucket.to_owned(), key: key.to_owned() })
}

/// Reads a code and its sizes; 0 means that `fallback` says the size, as far as it fits.
pub(crate) fn coding(spec: &str, block_len: u64, cell_len: u64, fallback: Option<&PolicyRecord>) -> Result<Coding> {
    let (code, spelled_cell) = weft_codes::parse_policy(spec).map_err(Error::invalid)?;
    let asked_block_len = block_len;
    let block_len = match (block_len, fallback) {
        (0, Some(policy)) => policy.block_len,
        (0, None) => return Err(Error::invalid("the block size must be greater than zero")),
        (said, _) => said,
    };
    let alpha = u32::try_from(code.alpha()).map_err(|_| Error::invalid(format!("{spec} has too many sub-blocks")))?;
    let block_asked = asked_block_len > 0;
    // What was not asked for gives way to what was.
    let (block_len, cell_len) = match (cell_len, spelled_cell, fallback) {
        (0, Some(spelled), _) => (block_len, spelled),
        (0, None, Some(policy)) if alpha == 1 => (block_len, policy.cell_len.min(block_len)),
        (0, None, Some(policy)) => {
            let cell_len = Layout::vector_cell_len(policy.cell_len, alpha);
            match block_asked {
                true if block_len.is_multiple_of(cell_len) => (block_len, cell_len),
                true => (block_len, block_len),
                false => ((block_len / cell_len).max(1) * cell_len, cell_len),
            }
        }
        (0, None, None) => return Err(Error::invalid("the cell size must be greater than zero")),
        (said, ..) => (block_len, said),
    };
    if block_len > BLOCK_BYTES_MAX {
        let (asked, most) = (ByteSize(block_len), ByteSize(BLOCK_BYTES_MAX));
        return Err(Error::invalid(format!("a block of {asked} is too large: at most {most}")));
    }
    let layout = Layout::new(block_len, cell_len, alpha)?;
    let unit = PAGE_LEN * u64::from(alpha);
    if !cell_len.is_multiple_of(unit) {
        let (cell, unit) = (ByteSize(cell_len), ByteSize(unit));
        let message = match alpha {
            1 => format!("the cell size {cell} is not a multiple of {unit}: in a cluster it must be"),
            _ => {
                format!("the cell size {cell} is not a multiple of {unit}, {alpha} sub-blocks of a page: in a cluster it must be")
            }
        };
        return Err(Error::invalid(message));
    }
    Ok(Coding { code, layout })
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
        is_default: asked.is_default,
    })
}

/// The policy of a new cluster. Three blocks of nine may be lost for half as much again on disk, three racks are enough to
/// survive the loss of one, and nine nodes to begin with: wider codes save little more and ask for many more nodes. Blocks of
/// 64 MiB keep the metadata small; cells of 1 MiB let the first bytes of a put leave before the last have come in.
pub(crate) fn default_policy() -> PolicyRecord {
    PolicyRecord {
        name: "default".into(),
        code: "rs(6,3)".into(),
        block_len: 64 << 20,
        cell_len: 1 << 20,
        failure_domain: FailureDomain::Rack,
        ack: Ack { missing_max: 0 },
        is_default: true,
    }
}

fn failure_domain(text: &str) -> Result<FailureDomain> {
    match text {
        "" | "rack" => Ok(FailureDomain::Rack),
        "node" => Ok(FailureDomain::Node),
        other => Err(Error::invalid(format!("'{other}' is not a failure domain: rack and node are"))),
    }
}

fn ack(text: &str, code: &SharedCode) -> Result<Ack> {
    let wrong = || Error::invalid(format!("'{text}' is not an ack rule: all is, and tolerate=N, N blocks may be missing"));
    let missing_max = match text {
        "" | "all" => 0,
        other => other.strip_prefix("tolerate=").and_then(|count| count.parse().ok()).ok_or_else(wrong)?,
    };
    if missing_max as usize > code.tolerance() {
        let (spec, tolerance) = (code.spec(), code.tolerance());
        return Err(Error::invalid(format!("{spec} tolerates {tolerance} missing blocks, not {missing_max}")));
    }
    Ok(Ack { missing_max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys() {
        for good in ["a", "photos", "Photos-2024.old_1", "0"] {
            assert_eq!(name("bucket", good), Ok(()), "{good}");
        }
        for bad in ["", ".a", "-", "a/b", "a b", "ä", "a\n", &"x".repeat(64)] {
            let error = name("bucket", bad).unwrap_err();
            assert!(error.message.contains("a bucket: letters, digits"), "{error}");
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
        assert_eq!(of("rs(4,2)", 64 << 10, 0), Ok(("rs(4,2)".into(), 64 << 10, 64 << 10)), "the cell gives way");

        let message = |spec, block, cell| of(spec, block, cell).unwrap_err().message;
        assert!(message("rs(4,2)", 10 << 20, 3 << 20).contains("does not divide"));
        assert!(message("rs(4,2)", 3000, 3000).contains("multiple of 4KiB"));
        assert!(message("rs(4,2)", 1 << 50, 0).contains("at most 4GiB"));
        assert!(!message("rs(0,2)", 0, 0).is_empty());
        assert!(!message("nonsense(4,2)", 0, 0).is_empty());
        assert!(coding("rs(4,2)", 0, 0, None).unwrap_err().message.contains("greater than zero"));
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
        assert!(message(v1::Policy { failure_domain: "zone".into(), ..asked }).contains("rack and node"));
        assert!(!policy(&v1::Policy { code: "rs(6,3)".into(), name: "p".into(), ..v1::Policy::default() }).unwrap().is_default);
    }
}
