//! Blocks of 32 small integers with a common scale: the values every format here can hold exactly,
//! so that a seed gives the same model in all of them (up to F16's rounding of scale times integer).

use half::f16;

use super::random::Stream;
use crate::block::BlockType;

/// Elements per block.
pub(super) const LEN: usize = 32;

/// The integer that represents a block's largest planted coefficient.
pub(super) const AMPLITUDE: f32 = 5.0;

/// Standard deviation of [`integers`].
pub(super) const INTEGERS_DEVIATION: f64 = 4.534;

/// 32 elements, each `scale * codes[i]`.
pub(super) struct Block {
    pub(super) scale: f16,
    /// Values from -7 to 7.
    pub(super) codes: [i8; LEN],
}

/// 32 integers from -7 to 7, nearly uniform.
pub(super) fn integers(stream: Stream, block: u64) -> [i8; LEN] {
    spread(stream, block, |bits| bits, |nibble| (nibble - 8).max(-7))
}

/// 32 integers from -2 to 2, binomial with variance 1: noise that is added to planted ones.
pub(super) fn noise(stream: Stream, block: u64) -> [i8; LEN] {
    let set_bits = |bits: u64| {
        let pairs = bits - (bits >> 1 & 0x5555_5555_5555_5555);
        (pairs & 0x3333_3333_3333_3333) + (pairs >> 2 & 0x3333_3333_3333_3333)
    };
    spread(stream, block, set_bits, |nibble| nibble - 2)
}

/// One nibble of the stream per element.
fn spread(
    stream: Stream,
    block: u64,
    of_word: impl Fn(u64) -> u64,
    of_nibble: impl Fn(i8) -> i8,
) -> [i8; LEN] {
    let mut codes = [0; LEN];
    for (word, codes) in (0..).zip(codes.chunks_exact_mut(16)) {
        let bytes = of_word(stream.at(2 * block + word)).to_le_bytes();
        let (low, high) = codes.split_at_mut(8);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            *low = of_nibble((byte & 0x0f) as i8);
            *high = of_nibble((byte >> 4) as i8);
        }
    }
    codes
}

impl Block {
    /// Elements that are all 0.
    pub(super) const ZERO: Self = Self {
        scale: f16::ZERO,
        codes: [0; LEN],
    };

    /// Bytes in `format`, which is one of [`super::FORMATS`]; `out` has their length.
    pub(super) fn encode(&self, format: BlockType, out: &mut [u8]) {
        match format {
            BlockType::Q4_0 => {
                out[..2].copy_from_slice(&self.scale.to_le_bytes());
                let (low, high) = self.codes.split_at(LEN / 2);
                for ((o, low), high) in out[2..].iter_mut().zip(low).zip(high) {
                    *o = (low + 8) as u8 | ((high + 8) as u8) << 4;
                }
            }
            BlockType::F32 => {
                let scale = self.scale.to_f32();
                for (o, &code) in out.chunks_exact_mut(4).zip(&self.codes) {
                    o.copy_from_slice(&(scale * f32::from(code)).to_le_bytes());
                }
            }
            // The nearest power of two, and the magnitudes by rank: 7 of them, which are not equally far apart.
            BlockType::MXFP4 => {
                let exponent = self.scale.to_f32().log2().round().clamp(-100.0, 100.0);
                out[0] = (128.0 + exponent) as u8;
                let nibble = |code: i8| code.unsigned_abs() | u8::from(code < 0) << 3;
                let (low, high) = self.codes.split_at(LEN / 2);
                for ((o, &low), &high) in out[1..].iter_mut().zip(low).zip(high) {
                    *o = nibble(low) | nibble(high) << 4;
                }
            }
            BlockType::Q8_0 => {
                out[..2].copy_from_slice(&self.scale.to_le_bytes());
                for (o, &code) in out[2..].iter_mut().zip(&self.codes) {
                    *o = code as u8;
                }
            }
            _ => {
                let scale = self.scale.to_f32();
                let levels: [[u8; 2]; 16] = std::array::from_fn(|level| {
                    f16::from_f32(scale * (level as f32 - 8.0)).to_le_bytes()
                });
                for (o, &code) in out.chunks_exact_mut(2).zip(&self.codes) {
                    o.copy_from_slice(&levels[(code + 8) as usize & 15]);
                }
            }
        }
    }
}
