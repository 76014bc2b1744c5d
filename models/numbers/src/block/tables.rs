//! The formats whose 4-bit codes are places in a table of 16 values: a block holds its scales, and then the codes, 32
//! elements in 16 bytes, byte `j` with element `j` in its low and element `j + 16` in its high nibble.

use half::f16;

/// Elements whose codes are in 16 consecutive bytes.
const LEN: usize = 32;
const HALF: usize = LEN / 2;

/// The values of IQ4_NL and IQ4_XS: closer to each other around 0, where most weights are.
pub const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// The values of MXFP4, the 4-bit floating-point numbers of the OCP's Microscaling Formats, doubled. There is no
/// negative 0.
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// `scale` times the values of 32 codes.
fn look_up(values: &[i8; 16], scale: f32, codes: &[u8], y: &mut [f32; LEN]) {
    for (j, &q) in codes.iter().enumerate() {
        y[j] = scale * f32::from(values[usize::from(q & 0x0f)]);
        y[j + HALF] = scale * f32::from(values[usize::from(q >> 4)]);
    }
}

/// IQ4_NL: d, codes `[16]`.
pub(super) fn decode_iq4_nl(bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.as_chunks::<18>().0.iter();
    for (block, y) in blocks.zip(out.as_chunks_mut::<LEN>().0) {
        look_up(&IQ4_VALUES, f16_at(block, 0), &block[2..], y);
    }
}

/// IQ4_XS: d, the upper two bits of eight scales `[2]`, their low nibbles `[4]`, codes `[128]`.
pub(super) fn decode_iq4_xs(bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.as_chunks::<136>().0.iter();
    for (block, y) in blocks.zip(out.as_chunks_mut::<{ 8 * LEN }>().0) {
        let d = f16_at(block, 0);
        let codes = block[8..].as_chunks::<HALF>().0.iter();
        for (sub, (codes, y)) in codes.zip(y.as_chunks_mut().0).enumerate() {
            let low = block[4 + sub / 2] >> (4 * (sub % 2)) & 0x0f;
            let high = block[2 + sub / 4] >> (2 * (sub % 4)) & 3;
            let scale = d * f32::from((low | high << 4) as i8 - 32);
            look_up(&IQ4_VALUES, scale, codes, y);
        }
    }
}

/// MXFP4: an exponent, codes `[16]`.
pub(super) fn decode_mxfp4(bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.as_chunks::<17>().0.iter();
    for (block, y) in blocks.zip(out.as_chunks_mut::<LEN>().0) {
        look_up(&MXFP4_VALUES, mxfp4_scale(block[0]), &block[1..], y);
    }
}

/// `2^(exponent - 128)`: half of what the exponent stands for, since the table's values are doubled. The two least are
/// subnormal.
fn mxfp4_scale(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    f32::from_bits(match exponent {
        0 | 1 => 1 << (21 + exponent),
        _ => (exponent - 1) << 23,
    })
}
