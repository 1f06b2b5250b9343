//! The choices of requests: how lost blocks are rebuilt, and how new data gets to the nodes that store it.

use weft_plan::{ChosenPath, Class, Network, Precedence};
use weft_schemes::{
    AUTO, Kind, Named as _, Paths, Select, check_name,
    path::{Selector, Tabu},
    simplest,
    update::{Pipeline, Star},
};
use weft_types::{AutoSize, Error, Layout, PAGE_LEN, Result, StripeLayout};

/// The time of a slice besides its bytes, if it was not measured: a few system calls and wake-ups at both ends.
const SLICE_OVERHEAD_S: f64 = 20e-6;

/// How lost blocks are rebuilt.
#[derive(Debug, Clone)]
pub struct RepairOptions {
    /// The scheme's name, or `auto`.
    pub scheme: String,
    /// The length of a slice of a rebuilt block.
    pub slice_len: AutoSize,
    /// Whether the request set `slice_len`, which is then used as it is.
    pub slice_asked: bool,
    /// How helpers are selected.
    pub select: Select,
    /// How paths are searched.
    pub paths: Paths,
    /// Whether the caller wants an explanation: the cost of a named scheme is then predicted too.
    pub explained: bool,
}

impl RepairOptions {
    /// Repairs by `scheme` in slices of `slice_len`.
    pub fn new(scheme: String, slice_len: AutoSize) -> Self {
        Self { scheme, slice_len, slice_asked: false, select: Select::default(), paths: Paths::default(), explained: false }
    }

    /// Applies a request. An empty scheme and 0 bytes keep the current values.
    pub fn with(self, scheme: &str, asked_bytes: u64, slice_auto: bool) -> Result<Self> {
        let scheme = if scheme.is_empty() { self.scheme } else { scheme.to_owned() };
        check_name(Kind::Repair, &scheme)?;
        let slice_len = match (slice_auto, asked_bytes) {
            (true, 0) => AutoSize::Auto,
            (true, _) => return Err(Error::invalid("the slice length is both given and automatic: choose one")),
            (false, 0) => self.slice_len,
            (false, bytes) => AutoSize::bytes(bytes),
        };
        check_slice_len("the slice length", slice_len)?;
        Ok(Self { scheme, slice_len, slice_asked: asked_bytes > 0, ..self })
    }

    /// Positions of a slice of a rebuilt block. An automatic length is chosen for a chain of equal links.
    pub fn slice_positions(&self, stripe: &StripeLayout, network: &Network) -> u64 {
        let bytes = match self.slice_len {
            AutoSize::Bytes(size) if self.slice_asked => return slice_positions(&stripe.layout, size.0),
            AutoSize::Bytes(size) => size.0,
            AutoSize::Auto => best_slice(stripe, &vec![network.link_bytes_per_s; stripe.k as usize], network),
        };
        usual_slice_positions(&stripe.layout, bytes)
    }

    /// The same for a chosen path, if the length is automatic.
    pub fn slice_positions_on(&self, path: &ChosenPath, stripe: &StripeLayout, network: &Network) -> Option<u64> {
        let links: Vec<f64> = path.parties.windows(2).map(|pair| network.between(pair[0], pair[1])).collect();
        let is_open = self.slice_len == AutoSize::Auto && !links.is_empty();
        is_open.then(|| usual_slice_positions(&stripe.layout, best_slice(stripe, &links, network)))
    }
}

/// The best slice length, in bytes, over links with these rates.
fn best_slice(stripe: &StripeLayout, links: &[f64], network: &Network) -> u64 {
    weft_schemes::slice_size(stripe.layout.block_len, links, slice_overhead_s(network))
}

/// The time of a slice besides its bytes, seconds.
pub(crate) fn slice_overhead_s(network: &Network) -> f64 {
    if network.slice_overhead_s > 0.0 { network.slice_overhead_s } else { SLICE_OVERHEAD_S }
}

/// How the deltas of updates in place travel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UpdateWay {
    /// The scheme's name, or `auto`.
    pub scheme: String,
    /// How the order of a pipeline's racks is chosen.
    pub path: Selector,
    /// Bytes of a slice; `None`: chosen.
    pub slice_len: Option<u64>,
}

impl UpdateWay {
    /// How a user can name the choice of a path.
    pub const PATHS: [&str; 4] = ["exact", "tabu", "random", "worst"];

    /// From a request. Empty names and 0 bytes leave the choice open.
    pub fn parse(scheme: &str, path: &str, seed: u64, slice_len: u64) -> Result<Self> {
        let scheme = if scheme.is_empty() { AUTO } else { scheme };
        check_name(Kind::Update, scheme)?;
        let path = match path {
            "" | "exact" => Selector::Exact,
            "tabu" => Selector::Tabu(Tabu { seed, ..Tabu::default() }),
            "random" => Selector::Random { seed },
            "worst" => Selector::Worst,
            other => {
                let known = Self::PATHS.join(", ");
                return Err(Error::invalid(format!("'{other}' does not order the racks of an update: use one of {known}")));
            }
        };
        let pipeline = Pipeline { path: None };
        if path != Selector::Exact && scheme != pipeline.name() {
            return Err(Error::invalid(format!("the order of racks can only be chosen for the scheme {}", pipeline.name())));
        }
        if slice_len > 0 {
            check_slice_len("the slice length", AutoSize::bytes(slice_len))?;
        }
        Ok(Self { scheme: scheme.to_owned(), path, slice_len: (slice_len > 0).then_some(slice_len) })
    }

