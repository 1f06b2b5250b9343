//! What requests choose: how lost blocks are brought back, and how new data gets to the nodes that store it.

use weft_plan::{ChosenPath, Class, Network, Precedence};
use weft_schemes::{AUTO, Kind, Paths, Select, check_name, simplest};
use weft_types::{AutoSize, Error, Layout, PAGE_LEN, Result, StripeLayout};

/// What a slice costs besides its bytes where nobody has measured it: a few system calls and wake-ups at both ends.
const SLICE_OVERHEAD_S: f64 = 20e-6;

/// How lost blocks are brought back.
#[derive(Debug, Clone)]
pub struct RepairOptions {
    /// The scheme's name, or `auto`.
    pub scheme: String,
    /// A slice of a block that is rebuilt.
    pub slice_len: AutoSize,
    /// The request set `slice_len`: it is used as it is.
    pub slice_asked: bool,
    /// How helpers are selected.
    pub select: Select,
    /// How paths are searched.
    pub paths: Paths,
    /// The caller asks for an explanation: a named scheme's cost is predicted too.
    pub explained: bool,
}

impl RepairOptions {
    /// Repairs by `scheme` in slices of `slice_len`.
    pub fn new(scheme: String, slice_len: AutoSize) -> Self {
        Self { scheme, slice_len, slice_asked: false, select: Select::default(), paths: Paths::default(), explained: false }
    }

    /// Applies a request. An empty scheme or 0 bytes keep what is set.
    pub fn with(self, scheme: &str, asked_bytes: u64, slice_auto: bool) -> Result<Self> {
        let scheme = if scheme.is_empty() { self.scheme } else { scheme.to_owned() };
        check_name(Kind::Repair, &scheme)?;
        let slice_len = match (slice_auto, asked_bytes) {
            (true, 0) => AutoSize::Auto,
            (true, _) => return Err(Error::invalid("the slice's length is both said and left open")),
            (false, 0) => self.slice_len,
            (false, bytes) => AutoSize::bytes(bytes),
        };
        check_slice_len("the slice's length", slice_len)?;
        Ok(Self { scheme, slice_len, slice_asked: asked_bytes > 0, ..self })
    }

    /// Positions of a slice of a block that is rebuilt. Where its length is left open, as for a chain of links that are all alike.
    pub fn slice_positions(&self, stripe: &StripeLayout, network: &Network) -> u64 {
        let bytes = match self.slice_len {
            AutoSize::Bytes(size) if self.slice_asked => return slice_positions(&stripe.layout, size.0),
            AutoSize::Bytes(size) => size.0,
            AutoSize::Auto => best_slice(stripe, &vec![network.link_bytes_per_s; stripe.k as usize], network),
        };
        usual_slice_positions(&stripe.layout, bytes)
    }

    /// The same for a path that was chosen, if the length is left open.
    pub fn slice_positions_on(&self, path: &ChosenPath, stripe: &StripeLayout, network: &Network) -> Option<u64> {
        let links: Vec<f64> = path.parties.windows(2).map(|pair| network.between(pair[0], pair[1])).collect();
        let is_open = self.slice_len == AutoSize::Auto && !links.is_empty();
        is_open.then(|| usual_slice_positions(&stripe.layout, best_slice(stripe, &links, network)))
    }
}

/// Bytes of a slice over links of so many bytes a second each.
fn best_slice(stripe: &StripeLayout, links: &[f64], network: &Network) -> u64 {
    let overhead_s = if network.slice_overhead_s > 0.0 { network.slice_overhead_s } else { SLICE_OVERHEAD_S };
    weft_schemes::slice_size(stripe.layout.block_len, links, overhead_s)
}

/// How new data gets to the nodes that store it.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// The scheme's name, or `auto`.
    pub scheme: String,
    /// Bytes of a slice of a block.
    slice_bytes: u64,
    /// Whether they were asked for.
    slice_is_asked: bool,
    /// Which node gets which block is left to chance.
    pub random: bool,
    /// The machine from which the writer calls.
    pub host: String,
    /// The agent that writes, by its name, in a conversion; empty: a client does.
    pub agent: String,
}

