//! How a device rounds: found out by numbers for which it matters.

use crate::fault::DeviceFault;
use crate::probe::Random;
use crate::shaders::{self, Arithmetic};

use super::context::Context;
use super::passes::{bind, dispatch};
use super::pipelines::{Binding, compile, layout};

/// Lanes of a workgroup of the shader.
const LANES: usize = 64;

/// `a`, `b`, `c`.
type Triple = [f32; 3];

/// How many of some triples, for which it matters, a device rounds in which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roundings {
    /// Triples.
    pub total: usize,
    /// `a * b + c` was rounded once.
    pub fused: usize,
    /// `a * b` was rounded, then the sum.
    pub unfused: usize,
    /// `a * b` alone was rounded to the nearest, ties to even.
    pub products: usize,
}

/// What a device's `fma` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fma {
    /// It rounds once.
    Fused,
    /// It rounds twice.
    Unfused,
    /// Neither for all numbers.
    Other,
}

impl Roundings {
    /// What it amounts to.
    pub fn fma(&self) -> Fma {
        match () {
            () if self.fused == self.total => Fma::Fused,
            () if self.unfused == self.total => Fma::Unfused,
            () => Fma::Other,
        }
    }

    /// Whether products alone are the CPU's.
    pub fn products_are_exact(&self) -> bool {
        self.products == self.total
    }

    /// Asks an open device, `n` times.
    pub(super) fn of(
        context: &mut Context,
        arithmetic: Arithmetic,
        n: usize,
    ) -> Result<Self, DeviceFault> {
        let triples = triples(n);
        let results = compute(context, arithmetic, &triples)?;
        let mut found = Self {
            total: n,
            fused: 0,
            unfused: 0,
            products: 0,
        };
        for ([a, b, c], [fused, product]) in triples.into_iter().zip(results) {
            found.fused += usize::from(fused == a.mul_add(b, c).to_bits());
            found.unfused += usize::from(fused == (a * b + c).to_bits());
            found.products += usize::from(product == (a * b).to_bits());
        }
        Ok(found)
    }
}

/// Numbers of the magnitudes that occur in products with panels, whose fused and unfused results differ. In a quarter
/// of them `c` cancels nearly all of `a * b`.
fn triples(n: usize) -> Vec<Triple> {
    let mut random = Random(7);
    let mut triples = Vec::with_capacity(n);
    while triples.len() < n {
        let (a, b) = (number(&mut random, -20..30), number(&mut random, -50..10));
        let exponent = (a * b).abs().log2() as i32;
        let c = match random.below(4) {
            0 => -(a * b),
            _ => number(&mut random, exponent - 30..exponent + 30),
        };
        if a.mul_add(b, c) != a * b + c {
            triples.push([a, b, c]);
        }
    }
    triples
}

/// A number with an exponent in the range, and any sign and fraction.
fn number(random: &mut Random, exponents: std::ops::Range<i32>) -> f32 {
    let exponent = exponents.start + random.below(exponents.len() as u64) as i32;
    let fraction = random.below(1 << 23) as u32;
    let sign = (random.below(2) as u32) << 31;
    f32::from_bits(sign | ((exponent + 127) as u32) << 23 | fraction)
}

/// `fused` and product of every triple, as bits.
fn compute(
    context: &mut Context,
    arithmetic: Arithmetic,
    triples: &[Triple],
) -> Result<Vec<[u32; 2]>, DeviceFault> {
    use wgpu::BufferUsages as Usage;
    let n = triples.len();
    let layout = layout(context, &[Binding::Input, Binding::Output, Binding::Params]);
    let pipeline = compile(context, "roundings", shaders::triples(arithmetic), &layout)?;
    let input = context.piece(16 * n as u64, Usage::COPY_DST | Usage::STORAGE)?;
    let output = context.piece(8 * n as u64, Usage::COPY_SRC | Usage::STORAGE)?;
    let readback = context.piece(8 * n as u64, Usage::COPY_DST | Usage::MAP_READ)?;
    let params = context.piece(16, Usage::COPY_DST | Usage::UNIFORM)?;
    let words: Vec<[u8; 4]> = triples
        .iter()
        .flat_map(|[a, b, c]| [a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes(), [0; 4]])
        .collect();
    context.guarded(0, |device| {
        let queue = &context.queue;
        queue.write_buffer(&input.buffer, 0, words.as_flattened());
        let numbers = [n as u32, 0, 0, 0];
        queue.write_buffer(
            &params.buffer,
            0,
            numbers.map(u32::to_le_bytes).as_flattened(),
        );
        let buffers = [&input.buffer, &output.buffer, &params.buffer];
        let group = bind(
            device,
            &layout,
            buffers.map(wgpu::Buffer::as_entire_binding),
        );
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        dispatch(&mut pass, &pipeline, &group, [n.div_ceil(LANES), 1, 1]);
        drop(pass);
        encoder.copy_buffer_to_buffer(&output.buffer, 0, &readback.buffer, 0, 8 * n as u64);
        queue.submit([encoder.finish()]);
        readback
            .buffer
            .slice(..)
            .map_async(wgpu::MapMode::Read, |_| {});
    })?;
    context.finish()?;
    let view = readback.buffer.slice(..8 * n as u64).get_mapped_range();
    let view = view.map_err(|error| DeviceFault::Lost {
        reason: error.to_string(),
    })?;
    let word = |four: &[u8; 4]| u32::from_le_bytes(*four);
    let pairs = view.as_chunks::<4>().0.as_chunks::<2>().0.iter();
    let results = pairs
        .map(|[fused, product]| [word(fused), word(product)])
        .collect();
    drop(view);
    for piece in [input, output, readback, params] {
        context.free(piece);
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triples_tell_one_rounding_from_two_and_stay_in_the_exact_range() {
        let triples = triples(2000);
        let mut cancelling = 0;
        for [a, b, c] in triples {
            let (fused, unfused) = (a.mul_add(b, c), a * b + c);
            assert_ne!(fused.to_bits(), unfused.to_bits());
            assert!(fused.is_normal() && (a * b).is_normal() && c.is_normal());
            cancelling += usize::from(fused.abs() < (a * b).abs() * 1e-6);
        }
        assert!(cancelling > 200, "{cancelling} cancel");
    }

    #[test]
    fn a_device_is_what_all_its_results_are() {
        let of = |fused, unfused| Roundings {
            total: 10,
            fused,
            unfused,
            products: 10,
        };
        assert_eq!(of(10, 0).fma(), Fma::Fused);
        assert_eq!(of(0, 10).fma(), Fma::Unfused);
        for mixed in [of(9, 1), of(9, 0), of(0, 9), of(0, 0)] {
            assert_eq!(mixed.fma(), Fma::Other);
        }
    }
}
