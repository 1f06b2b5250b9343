//! Which stripes grow, so that more bytes can be appended, and by how much.

use crate::view::View;
use weft_types::{APPENDED_AT_ONCE_MAX, BlockId, ByteSize, Cause, Error, Result, StripeLayout, StripeRecord};

/// A stripe grows by a part of its length more than is asked for, so that the next short appends need not wait for growth.
const AHEAD_SHARE: u64 = 4;
const AHEAD_MIN: u64 = 64 << 10;
const AHEAD_MAX: u64 = 4 << 20;

/// The bytes that can be appended to an object of `size` bytes, of which these are the last stripe and its offset.
pub fn room(layout: &StripeLayout, offset: u64, size: u64) -> u64 {
    offset.saturating_add(layout.room_end()).saturating_sub(size)
}

/// How many bytes of its object a stripe must hold so that an append reaches `reaches`; `None`: it does already.
pub fn growth(layout: &StripeLayout, reaches: u64) -> Result<Option<u64>> {
    let (holds, most) = (layout.data_len, layout.room_end());
    if reaches <= holds {
        return Ok(None);
    }
    if reaches > most || reaches - holds > APPENDED_AT_ONCE_MAX {
        let at_once = APPENDED_AT_ONCE_MAX;
        return Err(Error::invalid(format!(
            "an append reaches byte {reaches} of a stripe that holds {holds} bytes: it may grow to {most}, by at most {at_once} at once"
        )));
    }
    Ok(Some((reaches + (reaches / AHEAD_SHARE).clamp(AHEAD_MIN, AHEAD_MAX)).min(most)))
}

/// Fails if a disk has no room for its block of a stripe that grows: it would be left out, and rebuilt elsewhere.
pub fn require_space(
    stripe: &StripeRecord,
    members: &[BlockId],
    data_len: u64,
    (view, reserve_bytes): (&View, u64),
) -> Result<()> {
    let longer = StripeLayout { data_len, ..stripe.layout };
    for block in members {
        let index = u32::from(block.index);
        let bytes = longer.block_len(index).saturating_sub(stripe.layout.block_len(index));
        let Some(home) = stripe.find(block.index, block.copy).map(|placed| placed.home) else { continue };
        let free = view.disk(home).filter(|disk| disk.total_bytes > 0).map_or(u64::MAX, |disk| disk.free_bytes);
        if bytes > 0 && free < bytes.saturating_add(reserve_bytes) {
            let (name, free, reserve) = (view.name(home.node), ByteSize(free), ByteSize(reserve_bytes));
            return Err(Error::unavailable(format!(
                "block {} must grow by {bytes} bytes, but its disk on {name} has only {free} left, of which {reserve} stay free \
                 (disk_reserve): move blocks to other nodes with `weft balance`, or put the object again",
                block.index
            ))
            .cause(Cause::NoSpace));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::Layout;

    fn layout(data_len: u64) -> StripeLayout {
        StripeLayout { layout: Layout::new(64 << 20, 1 << 20, 1).unwrap(), k: 4, m: 2, data_len }
    }

    #[test]
    fn stripes_grow_somewhat_ahead_and_not_beyond_their_blocks() {
        assert_eq!(growth(&layout(1000), 1000), Ok(None));
        assert_eq!(growth(&layout(1000), 1001), Ok(Some(1001 + AHEAD_MIN)));
        assert_eq!(growth(&layout(1000), (1 << 20) - 5), Ok(Some(1 << 20)), "one data block has a byte, and its cell ends");
        assert!(growth(&layout(1000), (1 << 20) + 1).is_err());
        let large = 200 << 20;
        assert_eq!(growth(&layout(large), large + 10), Ok(Some(large + 10 + AHEAD_MAX)));
        assert!(growth(&layout(large), large + APPENDED_AT_ONCE_MAX).is_ok());
        assert!(growth(&layout(large), large + APPENDED_AT_ONCE_MAX + 1).is_err());
        assert_eq!(growth(&layout((256 << 20) - 3), 256 << 20), Ok(Some(256 << 20)));
    }

    #[test]
    fn the_room_behind_an_object_is_that_of_its_last_stripe() {
        assert_eq!(room(&layout(1000), 0, 1000), (1 << 20) - 1000);
        let stripe = 256 << 20;
        assert_eq!(room(&layout(10 << 20), stripe, stripe + (9 << 20)), (256 << 20) - (9 << 20), "the stripe has grown ahead");
        assert_eq!(room(&layout(stripe), 0, stripe), 0);
    }
}
