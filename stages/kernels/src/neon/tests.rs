//! Products of blocks: every flavour that the CPU has, against plain sums.

use super::products::Products;
use super::{Baseline, Dotprod, I8mm, Neon};
use crate::simd::Simd;
use crate::tests::random::Random;

/// Codes of 16 rows, `[row][element]`.
type Codes = [[i8; 32]; 16];

/// The definition.
fn sums(codes: &Codes, x: &[i8; 32], init: i32) -> [i32; 16] {
    codes.map(|row| {
        let products = row
            .iter()
            .zip(x)
            .map(|(&c, &x)| i32::from(c) * i32::from(x));
        init + products.sum::<i32>()
    })
}

/// Checks one block with two tokens, together and alone.
fn check<P: Products>(neon: &Neon<P>, codes: &Codes, x: [&[i8; 32]; 2], init: [i32; 2]) {
    let groups: [_; 8] = std::array::from_fn(|g| {
        let bytes = std::array::from_fn(|i| codes[i / 4][4 * g + i % 4]);
        neon.bytes(&bytes)
    });
    // Sums stay below 2^24, so f32 shows all of their digits.
    let lanes = |sum| {
        let mut lanes = [0.0; 16];
        neon.store(neon.to_f32(sum), &mut lanes);
        lanes.map(|v| v as i32)
    };
    let want = [0, 1].map(|t| sums(codes, x[t], init[t]));
    let alone = [0, 1].map(|t| lanes(neon.0.dot_block(groups, x[t], init[t])));
    assert_eq!(alone, want, "alone");
    let pair = neon.0.dot_block_pair(groups, x, init).map(lanes);
    assert_eq!(pair, want, "as a pair");
}

fn check_all<P: Products>(neon: Option<&Neon<P>>) {
    let Some(neon) = neon else { return };
    for code in [-128, -1, 0, 127] {
        for x in [-127, 127] {
            let other = [-x; 32];
            check(neon, &[[code; 32]; 16], [&[x; 32], &other], [0, -7]);
        }
    }
    let mut random = Random(6);
    for i in 0..200 {
        let lowest = if i % 2 == 0 { -128 } else { 0 };
        let codes = [(); 16].map(|()| [(); 32].map(|()| (random.next() as i8).max(lowest)));
        let x = [(); 2].map(|()| [(); 32].map(|()| (random.next() as i8).max(-127)));
        let init = [(); 2].map(|()| random.next() as i32 >> 10);
        check(neon, &codes, [&x[0], &x[1]], init);
    }
}

#[test]
fn blocks_are_summed_exactly_by_every_flavour() {
    assert!(
        Neon::<Baseline>::detect().is_some(),
        "every CPU of this architecture"
    );
    check_all(Neon::<Baseline>::detect());
    check_all(Neon::<Dotprod>::detect());
    check_all(Neon::<I8mm>::detect());
}