    /// From the node with the change to all others at the same time.
    pub fn straight() -> Self {
        let scheme = Star { concurrent: true }.name().to_owned();
        Self { scheme, path: Selector::Exact, slice_len: None }
    }

    /// Whether the scheme is chosen by prediction.
    pub fn is_left_open(&self) -> bool {
        self.scheme == AUTO
    }

    /// Whether it is that of [`UpdateWay::straight`].
    pub fn is_straight(&self) -> bool {
        self.scheme == Star { concurrent: true }.name()
    }
}

/// Which of a stripe's chosen nodes gets which block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Assignment {
    /// Faster and less busy nodes get the blocks that need more work.
    #[default]
    BySpeed,
    /// At random.
    AtRandom,
    /// In the order of the nodes' names.
    ByName,
}

/// How new data gets to the nodes that store it.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// The scheme's name, or `auto`.
    pub scheme: String,
    /// Bytes of a slice of a block.
    slice_bytes: u64,
    /// Whether the request set them.
    slice_is_asked: bool,
    /// How blocks are assigned to nodes.
    pub assignment: Assignment,
    /// The machine from which the writer calls.
    pub host: String,
    /// The name of the agent that writes, for a conversion; empty for a client.
    pub agent: String,
}

impl WriteOptions {
    /// Writes by `scheme` in slices of `slice_bytes`; `slice_is_asked` if the request set them.
    pub fn new(scheme: String, slice_bytes: u64, slice_is_asked: bool) -> Result<Self> {
        check_name(Kind::Write, &scheme)?;
        check_slice_len("the slice length", AutoSize::bytes(slice_bytes))?;
        let assignment = Assignment::default();
        Ok(Self { scheme, slice_bytes, slice_is_asked, assignment, host: String::new(), agent: String::new() })
    }

    /// A conversion's writes have a lower precedence, because no user waits for them.
    pub fn precedence(&self) -> Precedence {
        if self.agent.is_empty() { Class::Foreground.into() } else { Precedence::MOVE }
    }

    /// Whether the scheme is chosen by prediction.
    pub fn is_left_open(&self) -> bool {
        self.scheme == AUTO
    }

    /// Switches to the scheme that needs the least of all nodes but the writer.
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

/// The length of a slice of all sub-blocks together, if there are several and the request sets none: smaller pieces of
/// each sub-block would be costly to read and to send.
const VECTOR_SLICE_BYTES: u64 = 1 << 20;

/// Positions of a slice for a default of `bytes`.
pub fn usual_slice_positions(layout: &Layout, bytes: u64) -> u64 {
    slice_positions(layout, if layout.alpha == 1 { bytes } else { bytes.max(VECTOR_SLICE_BYTES) })
}

/// Positions of a slice of about `bytes`, in whole pages, because disks and checksums work in pages, and at most a
/// cell's.
pub fn slice_positions(layout: &Layout, bytes: u64) -> u64 {
    if layout.alpha == 1 {
        return bytes;
    }
    let of_one = bytes / u64::from(layout.alpha) / PAGE_LEN * PAGE_LEN;
    of_one.clamp(PAGE_LEN, layout.sub_len().max(PAGE_LEN))
}

/// The longest slice that a request may set: longer ones only take more of the agents' memory.
pub const SLICE_BYTES_MAX: u64 = 64 << 20;

/// Checks that slices of this length are whole pages and not too long.
pub fn check_slice_len(name: &str, len: AutoSize) -> Result<()> {
    match len {
        AutoSize::Bytes(size) if size.0 == 0 || !size.0.is_multiple_of(PAGE_LEN) => {
            Err(Error::invalid(format!("{name} is {size}: it must be a multiple of {}", weft_types::ByteSize(PAGE_LEN))))
        }
        AutoSize::Bytes(size) if size.0 > SLICE_BYTES_MAX => {
            Err(Error::invalid(format!("{name} is {size}: it must be at most {}", weft_types::ByteSize(SLICE_BYTES_MAX))))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_of_updates_is_parsed_and_errors_reported() {
        let parse = |scheme, path, slice_len| UpdateWay::parse(scheme, path, 7, slice_len).map_err(|error| error.message);
        let open = parse("", "", 0).unwrap();
        assert!(open.is_left_open() && (open.path, open.slice_len) == (Selector::Exact, None));
        let named = parse("pipeline", "random", 8192).unwrap();
        assert_eq!((named.path, named.slice_len), (Selector::Random { seed: 7 }, Some(8192)));
        for (scheme, path, slice_len, says) in [
            ("pigeon", "", 0, "no update scheme 'pigeon': use auto, star"),
            ("pipeline", "best", 0, "'best' does not order the racks of an update: use one of exact, tabu, random, worst"),
            ("tree", "worst", 0, "only be chosen for the scheme pipeline"),
            ("", "", 1000, "is 1000"),
            ("", "", 65 << 20, "at most 64MiB"),
        ] {
            let told = parse(scheme, path, slice_len).unwrap_err();
            assert!(told.contains(says), "{told}");
        }
    }

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
        assert_eq!(
            [0, 64 << 10, 256 << 10].map(positions),
            [128 << 10, 8 << 10, 32 << 10],
            "a requested length is used as it is"
        );
        for (scheme, len, auto, says) in [
            ("", 1000, false, "is 1000"),
            ("", 65 << 20, false, "at most 64MiB"),
            ("", 4096, true, "both given"),
            ("pigeon", 0, false, "no repair scheme 'pigeon'"),
        ] {
            assert!(options().with(scheme, len, auto).unwrap_err().message.contains(says));
        }
    }
}
