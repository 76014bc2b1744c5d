//! Quantised tokens block by block, on their way to another core or to a device.

use super::activations::{Activations, Form};
use super::formats::GROUP;
use super::table::KernelTable;
use super::tokens::BLOCK;

/// A block of 32 elements of one token, as it is multiplied with panels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBlock<'a> {
    /// The token.
    pub token: usize,
    /// Which of the token's blocks.
    pub block: usize,
    /// In -127..=127.
    pub codes: &'a [i8; 32],
    /// Unit of the codes.
    pub scale: f32,
    /// `scale * sum(code)`.
    pub sum: f32,
    /// `-sum(code)` of each half.
    pub half_counts: [i32; 2],
}

/// Words of a token's block on a board.
pub const BLOCK_WORDS: usize = 5;

impl TokenBlock<'_> {
    /// The block as words: its codes, then its scale and the counts of both halves, which are at most 16 * 127.
    pub fn words(&self) -> [i64; BLOCK_WORDS] {
        let mut words = [0; BLOCK_WORDS];
        for (word, codes) in words.iter_mut().zip(self.codes.as_chunks::<8>().0) {
            *word = i64::from_le_bytes(codes.map(|code| code as u8));
        }
        let [low, high] = self.half_counts.map(|count| i64::from(count as i16 as u16));
        words[BLOCK_WORDS - 1] = i64::from(self.scale.to_bits()) | low << 32 | high << 48;
        words
    }
}

impl Activations {
    /// All blocks of all tokens, for kernels that run elsewhere; in the order in which they are stored, which is
    /// neither that of the tokens nor that of the blocks.
    ///
    /// # Panics
    /// The activations are not in [`Form::Panels`].
    pub fn token_blocks(&self) -> impl Iterator<Item = TokenBlock<'_>> {
        assert_eq!(self.form, Form::Panels, "activations in another form");
        let (padded, blocks) = (self.padded(), self.cols.div_ceil(BLOCK));
        let codes = self.codes.part(0, self.n_tokens * padded).as_chunks().0;
        let half_counts = self.half_counts.part(0, 2 * codes.len()).as_chunks().0;
        let scales = self.scales.part(0, codes.len());
        let sums = self.block_sums.part(0, codes.len());
        self.pieces().flat_map(move |piece| {
            (0..blocks * piece.width).map(move |k| {
                let i = piece.first * padded / BLOCK + k;
                TokenBlock {
                    token: piece.first + k % piece.width,
                    block: k / piece.width,
                    codes: &codes[i],
                    scale: scales[i],
                    sum: sums[i],
                    half_counts: half_counts[i],
                }
            })
        })
    }

    /// Takes over all that products with quantised panels need of `other`, without allocating. Values that are not
    /// quantised stay behind.
    ///
    /// # Panics
    /// `other` is not in [`Form::Panels`], or there is no room for it.
    pub fn copy_blocks(&mut self, other: &Self) {
        assert_eq!(other.form, Form::Panels, "activations in another form");
        assert!(
            other.n_tokens <= self.max_tokens && other.cols <= self.max_cols,
            "no room for {} tokens of {} columns",
            other.n_tokens,
            other.cols
        );
        (self.n_tokens, self.cols) = (other.n_tokens, other.cols);
        (self.form, self.widest) = (other.form, other.widest);
        let len = other.n_tokens * other.padded();
        self.codes.copy(&other.codes, len);
        self.scales.copy(&other.scales, len / GROUP);
        self.sums.copy(&other.sums, len / GROUP);
        self.block_sums.copy(&other.block_sums, len / BLOCK);
        self.block_counts.copy(&other.block_counts, len / BLOCK);
        self.half_counts.copy(&other.half_counts, len / GROUP);
    }

    /// Takes tokens whose blocks are words, which `read` gives by token and block: the same numbers as if they had been
    /// loaded here, but for values that are not quantised, which are arbitrary.
    ///
    /// # Panics
    /// More tokens or columns than there is room for.
    pub fn take_blocks(
        &mut self,
        kernels: &KernelTable,
        (n_tokens, cols): (usize, usize),
        read: impl Fn(usize, usize) -> [i64; BLOCK_WORDS],
    ) {
        self.reshape(n_tokens, cols, Form::Panels);
        self.widest = kernels.widest();
        let (blocks, padded) = (cols.div_ceil(BLOCK), self.padded() / BLOCK);
        for piece in self.pieces() {
            for lane in 0..piece.width {
                for b in 0..padded {
                    // Padding is zero.
                    let words = match b < blocks {
                        true => read(piece.first + lane, b),
                        false => [0; BLOCK_WORDS],
                    };
                    let i = piece.first * padded + b * piece.width + lane;
                    self.put_block(i, words);
                }
            }
        }
    }

    /// Writes block `i` in the order of panels.
    #[inline(always)]
    fn put_block(&mut self, i: usize, [a, b, c, d, about]: [i64; BLOCK_WORDS]) {
        let codes = self.codes.part_mut(i * BLOCK, BLOCK);
        for (to, word) in codes.chunks_exact_mut(8).zip([a, b, c, d]) {
            to.copy_from_slice(&word.to_le_bytes().map(|byte| byte as i8));
        }
        let scale = f32::from_bits(about as u32);
        let halves = [about >> 32, about >> 48].map(|count| i32::from(count as i16));
        let counts = halves.map(|half| -half);
        let count = counts[0] + counts[1];
        self.scales.part_mut(i, 1)[0] = scale;
        self.block_sums.part_mut(i, 1)[0] = scale * count as f32;
        self.block_counts.part_mut(i, 1)[0] = -count;
        let sums = counts.map(|half| scale * half as f32);
        self.sums.part_mut(2 * i, 2).copy_from_slice(&sums);
        self.half_counts.part_mut(2 * i, 2).copy_from_slice(&halves);
    }
}
