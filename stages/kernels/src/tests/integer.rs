//! Integer parts: they are exact on every instruction set.

use super::{Random, tables};
#[cfg(target_arch = "aarch64")]
use crate::neon::{Baseline, Dotprod, I8mm, Neon};
use crate::scalar::Scalar;
use crate::simd::{Kernel, Simd};
use crate::{Activations, Form, Isa};

/// Integer products of 64 codes, all three ways that a format may ask for.
#[derive(Clone, Copy)]
struct Products<'a> {
    codes: &'a [i8; 64],
    x: &'a [i8; 64],
}

impl Kernel for Products<'_> {
    type Output = [[f32; 16]; 2];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (codes, x) = (s.bytes(self.codes), s.bytes(self.x));
        let mut out = [[0.0; 16]; 2];
        let unsigned: [u8; 64] = self.codes.map(|c| c as u8 & 127);
        let (first, second) = unsigned.split_at(32);
        if let (Ok(a), Ok(b)) = (first.try_into(), second.try_into()) {
            s.store(s.to_f32(s.dot_u8(s.halves(a, b), x)), &mut out[0]);
        }
        s.store(s.to_f32(s.dot_i8(codes, x)), &mut out[1]);
        out
    }
}

/// Runs on the instruction set with that name.
fn run_on<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => crate::avx2::Avx2::<false>::detect()
            .expect("listed")
            .run(kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => crate::avx2::Avx2::<true>::detect()
            .expect("listed")
            .run(kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => crate::avx512::Avx512::detect().expect("listed").run(kernel),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Neon::<Baseline>::detect().expect("listed").run(kernel),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDotprod => Neon::<Dotprod>::detect().expect("listed").run(kernel),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm => Neon::<I8mm>::detect().expect("listed").run(kernel),
        _ => Scalar.run(kernel),
    }
}

#[test]
fn products_of_codes_are_exact_up_to_the_extremes() {
    let mut random = Random(3);
    let mut cases: Vec<([i8; 64], [i8; 64])> = Vec::new();
    for code in [-128, -127, -1, 0, 1, 127] {
        for x in [-127, 0, 127] {
            cases.push(([code; 64], [x; 64]));
        }
    }
    for _ in 0..500 {
        let codes = std::array::from_fn(|_| random.next() as i8);
        let x = std::array::from_fn(|_| (random.next() as i8).max(-127));
        cases.push((codes, x));
    }
    for (codes, x) in &cases {
        let sum = |i: usize, code: &dyn Fn(i8) -> i32| -> i32 {
            (4 * i..4 * i + 4)
                .map(|k| code(codes[k]) * i32::from(x[k]))
                .sum()
        };
        for table in tables() {
            let [unsigned, signed] = run_on(table.isa(), Products { codes, x });
            for i in 0..16 {
                assert_eq!(unsigned[i] as i32, sum(i, &|c| i32::from(c as u8 & 127)));
                assert_eq!(signed[i] as i32, sum(i, &|c| i32::from(c)));
            }
        }
    }
}

#[test]
fn quantised_activations_are_equal_and_as_defined() {
    let cols = 32 * 5;
    let mut x = Random(9).units(2 * cols);
    x[..32].fill(0.0);
    x[32..64].fill(1e-40);
    x[64] = 1e38;
    x[100] = 0.5;
    x[96..100].copy_from_slice(&[63.5, -63.5, 1.5, 127.0]);
    for table in tables() {
        let mut a = Activations::new(2, cols);
        a.load(&table, Form::Rows, 2, cols, &x);
        for t in 0..2 {
            let token = a.token(t);
            for (b, block) in x[t * cols..][..cols].chunks(32).enumerate() {
                let max = block.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                let inverse = if max < 1e-36 { 0.0 } else { 127.0 / max };
                let codes: Vec<i32> = block
                    .iter()
                    .map(|v| (v * inverse).round_ties_even() as i32)
                    .collect();
                let got: Vec<i32> = token.codes[32 * b..][..32]
                    .iter()
                    .map(|&c| c.into())
                    .collect();
                assert_eq!(codes, got, "{} block {b}", table.isa());
                let scale = if max < 1e-36 { 0.0 } else { max / 127.0 };
                for g in 0..2 {
                    let sum: i32 = codes[16 * g..][..16].iter().sum();
                    assert_eq!(token.scales[2 * b + g], scale);
                    assert_eq!(token.sums[2 * b + g], scale * sum as f32);
                }
            }
            assert_eq!(&a.token(t).values[..cols], &x[t * cols..][..cols]);
        }
    }
}
