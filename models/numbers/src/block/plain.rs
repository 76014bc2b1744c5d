//! Unblocked elements: F32, F16 and BF16, little endian.

use half::{bf16, f16};

pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (b, o) in bytes.as_chunks::<4>().0.iter().zip(out) {
        *o = f32::from_le_bytes(*b);
    }
}

pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    for (b, o) in bytes.as_chunks::<2>().0.iter().zip(out) {
        *o = f16::from_le_bytes(*b).to_f32();
    }
}

pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (b, o) in bytes.as_chunks::<2>().0.iter().zip(out) {
        *o = bf16::from_le_bytes(*b).to_f32();
    }
}

pub(super) fn encode_f32(x: &[f32], out: &mut [u8]) {
    for (v, o) in x.iter().zip(out.as_chunks_mut::<4>().0) {
        *o = v.to_le_bytes();
    }
}

pub(super) fn encode_f16(x: &[f32], out: &mut [u8]) {
    for (v, o) in x.iter().zip(out.as_chunks_mut::<2>().0) {
        *o = f16::from_f32(*v).to_le_bytes();
    }
}

pub(super) fn encode_bf16(x: &[f32], out: &mut [u8]) {
    for (v, o) in x.iter().zip(out.as_chunks_mut::<2>().0) {
        *o = bf16::from_f32(*v).to_le_bytes();
    }
}
