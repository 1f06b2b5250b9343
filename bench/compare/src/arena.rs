//! One large buffer, cut into the blocks of many stripes.

/// Padding between blocks: with strides that are powers of two, blocks would contend for the same cache lines.
const PAD_BYTES: usize = 5 * 64;
const LINE_BYTES: usize = 64;

pub struct Arena {
    bytes: Vec<u8>,
    start: usize,
}

/// The blocks of one stripe.
pub struct Stripe<'a> {
    pub data: Vec<&'a [u8]>,
    pub parity: Vec<&'a mut [u8]>,
}

impl Arena {
    /// An arena filled with bytes that do not repeat, so every page is mapped.
    pub fn new(len: usize) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut bytes = Vec::with_capacity(len);
        for _ in 0..len / 8 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&state.to_le_bytes());
        }
        let start = bytes.as_ptr().align_offset(LINE_BYTES);
        Self { bytes, start }
    }

    /// An arena for this many blocks.
    pub fn for_blocks(count: usize, block_len: usize) -> Self {
        Self::new(count * (block_len + PAD_BYTES) + LINE_BYTES)
    }

    /// As many blocks as fit.
    pub fn blocks(&mut self, block_len: usize) -> Vec<&mut [u8]> {
        let stride = block_len + PAD_BYTES;
        self.bytes[self.start..].chunks_exact_mut(stride).map(|block| &mut block[..block_len]).collect()
    }

    /// Stripes of k data and m parity blocks: as many as fit, and at most `count_max`.
    pub fn stripes(&mut self, k: usize, m: usize, block_len: usize, count_max: usize) -> Vec<Stripe<'_>> {
        let stride = block_len + PAD_BYTES;
        let stripes = self.bytes[self.start..].chunks_exact_mut((k + m) * stride).take(count_max);
        stripes
            .map(|blocks| {
                let (data, parity) = blocks.split_at_mut(k * stride);
                Stripe {
                    data: data.chunks_exact(stride).map(|block| &block[..block_len]).collect(),
                    parity: parity.chunks_exact_mut(stride).map(|block| &mut block[..block_len]).collect(),
                }
            })
            .collect()
    }
}
