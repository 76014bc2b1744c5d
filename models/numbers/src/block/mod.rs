//! Block formats of weights: how many elements share a block, how many bytes it takes, and what the
//! bytes mean. [`dequantize`] is the reference for testing every faster kernel.
//!
//! Layouts and roundings are those of ggml (`ggml-quants.c`, the `_ref` functions), computed in
//! f32 without fused multiply-add, so that results are the same bits on every machine.

use half::f16;
use serde::{Deserialize, Serialize};

mod encode_k;
mod kquants;
mod legacy;
mod plain;
mod row;
mod search;
mod tables;

use row::Row;
pub use tables::{IQ4_VALUES, MXFP4_VALUES};

/// Element or block format of a tensor, as defined by GGUF (ggml). Quantised formats group 32 or
/// 256 consecutive elements of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(non_camel_case_types, missing_docs)]
pub enum BlockType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
}

impl BlockType {
    /// Every supported format.
    pub const ALL: [Self; 16] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
    ];

    /// Elements per block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::IQ4_NL | Self::MXFP4 => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
            Self::IQ4_XS => 256,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_NL => 18,
            Self::IQ4_XS => 136,
            Self::MXFP4 => 17,
        }
    }

    /// ggml's numeric type id.
    pub const fn ggml_id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2_K => 10,
            Self::Q3_K => 11,
            Self::Q4_K => 12,
            Self::Q5_K => 13,
            Self::Q6_K => 14,
            Self::IQ4_NL => 20,
            Self::IQ4_XS => 23,
            Self::BF16 => 30,
            Self::MXFP4 => 39,
        }
    }

    /// The format with ggml's numeric id, if this engine reads it.
    pub fn from_ggml(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.ggml_id() == id)
    }

    /// ggml's name, e.g. `Q4_K`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2_K => "Q2_K",
            Self::Q3_K => "Q3_K",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
            Self::IQ4_NL => "IQ4_NL",
            Self::IQ4_XS => "IQ4_XS",
            Self::MXFP4 => "MXFP4",
        }
    }

    /// Whether an encoder can weigh errors against each other: not where numbers are stored one by one, nor where the
    /// scale follows from the largest.
    pub const fn is_weighable(self) -> bool {
        !matches!(
            self,
            Self::F32 | Self::F16 | Self::BF16 | Self::Q8_0 | Self::MXFP4
        )
    }

    /// Bytes of a row of `cols` elements; `None` if `cols` is not a multiple of the block.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl std::fmt::Display for BlockType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Decodes whole blocks: `bytes` contains `out.len() / ty.block_len()` blocks.
///
/// # Panics
/// If `out.len()` is not a multiple of the block length, or `bytes` is not exactly as long as those
/// blocks: lengths come from a validated `TensorMeta`, so a mismatch is a bug in the caller.
pub fn dequantize(ty: BlockType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        ty.row_bytes(out.len()),
        "{ty}: {} bytes do not hold {} elements",
        bytes.len(),
        out.len()
    );
    match ty {
        BlockType::F32 => plain::decode_f32(bytes, out),
        BlockType::F16 => plain::decode_f16(bytes, out),
        BlockType::BF16 => plain::decode_bf16(bytes, out),
        BlockType::Q4_0 => legacy::decode_q4_0(bytes, out),
        BlockType::Q4_1 => legacy::decode_q4_1(bytes, out),
        BlockType::Q5_0 => legacy::decode_q5_0(bytes, out),
        BlockType::Q5_1 => legacy::decode_q5_1(bytes, out),
        BlockType::Q8_0 => legacy::decode_q8_0(bytes, out),
        BlockType::Q2_K => kquants::decode_q2_k(bytes, out),
        BlockType::Q3_K => kquants::decode_q3_k(bytes, out),
        BlockType::Q4_K => kquants::decode_q4_k(bytes, out),
        BlockType::Q5_K => kquants::decode_q5_k(bytes, out),
        BlockType::Q6_K => kquants::decode_q6_k(bytes, out),
        BlockType::IQ4_NL => tables::decode_iq4_nl(bytes, out),
        BlockType::IQ4_XS => tables::decode_iq4_xs(bytes, out),
        BlockType::MXFP4 => tables::decode_mxfp4(bytes, out),
    }
}

