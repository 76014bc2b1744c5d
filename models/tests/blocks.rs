//! The block formats against data made by an independent implementation, the Python package
//! `gguf` (`data/make_blocks.py`), bit for bit.

use forebay_models::block::{BlockType, dequantize, quantize};
use proptest::prelude::*;

macro_rules! golden {
    ($ty:ident) => {
        (
            BlockType::$ty,
            include_bytes!(concat!("data/blocks/", stringify!($ty), ".blocks")).as_slice(),
            include_bytes!(concat!("data/blocks/", stringify!($ty), ".f32")).as_slice(),
        )
    };
}

macro_rules! quantized {
    ($ty:ident) => {
        (
            BlockType::$ty,
            include_bytes!(concat!("data/blocks/", stringify!($ty), ".quantized")).as_slice(),
        )
    };
}

const WRITABLE: [BlockType; 8] = [
    BlockType::F32,
    BlockType::F16,
    BlockType::BF16,
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q5_1,
    BlockType::Q8_0,
];

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (chunks, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    chunks.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn every_format_decodes_to_the_bits_of_the_reference() {
    let cases = [
        golden!(F32),
        golden!(F16),
        golden!(BF16),
        golden!(Q4_0),
        golden!(Q4_1),
        golden!(Q5_0),
        golden!(Q5_1),
        golden!(Q8_0),
        golden!(Q2_K),
        golden!(Q3_K),
        golden!(Q4_K),
        golden!(Q5_K),
        golden!(Q6_K),
        golden!(IQ4_NL),
        golden!(IQ4_XS),
        golden!(MXFP4),
    ];
    assert_eq!(cases.map(|c| c.0), BlockType::ALL);
    for (ty, blocks, expected) in cases {
        let expected = floats(expected);
        assert!(expected.len() >= 512, "{ty}");
        let mut out = vec![f32::NAN; expected.len()];
        dequantize(ty, blocks, &mut out);
        for (i, (got, want)) in out.iter().zip(&expected).enumerate() {
            assert_eq!(
                got.to_bits(),
                want.to_bits(),
                "{ty} element {i}: {got} != {want}"
            );
        }
    }
}

#[test]
fn every_written_format_encodes_to_the_bytes_of_the_reference() {
    let x = floats(include_bytes!("data/blocks/input.f32"));
    let cases = [
        quantized!(F32),
        quantized!(F16),
        quantized!(BF16),
        quantized!(Q4_0),
        quantized!(Q4_1),
        quantized!(Q5_0),
        quantized!(Q5_1),
        quantized!(Q8_0),
    ];
    assert_eq!(cases.map(|c| c.0), WRITABLE);
    for (ty, expected) in cases {
        let mut out = vec![0xAA; expected.len()];
        quantize(ty, &x, &mut out).unwrap();
        for (i, (got, want)) in out.iter().zip(expected).enumerate() {
            let block = i / ty.block_bytes();
            assert_eq!(
                got,
                want,
                "{ty} block {block}, byte {}",
                i % ty.block_bytes()
            );
        }
    }
}

#[test]
fn k_quants_are_read_only_and_say_so() {
    let e = quantize(BlockType::Q4_K, &[0.0; 256], &mut [0; 144]).unwrap_err();
    assert!(
        e.to_string().contains("Q4_K can be read but not written"),
        "{e}"
    );
}

/// Largest error of one element, as a multiple of the block's largest magnitude (symmetric
/// formats) or of its range (formats with a minimum): half a level, except that the level opposite
/// to the extreme one is missing in the symmetric 4- and 5-bit formats (a whole level), plus the
/// rounding of the scale to f16 (2^-11 of each term).
fn tolerance(ty: BlockType) -> f32 {
    let f16_rounding = 1.0 / 1024.0;
    f16_rounding
        + match ty {
            BlockType::Q4_0 => 1.0 / 8.0,
            BlockType::Q4_1 => 0.5 / 15.0,
            BlockType::Q5_0 => 1.0 / 16.0,
            BlockType::Q5_1 => 0.5 / 31.0,
            BlockType::Q8_0 => 0.5 / 127.0,
            BlockType::BF16 => 1.0 / 256.0,
            _ => 0.0,
        }
}

proptest! {
    #[test]
    fn a_round_trip_stays_within_one_level(
        x in prop::collection::vec(-100.0f32..100.0, 32),
        which in 0..WRITABLE.len(),
    ) {
        let ty = WRITABLE[which];
        let mut bytes = vec![0; ty.row_bytes(32).unwrap()];
        quantize(ty, &x, &mut bytes).unwrap();
        let mut back = [0.0; 32];
        dequantize(ty, &bytes, &mut back);
        let magnitude = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (a, b) in x.iter().zip(&back) {
            // The range of a block is at most twice its largest magnitude.
            prop_assert!((a - b).abs() <= 2.0 * magnitude * tolerance(ty), "{ty}: {a} -> {b}");
        }
    }
}
