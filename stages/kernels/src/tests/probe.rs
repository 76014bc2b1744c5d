//! The measures of the machine do what they count.

use super::{Random, tables};
use crate::scalar::Scalar;
use crate::simd::{Kernel, Simd};

#[test]
fn every_byte_is_read() {
    for table in tables() {
        for len in [0, 1, 63, 64, 65, 511, 512, 513, 1024, 2500] {
            let mut bytes = vec![0; len + 1];
            // Behind the end: must not be read.
            bytes[len] = 1;
            assert_eq!(table.read_pass(&bytes[..len]), 0);
            for i in 0..len {
                bytes[i] = 0x80;
                assert_eq!(table.read_pass(&bytes[..len]), -128, "byte {i} of {len}");
                bytes[i] = 0;
            }
        }
    }
}

#[test]
fn the_accumulators_count_what_was_multiplied() {
    for table in tables() {
        let isa = table.isa();
        for (of_round, count) in [
            (table.int8_peak(1), &|rounds| table.int8_peak(rounds)),
            (table.f32_peak(1), &|rounds| table.f32_peak(rounds)),
        ] as [(u64, &dyn Fn(usize) -> u64); 2]
        {
            assert!(of_round >= 4 * 16, "{isa}: {of_round}");
            assert_eq!(count(0), 0, "{isa}");
            assert_eq!(count(1000), 1000 * of_round, "{isa}");
            // More would overflow.
            assert_eq!(count(usize::MAX), 65536 * of_round, "{isa}");
        }
    }
}

/// `acc + dot` against the dot product alone.
struct Accumulate<'a> {
    acc: i8,
    codes: &'a [i8; 64],
    x: &'a [i8; 64],
}

impl Kernel for Accumulate<'_> {
    type Output = [[f32; 16]; 2];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (codes, x) = (s.bytes(self.codes), s.bytes(self.x));
        let start = s.round(s.splat(f32::from(self.acc)));
        let mut out = [[0.0; 16]; 2];
        s.store(s.to_f32(s.dot_u8_into(start, codes, x)), &mut out[0]);
        let sum = s.add(s.to_f32(start), s.to_f32(s.dot_u8(codes, x)));
        s.store(sum, &mut out[1]);
        out
    }
}

#[test]
fn accumulating_adds_the_dot_product() {
    let mut random = Random(11);
    for _ in 0..200 {
        let codes = std::array::from_fn(|_| (random.next() & 127) as i8);
        let x = std::array::from_fn(|_| (random.next() as i8).max(-127));
        let job = || Accumulate {
            acc: (codes[0] ^ x[0]) / 2,
            codes: &codes,
            x: &x,
        };
        let [into, apart] = Scalar.run(job());
        assert_eq!(into, apart);
        #[cfg(target_arch = "x86_64")]
        {
            use crate::{avx2::Avx2, avx512::Avx512};
            if let Some(s) = Avx2::<false>::detect() {
                assert_eq!(s.run(job()), [into; 2]);
            }
            if let Some(s) = Avx512::detect() {
                assert_eq!(s.run(job()), [into; 2]);
            }
        }
    }
}