/// The number that is stored as f16 from byte `at` on.
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Writes a number as f16 and returns what is read again.
fn put_f16(block: &mut [u8], at: usize, v: f32) -> f32 {
    let v = f16::from_f32(v);
    block[at..at + 2].copy_from_slice(&v.to_le_bytes());
    v.to_f32()
}

/// Encodes whole blocks; `out` takes `x.len() / ty.block_len()` blocks. Formats with blocks of 32 and one scale that is
/// a number get ggml's reference rounding, MXFP4 that of its specification; for the others scales are searched with
/// which the error is least. Input must be finite: what a NaN becomes in an integer format is unspecified.
///
/// # Panics
/// If `x.len()` is not a multiple of the block length, or `out` is not exactly as long as those
/// blocks.
pub fn quantize(ty: BlockType, x: &[f32], out: &mut [u8]) {
    assert_eq!(
        Some(out.len()),
        ty.row_bytes(x.len()),
        "{ty}: {} bytes do not hold {} elements",
        out.len(),
        x.len()
    );
    encode(ty, Row { x, weights: None }, out);
}

/// As [`quantize`], but the squared error of a number counts as much as the mean square of what it will be multiplied
/// with: `importance`, `[x.len()]`, not negative, in any unit. Within that, errors of large numbers count more. No
/// block loses more by this measure than it would in [`quantize`]. Formats whose scales are not searched, and blocks
/// without any importance, get the bytes of [`quantize`].
///
/// Source: the weights of llama.cpp's quantiser, `importance * sqrt(mean(x²) + x²)`.
///
/// # Panics
/// As [`quantize`], or if `importance` is not as long as `x`.
pub fn quantize_weighed(ty: BlockType, x: &[f32], importance: &[f32], out: &mut [u8]) {
    assert_eq!(importance.len(), x.len(), "{ty}: one importance per number");
    quantize(ty, x, out);
    if !ty.is_weighable() {
        return;
    }
    let n = ty.block_len();
    let (mut weights, mut back) = (vec![0.0; n], vec![0.0; n]);
    let mut weighed = vec![0; ty.block_bytes()];
    let blocks = x.chunks_exact(n).zip(importance.chunks_exact(n));
    for ((x, importance), block) in blocks.zip(out.chunks_exact_mut(ty.block_bytes())) {
        let mean = x.iter().map(|v| v * v).sum::<f32>() / n as f32;
        for ((w, v), importance) in weights.iter_mut().zip(x).zip(importance) {
            *w = importance * (mean + v * v).sqrt();
        }
        let row = Row {
            x,
            weights: Some(&weights),
        };
        encode(ty, row, &mut weighed);
        let mut error = |bytes: &[u8]| {
            dequantize(ty, bytes, &mut back);
            let errors = x.iter().zip(&back).map(|(a, b)| f64::from(a - b).powi(2));
            let weighed = errors.zip(&weights).map(|(e, &w)| e * f64::from(w));
            weighed.sum::<f64>()
        };
        if error(&weighed) < error(block) {
            block.copy_from_slice(&weighed);
        }
    }
}

/// Encodes whole blocks whose bytes have been counted.
fn encode(ty: BlockType, row: Row<'_>, out: &mut [u8]) {
    let x = row.x;
    match ty {
        BlockType::F32 => plain::encode_f32(x, out),
        BlockType::F16 => plain::encode_f16(x, out),
        BlockType::BF16 => plain::encode_bf16(x, out),
        BlockType::Q4_0 => legacy::encode_q4_0(row, out),
        BlockType::Q4_1 => legacy::encode_q4_1(row, out),
        BlockType::Q5_0 => legacy::encode_q5_0(row, out),
        BlockType::Q5_1 => legacy::encode_q5_1(row, out),
        BlockType::Q8_0 => legacy::encode_q8_0(x, out),
        BlockType::Q2_K => encode_k::encode_q2_k(row, out),
        BlockType::Q3_K => encode_k::encode_q3_k(row, out),
        BlockType::Q4_K => encode_k::encode_q4_k(row, out),
        BlockType::Q5_K => encode_k::encode_q5_k(row, out),
        BlockType::Q6_K => encode_k::encode_q6_k(row, out),
        BlockType::IQ4_NL => tables::encode_iq4_nl(row, out),
        BlockType::IQ4_XS => tables::encode_iq4_xs(row, out),
        BlockType::MXFP4 => tables::encode_mxfp4(x, out),
    }
}