impl WriteOptions {
    /// Writes by `scheme` in slices of `slice_bytes`; `slice_is_asked` if the request set them.
    pub fn new(scheme: String, slice_bytes: u64, slice_is_asked: bool) -> Result<Self> {
        check_name(Kind::Write, &scheme)?;
        check_slice_len("the slice's length", AutoSize::bytes(slice_bytes))?;
        Ok(Self { scheme, slice_bytes, slice_is_asked, random: false, host: String::new(), agent: String::new() })
    }

    /// Nobody waits for what an agent writes.
    pub fn precedence(&self) -> Precedence {
        if self.agent.is_empty() { Class::Foreground.into() } else { Precedence::MOVE }
    }

    /// Whether it is left to predictions.
    pub fn is_left_open(&self) -> bool {
        self.scheme == AUTO
    }

    /// By the scheme that asks the least of everybody but the writer.
    pub fn by_the_simplest(self) -> Self {
        let scheme = simplest(Kind::Write).map_or(self.scheme, |simplest| simplest.name().into());
        Self { scheme, ..self }
    }

    /// Positions of a slice.
    pub fn slice_positions(&self, layout: &Layout) -> u64 {
        let positions = if self.slice_is_asked { slice_positions } else { usual_slice_positions };
        positions(layout, self.slice_bytes)
    }
}

/// A slice of all sub-blocks together, if there are several and nobody asks for another: smaller pieces of each would be costly to
/// read and to send.
const VECTOR_SLICE_BYTES: u64 = 1 << 20;

/// Positions of a slice where `bytes` is what a setting says.
pub fn usual_slice_positions(layout: &Layout, bytes: u64) -> u64 {
    slice_positions(layout, if layout.alpha == 1 { bytes } else { bytes.max(VECTOR_SLICE_BYTES) })
}

/// Positions of a slice of about `bytes`; whole pages, as disks and checksums have them, and no more than a cell has.
pub fn slice_positions(layout: &Layout, bytes: u64) -> u64 {
    if layout.alpha == 1 {
        return bytes;
    }
    let of_one = bytes / u64::from(layout.alpha) / PAGE_LEN * PAGE_LEN;
    of_one.clamp(PAGE_LEN, layout.sub_len().max(PAGE_LEN))
}

/// The longest slice that may be asked for: more of it in the agents' memory speeds up nothing.
pub const SLICE_BYTES_MAX: u64 = 64 << 20;

/// Whether slices of this length are whole pages, and not too long.
pub fn check_slice_len(name: &str, len: AutoSize) -> Result<()> {
    match len {
        AutoSize::Bytes(size) if size.0 == 0 || !size.0.is_multiple_of(PAGE_LEN) => {
            Err(Error::invalid(format!("{name} is {size}: it must be a multiple of {}", weft_types::ByteSize(PAGE_LEN))))
        }
        AutoSize::Bytes(size) if size.0 > SLICE_BYTES_MAX => {
            Err(Error::invalid(format!("{name} is {size}: at most {} is possible", weft_types::ByteSize(SLICE_BYTES_MAX))))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_whole_pages_or_left_open() {
        let options = || RepairOptions {
            scheme: "auto".into(),
            slice_len: AutoSize::bytes(64 << 10),
            slice_asked: false,
            select: Select::default(),
            paths: Paths::default(),
            explained: false,
        };
        assert_eq!(options().with("", 0, false).unwrap().slice_len, AutoSize::bytes(64 << 10));
        assert_eq!(options().with("ppr", 0, true).unwrap().slice_len, AutoSize::Auto);
        assert_eq!(options().with("", 8192, false).unwrap().slice_len, AutoSize::bytes(8192));
        let layout = weft_types::Layout::new(2 << 20, 2 << 20, 8).unwrap();
        let stripe = StripeLayout { layout, k: 4, m: 4, data_len: 8 << 20 };
        let positions = |bytes| options().with("", bytes, false).unwrap().slice_positions(&stripe, &Network::uniform(125e6));
        assert_eq!([0, 64 << 10, 256 << 10].map(positions), [128 << 10, 8 << 10, 32 << 10], "what is asked for is what is done");
        for (scheme, len, auto, says) in [
            ("", 1000, false, "is 1000"),
            ("", 65 << 20, false, "at most 64MiB"),
            ("", 4096, true, "both said"),
            ("pigeon", 0, false, "no repair scheme 'pigeon'"),
        ] {
            assert!(options().with(scheme, len, auto).unwrap_err().message.contains(says));
        }
    }
}
