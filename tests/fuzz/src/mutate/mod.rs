//! Changes to inputs: of bytes here, of JSON, of text, of GGUF headers and of tokenizers in the modules.

pub mod gguf;
pub mod json;
pub mod text;
pub mod tokenizer;

use crate::random::Random;

/// Numbers at the edges of types and of what is accepted.
pub const NUMBERS: [u64; 24] = [
    0,
    1,
    2,
    7,
    31,
    32,
    64,
    127,
    128,
    255,
    256,
    4095,
    4096,
    65_535,
    1 << 16,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 40,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// A number for a place that now holds `old`, in an input of `len` bytes.
pub fn number(old: u64, len: usize, random: &mut Random) -> u64 {
    let small = 1 + random.below(8) as u64;
    match random.below(8) {
        0 => old.wrapping_add(small),
        1 => old.wrapping_sub(small),
        2 => old.wrapping_mul(2),
        3 => old / 2,
        4 => (len as u64).wrapping_add(small).wrapping_sub(4),
        5 => random.bits() >> random.below(64),
        _ => *random.pick(&NUMBERS),
    }
}

/// Replaces the little-endian integer of `size` bytes at `at`.
pub fn renumber(input: &mut [u8], at: usize, size: usize, random: &mut Random) {
    let len = input.len();
    let Some(place) = input.get_mut(at..at + size) else {
        return;
    };
    let mut old = [0; 8];
    old[..size].copy_from_slice(place);
    let new = number(u64::from_le_bytes(old), len, random).to_le_bytes();
    place.copy_from_slice(&new[..size]);
}

/// One to four changes of `input` that know nothing of its format; `other` is another input.
pub fn bytes(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    loop {
        change(input, other, random);
        if random.below(4) != 0 {
            return;
        }
    }
}

fn change(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let len = input.len();
    if len == 0 {
        input.extend(&other[random.range(other.len())]);
        return;
    }
    let at = random.below(len);
    match random.below(12) {
        0 => input[at] ^= 1 << random.below(8),
        1 => input[at] = *random.pick(&[0, 1, 0x7f, 0x80, 0xff, b'0', b'"', b' ']),
        2 => input[at] = random.bits() as u8,
        3..=5 => {
            let size = *random.pick(&[2, 4, 8]);
            let aligned = at / size * size;
            let at = if random.one_in(2) { at } else { aligned };
            renumber(input, at, size, random);
        }
        6 => drop(input.drain(random.range(len))),
        7 => {
            let block = input[random.range(len)].to_vec();
            input.splice(at..at, block);
        }
        8 => {
            let block = input[random.range(len)].to_vec();
            let end = (at + block.len()).min(len);
            input[at..end].copy_from_slice(&block[..end - at]);
        }
        9 => input.truncate(at),
        10 => {
            let block = &other[random.range(other.len())];
            input.splice(at..at, block.iter().copied());
        }
        _ => {
            let from = random.below(other.len() + 1);
            input.truncate(at);
            input.extend(&other[from..]);
        }
    }
}
