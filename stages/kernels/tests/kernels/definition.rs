//! Formats and quantisation, element by element, as ggml defines them.

use forebay_numbers::block::BlockType;
use half::{bf16, f16};

use super::Random;

/// Byte offsets of a block's f16 numbers.
fn f16_offsets(block: BlockType) -> &'static [usize] {
    use BlockType as B;
    match block {
        B::F32 | B::BF16 | B::MXFP4 => &[],
        B::F16 | B::Q4_0 | B::Q5_0 | B::Q8_0 | B::IQ4_NL | B::IQ4_XS => &[0],
        B::Q4_1 | B::Q5_1 | B::Q4_K | B::Q5_K => &[0, 2],
        B::Q2_K => &[80, 82],
        B::Q3_K => &[108],
        B::Q6_K => &[208],
    }
}

/// A row of random codes with finite scales.
pub(super) fn random_row(block: BlockType, cols: usize, random: &mut Random) -> Vec<u8> {
    let mut row = Vec::new();
    for _ in 0..cols / block.block_len() {
        let start = row.len();
        match block {
            BlockType::F32 => row.extend(random.unit().to_le_bytes()),
            BlockType::BF16 => row.extend(bf16::from_f32(random.unit()).to_le_bytes()),
            _ => row.extend((0..block.block_bytes()).map(|_| random.next() as u8)),
        }
        if block == BlockType::MXFP4 {
            // The two least are subnormal.
            row[start] = match row[start] {
                least @ 0..8 => least / 4,
                any => 112 + any % 16,
            };
        }
        for o in f16_offsets(block) {
            let scale = f16::from_f32(random.unit());
            row[start + o..start + o + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    row
}

/// A row whose codes, group scales and minima have all bits set, or none, or only the sign of bytes.
pub(super) fn constant_row(block: BlockType, cols: usize, byte: u8) -> Vec<u8> {
    let mut one = vec![byte; block.block_bytes()];
    match block {
        BlockType::F32 => one.copy_from_slice(&1e3_f32.to_le_bytes()),
        BlockType::BF16 => one.copy_from_slice(&bf16::from_f32(-3.0).to_le_bytes()),
        // 2^-1; 255 would be 2^127.
        BlockType::MXFP4 => one[0] = 127,
        _ => {
            for &o in f16_offsets(block) {
                one[o..o + 2].copy_from_slice(&f16::from_f32(-1.5).to_le_bytes());
            }
        }
    }
    one.repeat(cols / block.block_len())
}

fn half_at(b: &[u8], o: usize) -> f32 {
    f16::from_le_bytes([b[o], b[o + 1]]).to_f32()
}

/// Scale and minimum `j` of Q4_K and Q5_K (`get_scale_min_k4`).
fn scale_min(q: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        (
            (q[j + 4] & 0x0f) | (q[j - 4] >> 6) << 4,
            (q[j + 4] >> 4) | (q[j] >> 6) << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

/// Scale `j` of Q3_K.
fn scale_q3(q: &[u8], j: usize) -> f32 {
    let low = if j < 8 { q[j] & 0x0f } else { q[j - 8] >> 4 };
    let high = q[8 + j % 4] >> (2 * (j / 4)) & 3;
    f32::from((low | high << 4) as i8 - 32)
}

/// `kvalues_iq4nl`
const IQ4: [f32; 16] = [
    -127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.,
];

/// The 4-bit floating-point number with a sign, two bits of exponent and one of fraction.
fn e2m1(code: u8) -> f32 {
    let fraction = f32::from(code & 1) / 2.0;
    let magnitude = match code >> 1 & 3 {
        0 => fraction,
        exponent => (1.0 + fraction) * f32::from(1_u8 << (exponent - 1)),
    };
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Element `i` of the block `b`.
fn element(block: BlockType, b: &[u8], i: usize) -> f32 {
    use BlockType as B;
    let nibble = |o: usize| f32::from(b[o + i % 16] >> (4 * (i / 16)) & 0x0f);
    let fifth = |o: usize| f32::from((b[o + i / 8] >> (i % 8) & 1) << 4);
    // K formats: 32 bytes hold several fields of elements 32 apart.
    let nibble_k = |o: usize| b[o + 32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 0x0f;
    let crumb = |o: usize| b[o + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
    match block {
        B::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        B::F16 => half_at(b, 0),
        B::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        B::Q4_0 => half_at(b, 0) * (nibble(2) - 8.0),
        B::Q4_1 => half_at(b, 0) * nibble(4) + half_at(b, 2),
        B::Q5_0 => half_at(b, 0) * (nibble(6) + fifth(2) - 16.0),
        B::Q5_1 => half_at(b, 0) * (nibble(8) + fifth(4)) + half_at(b, 2),
        B::Q8_0 => half_at(b, 0) * f32::from(b[2 + i] as i8),
        B::Q2_K => {
            let s = b[i / 16];
            let scale = half_at(b, 80) * f32::from(s & 0x0f);
            scale * f32::from(crumb(16)) - half_at(b, 82) * f32::from(s >> 4)
        }
        B::Q3_K => {
            let high = b[i % 32] >> (i / 32) & 1;
            let code = f32::from(crumb(32)) - if high == 1 { 0.0 } else { 4.0 };
            half_at(b, 108) * scale_q3(&b[96..108], i / 16) * code
        }
        B::Q4_K | B::Q5_K => {
            let (scale, min) = scale_min(&b[4..16], i / 32);
            let code = if block == B::Q4_K {
                nibble_k(16)
            } else {
                nibble_k(48) | (b[16 + i % 32] >> (i / 32) & 1) << 4
            };
            half_at(b, 0) * scale * f32::from(code) - half_at(b, 2) * min
        }
        B::Q6_K => {
            let low = b[64 * (i / 128) + i % 64] >> (4 * (i / 64 % 2)) & 0x0f;
            let code = f32::from(low | crumb(128) << 4) - 32.0;
            half_at(b, 208) * f32::from(b[192 + i / 16] as i8) * code
        }
        B::IQ4_NL => half_at(b, 0) * IQ4[nibble(2) as usize],
        B::IQ4_XS => {
            let (sub, i) = (i / 32, i % 32);
            let high = u16::from_le_bytes([b[2], b[3]]) >> (2 * sub) & 3;
            let low = u16::from(b[4 + sub / 2] >> (4 * (sub % 2)) & 0x0f);
            let code = b[8 + 16 * sub + i % 16] >> (4 * (i / 16)) & 0x0f;
            half_at(b, 0) * (f32::from(high * 16 + low) - 32.0) * IQ4[usize::from(code)]
        }
        B::MXFP4 => 2_f32.powi(i32::from(b[0]) - 127) * e2m1(nibble(1) as u8),
    }
}

/// The numbers of a row.
pub(super) fn weights(block: BlockType, row: &[u8]) -> Vec<f32> {
    row.chunks_exact(block.block_bytes())
        .flat_map(|b| (0..block.block_len()).map(move |i| element(block, b, i)))
        .collect()
}

/// What a token's activations are after quantisation to blocks of 32.
pub(super) fn quantised(x: &[f32]) -> Vec<f64> {
    let mut out = Vec::new();
    for block in x.chunks(32) {
        let max = block.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        for &v in block {
            let code = if max == 0.0 {
                0.0
            } else {
                (v * (127.0 / max)).round_ties_even()
            };
            out.push(f64::from(max / 127.0) * f64::from(code));
        }
    }
    out
}
