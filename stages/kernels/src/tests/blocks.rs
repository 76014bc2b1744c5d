//! Products of whole blocks, where an instruction set has its own way, up to the extremes of codes and scales.

use std::marker::PhantomData;

use super::integer::run_on;
use super::random::Random;
use crate::Isa;
use crate::formats::{Mxfp4, Q2K, Q3K, Q4_0, Q5_0, Q5_1, Q6K, Q8_0};
use crate::panel_formats::PanelFormat;
use crate::simd::{GROUPS, Kernel, Simd, TOGETHER};
use crate::tokens::PanelTokens;

/// A block's products with four tokens, added to sums that are 0; `None` where the instruction set has no way of its
/// own.
struct AddBlock<'a, F> {
    codes: &'a [[i8; 64]; GROUPS],
    scales: [[f32; 16]; 2],
    mins: [[f32; 16]; 2],
    x: PanelTokens<'a, TOGETHER>,
    format: PhantomData<F>,
}

impl<F: PanelFormat> Kernel for AddBlock<'_, F> {
    type Output = Option<[[f32; 16]; TOGETHER]>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let codes = self.codes.map(|codes| s.bytes(&codes));
        let scales = self.scales.map(|scales| s.load(&scales));
        let mins = self.mins.map(|mins| s.load(&mins));
        let mut sums = [s.zero(); TOGETHER];
        let added = s.add_block::<F, TOGETHER>(&codes, (scales, mins), &self.x, 0, &mut sums);
        let mut out = [[0.0; 16]; TOGETHER];
        for (out, sum) in out.iter_mut().zip(sums) {
            s.store(sum, out);
        }
        added.then_some(out)
    }
}

/// A block of codes, scales, minima and activations.
struct Case {
    codes: [[i8; 64]; GROUPS],
    scales: [[f32; 16]; 2],
    mins: [[f32; 16]; 2],
    x: [[i8; 4 * GROUPS]; TOGETHER],
    x_scales: [f32; TOGETHER],
    /// `x_scale * sum(x)` of both halves.
    half_sums: [[f32; 2]; TOGETHER],
}

impl Case {
    /// Extreme codes and activations, and scales with up to `scale_bits` significant bits.
    fn extreme<F: PanelFormat>(turn: i32, scale_bits: u32, random: &mut Random) -> Self {
        let mut pick = |values: [i32; 3]| values[(random.next() % 3) as usize];
        let (least, most) = match F::SIGNED {
            true => (-128, 127),
            false => (0, F::MAX_CODE),
        };
        let mut codes = [[0; 64]; GROUPS];
        for code in codes.as_flattened_mut() {
            *code = match turn {
                0 => most as i8,
                1 => least as i8,
                _ => pick([least, most, (least + most) / 2 + 1]) as i8,
            };
        }
        let mut x = [[0; 4 * GROUPS]; TOGETHER];
        for x in x.as_flattened_mut() {
            *x = pick([-127, 127, 50]) as i8;
        }
        let mut scales = [[[0.0; 16]; 2]; 2];
        for scale in scales.as_flattened_mut().as_flattened_mut() {
            let bits = (1 << (scale_bits - 1)) + pick([0, 1, (1 << (scale_bits - 1)) - 1]);
            *scale = (bits * pick([-1, 1, 1])) as f32 * 0.5f32.powi(turn);
        }
        let x_scales = [0.01, 1.5, 3e-5, 7.0];
        let half_sum =
            |x: &[i8], scale| x.iter().map(|&x| i32::from(x)).sum::<i32>() as f32 * scale;
        Self {
            codes,
            scales: scales[0],
            mins: scales[1],
            x,
            x_scales,
            half_sums: std::array::from_fn(|t| {
                let (low, high) = x[t].split_at(16);
                [half_sum(low, x_scales[t]), half_sum(high, x_scales[t])]
            }),
        }
    }

    /// What [`AddBlock`] gives.
    fn on<F: PanelFormat>(&self, isa: Isa) -> Option<[[f32; 16]; TOGETHER]> {
        let count = |x: &[i8]| -x.iter().map(|&x| i32::from(x)).sum::<i32>();
        let tokens = PanelTokens {
            values: &[],
            codes: &[self.x],
            scales: &[self.x_scales],
            sums: &[self.half_sums.map(|[low, high]| low + high)],
            counts: &[self.x.map(|x| count(&x))],
            half_sums: &[self.half_sums],
            half_counts: &[self.x.map(|x| [count(&x[..16]), count(&x[16..])])],
        };
        let job = AddBlock::<F> {
            codes: &self.codes,
            scales: self.scales,
            mins: self.mins,
            x: tokens,
            format: PhantomData,
        };
        run_on(isa, job).flatten()
    }

    /// The same for a row and a token, by definition.
    fn expected<F: PanelFormat>(&self, row: usize, t: usize) -> f32 {
        let bias = if F::BIAS_BITS > 0 {
            1 << F::BIAS_BITS
        } else {
            0
        };
        let product = |i: usize| {
            let code = self.codes[i / 4][4 * row + i % 4];
            let code = match F::SIGNED {
                true => i32::from(code),
                false => i32::from(code as u8),
            };
            (code - bias) * i32::from(self.x[t][i])
        };
        let dots = [0..16, 16..32].map(|half| half.map(product).sum::<i32>());
        let [scales, mins] = [self.scales, self.mins].map(|of| [of[0][row], of[1][row]]);
        let scaled = match F::HALVES {
            true => (dots[0] as f32).mul_add(scales[0], dots[1] as f32 * scales[1]),
            false => (dots[0] + dots[1]) as f32 * scales[0],
        };
        let [low, high] = self.half_sums[t];
        let sum = scaled.mul_add(self.x_scales[t], 0.0);
        match (F::MIN, F::HALVES) {
            (false, _) => sum,
            (true, false) => (-mins[0]).mul_add(low + high, sum),
            (true, true) => (-mins[1]).mul_add(high, (-mins[0]).mul_add(low, sum)),
        }
    }
}

fn blocks_are_exact<F: PanelFormat>(scale_bits: u32) {
    let mut random = Random(23);
    for turn in 0..64 {
        let case = Case::extreme::<F>(turn, scale_bits, &mut random);
        for isa in Isa::ALL {
            let Some(sums) = case.on::<F>(isa) else {
                continue;
            };
            for (t, row) in (0..TOGETHER).flat_map(|t| (0..16).map(move |row| (t, row))) {
                let what = format!("{isa} {} turn {turn}, token {t}, row {row}", F::BLOCK);
                assert_eq!(sums[t][row], case.expected::<F>(row, t), "{what}");
            }
        }
    }
}

#[test]
fn products_of_blocks_are_exact_up_to_the_extremes() {
    blocks_are_exact::<Q4_0>(22);
    blocks_are_exact::<Q5_0>(22);
    blocks_are_exact::<Q5_1>(22);
    blocks_are_exact::<Q8_0>(22);
    blocks_are_exact::<Q2K>(22);
    blocks_are_exact::<Q3K>(22);
    blocks_are_exact::<Q6K>(22);
    blocks_are_exact::<Mxfp4>(24);
}
