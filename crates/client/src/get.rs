//! Gets: to a file, whole stripes in any order; to a pipe, window after window.

use crate::{
    Client,
    background::Owned,
    client::Shared,
    fetch::{self, Begun, Failed, Met, StripePlace, Window},
    open_read,
    paths::cannot_write,
    place::{Place, TemporaryFile},
    progress::{Meter, ProgressFn},
    range::ByteRange,
};
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use std::{
    collections::VecDeque,
    fs::File,
    io::Write,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use weft_proto::{
    DiskMode,
    v1::{BeginRead, ObjectReply, ReadStripeReply, ReadStripeRequest},
};
use weft_types::{AutoSize, BlockId, CHECKSUM_UNIT_LEN, Error, Reaction, Result, Span, StripeId, StripeLayout};

/// What to fetch of an object, and how.
///
/// ```
/// # use weft_client::GetOptions;
/// let first_kilobyte = GetOptions { range: Some((0..1024).into()), ..GetOptions::default() };
/// ```
#[derive(Debug, Clone, Default)]
pub struct GetOptions {
    /// Bytes of the object; `None`: all.
    pub range: Option<ByteRange>,
    /// The scheme for lost blocks; empty: the coordinator's choice.
    pub scheme: String,
    /// Bytes of a slice of a lost block; `None`: the coordinator's setting.
    pub slice_len: Option<AutoSize>,
    /// Receives progress.
    pub progress: ProgressFn,
}

/// The result of a get.
#[derive(Debug)]
pub struct Got {
    /// The object.
    pub object: ObjectReply,
    /// Bytes that were returned.
    pub bytes: u64,
    /// The blocks that were rebuilt during the read.
    pub rebuilt: Vec<BlockId>,
    /// Failures that the get recovered from; the first 64 of them.
    pub errors: Vec<Error>,
    /// Plans that were run.
    pub plans: u64,
}

/// Windows of one get in flight at once: one is received while another is planned or written.
pub(crate) const WINDOWS_MAX: usize = 2;
/// Stripes of one get to a file in flight at once.
const STRIPES_MAX: usize = 3;
/// Most bytes written to a pipe at once. An aborted get still completes a write that has begun.
const PIPE_BYTES: usize = 1 << 20;

impl Client {
    /// Returns an object, or a range of it, in order. Memory is bounded, however slowly `writer` accepts the bytes. If the object is
    /// replaced during the get, the get restarts with the new one as long as no bytes have been returned, and fails with
    /// [`Reaction::Retry`] afterwards. If the object is only converted, its bytes are the same, and the get continues with them.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::GetOptions;
    /// let mut bytes = Vec::new();
    /// let got = client.get("logs", "today", &mut bytes, &GetOptions::default()).await?;
    /// eprintln!("{} bytes, {} blocks rebuilt", got.bytes, got.rebuilt.len());
    /// # Ok(()) }
    /// ```
    pub async fn get(&self, bucket: &str, key: &str, writer: impl AsyncWrite + Unpin, options: &GetOptions) -> Result<Got> {
        Get::begin(self.shared(), bucket, key, options).await?.in_order(&mut Written(writer), options).await
    }

    /// Like [`get`](Self::get), to a pipe or a device, where writing can block. The bytes are not copied. If the get is aborted while the
    /// pipe accepts nothing, a thread of the runtime waits until the other end is closed.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::GetOptions;
    /// let pipe = std::fs::File::create("/run/log.pipe").map_err(weft_types::Error::invalid)?;
    /// client.get_pipe("logs", "today", pipe, &GetOptions::default()).await?;
    /// # Ok(()) }
    /// ```
    pub async fn get_pipe(&self, bucket: &str, key: &str, pipe: File, options: &GetOptions) -> Result<Got> {
        let mut pipe = Pipe { file: Arc::new(pipe), mode: self.shared().config.disk_mode };
        Get::begin(self.shared(), bucket, key, options).await?.in_order(&mut pipe, options).await
    }

    /// Fetches an object, or a range of it, into a file. The file appears when it is complete; a get that fails leaves nothing. If the
    /// object is replaced during the get, the get restarts with the new one.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::GetOptions;
    /// client.get_file("photos", "cat.jpg", "cat.jpg", &GetOptions::default()).await?;
    /// # Ok(()) }
    /// ```
    pub async fn get_file(&self, bucket: &str, key: &str, path: impl AsRef<Path>, options: &GetOptions) -> Result<Got> {
        let mut begun = 0;
        loop {
            let get = Get::begin(self.shared(), bucket, key, options).await?;
            begun += 1;
            match get.write_file(path.as_ref()).await {
                Ok(()) => return Ok(get.into_got()),
                // A file without a name is not visible yet.
                Err(error) => drop(get.may_begin_again(error, 0, begun).await?),
            }
        }
    }

    /// What a get would do: for each stripe, the coordinator's answer with the plan's JSON. Nothing is fetched.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::GetOptions;
    /// for stripe in client.explain_get("photos", "cat.jpg", &GetOptions::default()).await? {
    ///     println!("{}", String::from_utf8_lossy(&stripe.plan));
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn explain_get(&self, bucket: &str, key: &str, options: &GetOptions) -> Result<Vec<ReadStripeReply>> {
        let get = Get::of(self.shared(), self.shared().stat(bucket, key).await?, 0, options)?;
        let mut plans = Vec::new();
        for (stripe, data) in get.stripes() {
            let ranges = stripe.ranges(data);
            let at_nodes = self.shared().config.reads_open_stripes && open_read::is_short(&ranges);
            let request = ReadStripeRequest { at_nodes, ..stripe.request(&ranges, &Failed::default(), true) };
            let asked = self.shared().calls.ask(request, |mut client, request| async move { client.read_stripe(request).await });
            plans.push(asked.await.map_err(|error| error.object(format_args!("{bucket}/{key}")))?);
        }
        Ok(plans)
    }
}

/// Takes the bytes of a get in order.
pub(crate) trait Output {
    async fn take(&mut self, pieces: Vec<Bytes>) -> Result<()>;

    /// After the last byte.
    async fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Bytes go to a writer.
pub(crate) struct Written<W>(pub(crate) W);

/// Bytes go to a pipe or a device.
struct Pipe {
    file: Arc<File>,
    mode: DiskMode,
}

impl<W: AsyncWrite + Unpin> Output for Written<W> {
    async fn take(&mut self, pieces: Vec<Bytes>) -> Result<()> {
        // Each piece is freed as soon as it is written.
        for piece in pieces {
            self.0.write_all(&piece).await.map_err(cannot_write)?;
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<()> {
        self.0.flush().await.map_err(cannot_write)
    }
}

impl Output for Pipe {
    async fn take(&mut self, pieces: Vec<Bytes>) -> Result<()> {
        let mut rest = VecDeque::from(pieces);
        while !rest.is_empty() {
            let (file, batch) = (Arc::clone(&self.file), first_of(&mut rest, PIPE_BYTES));
            let write = move || batch.into_iter().try_for_each(|piece| (&*file).write_all(&piece)).map_err(cannot_write);
            self.mode.run(write).await?;
        }
        Ok(())
    }
}

/// Takes the first `len` bytes, or all.
fn first_of(pieces: &mut VecDeque<Bytes>, len: usize) -> Vec<Bytes> {
    let (mut first, mut room) = (Vec::new(), len);
    while room > 0
        && let Some(mut piece) = pieces.pop_front()
    {
        if piece.len() > room {
            pieces.push_front(piece.split_off(room));
        }
        room -= piece.len();
        first.push(piece);
    }
    first
}

/// A get that has begun.
pub(crate) struct Get {
    shared: Arc<Shared>,
    object: ObjectReply,
    stripes: Vec<Arc<StripePlace>>,
    /// Bytes of the object.
    range: Span,
    /// Bytes that had been returned before the get restarted with another version of the same object.
    handed_out: u64,
    meter: Meter,
    met: Arc<Mutex<Met>>,
    /// The read that began with the lookup.
    begun: Mutex<Option<(u64, Begun)>>,
}

/// The read of all of a range's bytes in one stripe that runs already, if any, with the stripe's number.
struct First {
    begun: Option<(u64, Begun)>,
    bytes_max: u64,
}

impl First {
    /// The read, if it is that of a stripe's part `data`.
    fn of(&mut self, stripe: &StripePlace, data: Span) -> Option<Begun> {
        self.begun.take_if(|(number, _)| *number == stripe.number && data.len() <= self.bytes_max).map(|(_, begun)| begun)
    }
}

impl Get {
    /// Looks the object up, and starts to read it in the same call if the first stripe's part of the range is not longer than a window.
    async fn begin(shared: &Arc<Shared>, bucket: &str, key: &str, options: &GetOptions) -> Result<Self> {
        let begin = BeginRead {
            scheme: options.scheme.clone(),
            slice_len: crate::repair::slice_len(options.slice_len),
            slice_auto: options.slice_len == Some(AutoSize::Auto),
            at_nodes: shared.config.reads_open_stripes,
            ..ByteRange::begin(options.range.as_ref(), shared.config.limits.window_bytes_max)
        };
        let (object, begun) = shared.stat_and_read(bucket, key, Some(begin)).await?;
        Ok(Self { begun: Mutex::new(begun), ..Self::of(shared, object, 0, options)? })
    }

    /// For an object with all stripes known, or from the number `first` on, those that the range touches.
    pub(crate) fn of(shared: &Arc<Shared>, object: ObjectReply, first: u64, options: &GetOptions) -> Result<Self> {
        let place = |error: Error| error.object(format_args!("{}/{}", object.bucket, object.key));
        let range = options.range.as_ref().map_or(Ok(Span::new(0, object.size)), |range| range.of(object.size)).map_err(place)?;
        let stripes = stripes_of(&object, first, options)?;
        let meter = Meter::new(Some(range.len()), &options.progress);
        let (shared, met, begun) = (shared.clone(), Arc::default(), Mutex::default());
        Ok(Self { shared, object, stripes, range, handed_out: 0, meter, met, begun })
    }

    /// The same get of the current version. If both versions have the same bytes, those already returned are not fetched again.
    fn go_on_with(self, now: ObjectReply, handed_out: u64, options: &GetOptions) -> Result<Self> {
        let get = Self::of(&self.shared, now, 0, options)?;
        if !has_same_bytes(&get.object, &self.object) {
            return Ok(get);
        }
        get.meter.add(handed_out);
        Ok(Self { handed_out, met: self.met, ..get })
    }

    /// The stripes that the range touches, each with the range of its data.
    fn stripes(&self) -> impl Iterator<Item = (Arc<StripePlace>, Span)> {
        self.stripes.iter().filter_map(|stripe| {
            let whole = Span::new(stripe.offset, stripe.offset + stripe.layout.data_len);
            let part = Span::new(self.range.start + self.handed_out, self.range.end).intersect(whole);
            let data = Span::new(part.start.wrapping_sub(stripe.offset), part.end.wrapping_sub(stripe.offset));
            (!part.is_empty()).then(|| (stripe.clone(), data))
        })
    }

    /// The read that runs already.
    fn take_begun(&self) -> First {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner).take();
        First { begun, bytes_max: self.shared.config.limits.window_bytes_max }
    }

    /// Returns it in order, and restarts if that is safe.
    async fn in_order(mut self, output: &mut impl Output, options: &GetOptions) -> Result<Got> {
        let mut begun = 0;
        loop {
            begun += 1;
            let mut handed_out = self.handed_out;
            match self.hand_out(output, &mut handed_out).await {
                Ok(()) => return Ok(self.into_got()),
                Err(error) => {
                    let now = self.may_begin_again(error, handed_out, begun).await?;
                    self = self.go_on_with(now, handed_out, options)?;
                }
            }
        }
    }

    /// Returns it in order, window after window, and counts the bytes that the output got.
    pub(crate) async fn hand_out(&self, output: &mut impl Output, handed_out: &mut u64) -> Result<()> {
        let (mut begun, window_bytes_max) = (self.take_begun(), self.shared.config.limits.window_bytes_max);
        let windows = self.stripes().flat_map(move |(stripe, data)| {
            let begun = begun.of(&stripe, data);
            let rest = if begun.is_some() { Span::new(data.end, data.end) } else { data };
            let first = begun.map(|begun| Window { stripe: stripe.clone(), data, begun: Some(begun) });
            first.into_iter().chain(windows(stripe, rest, window_bytes_max))
        });
        let fetching = windows.map(|window| {
            let bytes = Span::new(window.stripe.offset + window.data.start, window.stripe.offset + window.data.end);
            let place = Arc::new(Place::memory(bytes));
            // In its own task: it continues while the writer is slow, so no agent waits for the reader of the pipe.
            let mut fetched = self.fetch(window, place.clone());
            async move { joined(&mut fetched).await.and_then(|()| place.take_memory()) }
        });
        let mut fetched = stream::iter(fetching).buffered(WINDOWS_MAX);
        while let Some(pieces) = fetched.try_next().await? {
            *handed_out += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
            output.take(pieces).await?;
        }
        output.end().await
    }

    /// Writes it to a file, stripes in any order; the file gets its name at the end.
    async fn write_file(&self, path: &Path) -> Result<()> {
        let mode = self.shared.config.disk_mode;
        let temporary = TemporaryFile::create(path, self.range.len(), mode, &self.shared.random).await?;
        let place = Arc::new(Place::file(self.range.start, temporary.file.clone(), mode));
        let mut begun = self.take_begun();
        let fetching = self.stripes().map(|(stripe, data)| {
            let begun = begun.of(&stripe, data);
            let mut fetched = self.fetch(Window { stripe, data, begun }, place.clone());
            async move { joined(&mut fetched).await }
        });
        stream::iter(fetching).buffer_unordered(STRIPES_MAX).try_collect::<()>().await?;
        temporary.keep().await
    }

    /// Restarts a get that failed because its object was replaced, if no bytes of the old one were returned or both versions have the
    /// same bytes: two objects must never be mixed. Returns the current object, or the error to report.
    async fn may_begin_again(&self, error: Error, handed_out: u64, begun: u32) -> Result<ObjectReply> {
        if error.reaction != Reaction::NotFound {
            return Err(error);
        }
        let (bucket, key) = (&self.object.bucket, &self.object.key);
        let place = |error: Error| error.object(format_args!("{bucket}/{key}"));
        match self.shared.stat(bucket, key).await {
            Ok(now) if now.version == self.object.version => Err(error),
            Ok(now) if handed_out > 0 && !has_same_bytes(&now, &self.object) => {
                let of = self.range.len();
                let message = format!(
                    "the object was replaced during the read, after {handed_out} of {of} bytes had been returned; run the get again"
                );
                Err(place(Error::retry(message)))
            }
            Ok(_) if begun >= self.shared.config.limits.attempts_max => {
                Err(place(Error::retry("the object is replaced faster than it can be read")))
            }
            Ok(now) => Ok(now),
            Err(gone) if gone.reaction == Reaction::NotFound => {
                Err(place(Error::not_found("the object was removed during the read")))
            }
            Err(unknown) => Err(unknown),
        }
    }

    fn fetch(&self, window: Window, place: Arc<Place>) -> Owned<Result<()>> {
        let (shared, meter, met) = (self.shared.clone(), self.meter.clone(), self.met.clone());
        Owned::start(async move { fetch::fetch(&shared, window, place, &meter, &met).await })
    }

    fn into_got(self) -> Got {
        let met = std::mem::take(&mut *self.met.lock().unwrap_or_else(PoisonError::into_inner));
        let rebuilt = met.rebuilt.into_iter().collect();
        Got { object: self.object, bytes: self.range.len(), rebuilt, errors: met.errors, plans: met.plans }
    }
}

/// Whether two versions of an object have the same bytes, except for those that were written in place. It may have been extended.
fn has_same_bytes(one: &ObjectReply, other: &ObjectReply) -> bool {
    is_same(one, other) && one.size == other.size
}

/// Whether the same put wrote both versions of an object.
pub(crate) fn is_same(one: &ObjectReply, other: &ObjectReply) -> bool {
    // 0: unknown.
    one.written != 0 && one.written == other.written
}

async fn joined(fetched: &mut Owned<Result<()>>) -> Result<()> {
    fetched.join().await.unwrap_or_else(|| Err(Error::fatal("the fetching task ended unexpectedly")))
}

/// The stripes of an object; the first of them has this number.
pub(crate) fn stripes_of(object: &ObjectReply, first: u64, options: &GetOptions) -> Result<Vec<Arc<StripePlace>>> {
    let name = format!("{}/{}", object.bucket, object.key);
    let unreadable = |message: &str| Error::fatal(message).object(&name);
    // All stripes, or some that follow one another.
    let is_whole = object.stripes.len() as u64 == object.stripe_count;
    let mut offset = object.stripes.first().filter(|_| !is_whole).map_or(0, |first| first.offset);
    let mut stripes = Vec::with_capacity(object.stripes.len());
    for (at, stripe) in (0..).zip(&object.stripes) {
        let layout: StripeLayout =
            postcard::from_bytes(&stripe.layout).map_err(|_| unreadable("the coordinator sent an invalid layout"))?;
        let layout_is_sound = weft_types::Layout::new(layout.layout.block_len, layout.layout.cell_len, layout.layout.alpha)
            .is_ok()
            && (1..=255).contains(&layout.k)
            && layout.m <= 255
            && layout.data_len <= u64::from(layout.k) * layout.layout.block_len;
        if !layout_is_sound || stripe.offset != offset {
            return Err(unreadable("the coordinator sent stripes that do not follow one another"));
        }
        offset += layout.data_len;
        stripes.push(Arc::new(StripePlace {
            bucket: object.bucket.clone(),
            key: object.key.clone(),
            version: object.version,
            scheme: options.scheme.clone(),
            slice_len: options.slice_len,
            number: first + at,
            id: StripeId(stripe.id),
            offset: stripe.offset,
            layout,
            blocks: stripe.blocks.iter().map(|block| (block.index, (block.copy as u8, block.generation))).collect(),
        }));
    }
    // The last one may hold more than belongs to the object.
    let adds_up = offset >= object.size && stripes.last().is_none_or(|last| last.offset < object.size);
    match adds_up || !is_whole {
        true => Ok(stripes),
        false => Err(unreadable("the coordinator sent stripes that do not add up to the object")),
    }
}

/// Cuts a range of a stripe's data into windows, unless it fits in one: that is read at one moment. If cells are small, windows end at rows of cells
/// that end a checksum unit of each block, if such rows exist: then rebuilt ranges need not be widened, and units arrive whole. Otherwise windows end at whole units.
fn windows(stripe: Arc<StripePlace>, data: Span, bytes_max: u64) -> impl Iterator<Item = Window> {
    let row = stripe.layout.layout.cell_len * u64::from(stripe.layout.k);
    let rows = CHECKSUM_UNIT_LEN / stripe.layout.layout.cell_len;
    let is_unit = rows * stripe.layout.layout.cell_len == CHECKSUM_UNIT_LEN;
    let grains = [if is_unit { rows * row } else { row }, row];
    let grain = grains.into_iter().find(|grain| *grain <= bytes_max).unwrap_or(CHECKSUM_UNIT_LEN);
    let step = (bytes_max / grain).max(1) * grain;
    let mut at = data.start;
    std::iter::from_fn(move || {
        let end = if data.len() <= bytes_max { data.end } else { ((at / step + 1) * step).min(data.end) };
        let window = (at < data.end).then(|| Window { stripe: stripe.clone(), data: Span::new(at, end), begun: None });
        at = end;
        window
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::Layout;

    fn stripe(cell_len: u64) -> Arc<StripePlace> {
        let layout = StripeLayout { layout: Layout::new(64 << 20, cell_len, 1).unwrap(), k: 4, m: 2, data_len: 200 << 20 };
        Arc::new(StripePlace {
            bucket: "b".into(),
            key: "k".into(),
            version: 1,
            scheme: String::new(),
            slice_len: None,
            number: 0,
            id: StripeId(1),
            offset: 0,
            layout,
            blocks: Default::default(),
        })
    }

    #[test]
    fn windows_tile_the_range_and_are_bounded() {
        for cell_len in [4096, 1 << 20, 64 << 20] {
            for data in [Span::new(0, 200 << 20), Span::new(5, 7), Span::new((33 << 20) - 1, (99 << 20) + 1)] {
                let windows: Vec<Span> = windows(stripe(cell_len), data, 32 << 20).map(|window| window.data).collect();
                assert!(windows.iter().all(|window| !window.is_empty() && window.len() <= 32 << 20));
                assert!(windows.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].end % (1 << 20) == 0));
                assert_eq!((windows[0].start, windows[windows.len() - 1].end), (data.start, data.end));
            }
        }
        assert_eq!(windows(stripe(4096), Span::new(7, 7), 32 << 20).count(), 0);
    }

    #[test]
    fn windows_of_small_cells_end_with_checksum_units_of_every_block() {
        for cell_len in [4096, 64 << 10, 1 << 20, 2 << 20, 64 << 20] {
            let stripe = stripe(cell_len);
            let ends = windows(stripe.clone(), Span::new(5, 200 << 20), 30 << 20).map(|window| window.data.end);
            for end in ends.filter(|end| *end < 200 << 20) {
                let whole = |index| stripe.layout.block_range(index, Span::new(0, end)).end.is_multiple_of(CHECKSUM_UNIT_LEN);
                assert!((0..4).all(whole), "cells of {cell_len}, window to {end}");
            }
        }
    }
}
