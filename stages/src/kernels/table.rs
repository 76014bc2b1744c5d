//! The kernel table: one choice at run time, then plain calls.

use std::fmt;
use std::str::FromStr;

use forebay_models::block::BlockType;
use forebay_models::config::{Activation, RopePairing};
use half::f16;

use super::activations::{Activations, Quantise};
use super::attention::Attend;
use super::axpy::{Axpy, Dequantise, FloatUnpack, Sink, Unpack};
use super::elementwise::{GateUp, RmsNorm, Rope};
use super::fixed::{Fold, Unfold};
use super::formats::for_format;
use super::matmul::{FloatMatmul, Matmul};
#[cfg(target_arch = "aarch64")]
use super::neon::{Baseline, Dotprod, I8mm, Neon};
use super::scalar::Scalar;
use super::simd::Simd;

/// Instruction sets with kernels of their own. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust, everywhere.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI.
    Avx512,
    /// AArch64 with NEON.
    Neon,
    /// AArch64 with NEON and its dot products of bytes.
    NeonDotprod,
    /// AArch64 with NEON, its dot products and its matrix products of bytes.
    NeonI8mm,
}

impl Isa {
    /// From slow to fast on each architecture.
    pub const ALL: [Self; 6] = [
        Self::Scalar,
        Self::Avx2,
        Self::Avx512,
        Self::Neon,
        Self::NeonDotprod,
        Self::NeonI8mm,
    ];

    /// The fastest one that this CPU has.
    pub fn detect() -> Self {
        KernelTable::best().isa
    }

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512vnni",
            Self::Neon => "neon",
            Self::NeonDotprod => "neon-dotprod",
            Self::NeonI8mm => "neon-i8mm",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is none of [`Isa::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown instruction set {0:?}; use scalar, avx2, avx512vnni, neon, neon-dotprod or neon-i8mm"
)]
pub struct UnknownIsa(String);

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(s: &str) -> Result<Self, UnknownIsa> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.name() == s)
            .ok_or_else(|| UnknownIsa(s.to_owned()))
    }
}

/// Rows of a weight matrix where they lie: in a tensor, or in neuron bundles with other rows between.
#[derive(Clone, Copy, Debug)]
pub struct WeightRows<'a> {
    /// Format of the elements.
    pub block: BlockType,
    /// From the first byte of the first row to at least the last byte of the last; any alignment.
    pub bytes: &'a [u8],
    /// Bytes from the start of a row to that of the next.
    pub stride: usize,
    /// Number of rows.
    pub n_rows: usize,
}

/// What a backend computes: the object behind [`KernelTable`], which has checked all shapes.
trait Kernels: Sync {
    fn matmul(&self, w: WeightRows<'_>, x: &Activations, out: &mut [f32], out_stride: usize);
    fn axpy(&self, block: BlockType, row: &[u8], sink: Axpy<'_>);
    fn dequantise(&self, block: BlockType, row: &[u8], out: &mut [f32]);
    fn quantise(&self, job: Quantise<'_>);
    fn fold(&self, job: Fold<'_>) -> bool;
    fn unfold(&self, job: Unfold<'_>);
    fn rmsnorm(&self, job: RmsNorm<'_>);
    fn rope(&self, job: Rope<'_>);
    fn gate_up(&self, job: GateUp<'_>);
    fn attend(&self, job: Attend<'_>);
}

impl<S: Simd> Kernels for S {
    fn matmul(&self, w: WeightRows<'_>, x: &Activations, out: &mut [f32], out_stride: usize) {
        for_format!(w.block,
            quantised F => self.run(Matmul::<F>::new(w, x, out, out_stride)),
            float F => self.run(FloatMatmul(Matmul::<F>::new(w, x, out, out_stride))))
    }

    fn axpy(&self, block: BlockType, row: &[u8], sink: Axpy<'_>) {
        unpack(*self, block, row, sink);
    }

    fn dequantise(&self, block: BlockType, row: &[u8], out: &mut [f32]) {
        unpack(*self, block, row, Dequantise(out));
    }

    fn quantise(&self, job: Quantise<'_>) {
        self.run(job);
    }

    fn fold(&self, job: Fold<'_>) -> bool {
        self.run(job)
    }

    fn unfold(&self, job: Unfold<'_>) {
        self.run(job);
    }

    fn rmsnorm(&self, job: RmsNorm<'_>) {
        self.run(job);
    }

    fn rope(&self, job: Rope<'_>) {
        self.run(job);
    }

    fn gate_up(&self, job: GateUp<'_>) {
        self.run(job);
    }

    fn attend(&self, job: Attend<'_>) {
        self.run(job);
    }
}

fn unpack<S: Simd, K: Sink>(s: S, block: BlockType, row: &[u8], sink: K) {
    for_format!(block,
        quantised F => s.run(Unpack::<F, K>::new(row, sink)),
        float F => s.run(FloatUnpack(Unpack::<F, K>::new(row, sink))))
}

/// The kernels of one instruction set.
#[derive(Clone, Copy)]
pub struct KernelTable {
    isa: Isa,
    kernels: &'static dyn Kernels,
}

impl fmt::Debug for KernelTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KernelTable").field(&self.isa).finish()
    }
}

impl KernelTable {
    /// The kernels of `isa`, or `None` where this CPU lacks it.
    pub fn new(isa: Isa) -> Option<Self> {
        let kernels: &'static dyn Kernels = match isa {
            Isa::Scalar => &Scalar,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::Avx2::detect()?,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::avx512::Avx512::detect()?,
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => return None,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Neon::<Baseline>::detect()?,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotprod => Neon::<Dotprod>::detect()?,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => Neon::<I8mm>::detect()?,
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => return None,
        };
        Some(Self { isa, kernels })
    }

    /// The kernels of the fastest instruction set that this CPU has.
    pub fn best() -> Self {
        Isa::ALL
            .into_iter()
            .rev()
            .find_map(Self::new)
            .unwrap_or(Self {
                isa: Isa::Scalar,
                kernels: &Scalar,
            })
    }

    /// Which instruction set these kernels use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// `out[t * out_stride + r] = w[r] . x[t]` for all rows `r` and tokens `t`; other elements of `out`
    /// are left alone. Quantised weights meet the 8-bit activations, others the f32 ones.
    ///
    /// The result of a (row, token) pair does not depend on what else is computed in the call.
    ///
    /// # Panics
    /// The columns are not whole blocks, or `w.bytes` or `out` is too short for the shape.
    pub fn matmul(&self, w: WeightRows<'_>, x: &Activations, out: &mut [f32], out_stride: usize) {
        if w.n_rows == 0 || x.n_tokens() == 0 {
            return;
        }
        let row_bytes = row_bytes(w.block, x.cols());
        let rows_end = (w.n_rows - 1)
            .checked_mul(w.stride)
            .and_then(|last| last.checked_add(row_bytes));
        assert!(
            rows_end.is_some_and(|end| end <= w.bytes.len()),
            "{} rows of {row_bytes} bytes, {} apart, exceed {} bytes",
            w.n_rows,
            w.stride,
            w.bytes.len()
        );
        assert_tokens(x.n_tokens(), w.n_rows, out.len(), out_stride);
        self.kernels.matmul(w, x, out, out_stride);
    }

    /// `acc[t * acc_stride + i] += h[t] * row[i]` for every token `t` with `h[t] != 0`; other tokens'
    /// elements keep their bits. `row` holds whole blocks; its columns are what `row.len()` says.
    ///
    /// # Panics
    /// `row` is not whole blocks, or `acc` is too short.
    pub fn axpy(
        &self,
        block: BlockType,
        row: &[u8],
        h: &[f32],       // [n_tokens]
        acc: &mut [f32], // [n_tokens, cols]
        acc_stride: usize,
    ) {
        let cols = cols(block, row);
        if cols == 0 || h.iter().all(|&h| h == 0.0) {
            return;
        }
        assert_tokens(h.len(), cols, acc.len(), acc_stride);
        let sink = Axpy {
            h,
            acc,
            stride: acc_stride,
            cols,
        };
        self.kernels.axpy(block, row, sink);
    }

    /// `out = row` as f32, `[cols]`, with the bits of ggml's definition.
    ///
    /// # Panics
    /// `row` is not a row of `out.len()` columns.
    pub fn dequantise(&self, block: BlockType, row: &[u8], out: &mut [f32]) {
        assert_eq!(cols(block, row), out.len(), "row of another length");
        self.kernels.dequantise(block, row, out);
    }

    /// `acc[i] += round(partial[i] * 2^32)` (ties to even), clamped to a magnitude of 2^30. Integer sums
    /// do not depend on the order of the calls. Returns false if a value was NaN (which adds nothing)
    /// or beyond the limit: the sums are then no longer exact, and the token is a fault.
    ///
    /// # Panics
    /// The lengths differ.
    #[must_use = "false means that the sums are wrong"]
    pub fn fold_fixed(&self, partial: &[f32], acc: &mut [i64]) -> bool {
        assert_eq!(partial.len(), acc.len(), "sums of another length");
        self.kernels.fold(Fold { partial, acc })
    }

    /// `x[i] += sum[i] * 2^-32`, the product rounded to f32 before the addition.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn unfold_fixed(&self, sum: &[i64], x: &mut [f32]) {
        assert_eq!(sum.len(), x.len(), "sums of another length");
        self.kernels.unfold(Unfold { sum, x });
    }

    /// `out = x / sqrt(mean(x^2) + eps) * w`, all `[d]`.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn rmsnorm(&self, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        assert!(
            x.len() == w.len() && x.len() == out.len(),
            "norm of another length"
        );
        self.kernels.rmsnorm(RmsNorm { x, w, eps, out });
    }

    /// Rotates the first `2 * cos.len()` elements of one head, `[head_dim]`, by the angles whose cosines
    /// and sines are given, `[rotary_dim / 2]`.
    ///
    /// # Panics
    /// The head is shorter than that, or cosines and sines differ in number.
    pub fn rope(&self, x: &mut [f32], cos: &[f32], sin: &[f32], pairing: RopePairing) {
        assert!(
            cos.len() == sin.len() && 2 * cos.len() <= x.len(),
            "more angles than pairs"
        );
        let job = Rope {
            x: &mut x[..2 * cos.len()],
            cos,
            sin,
            pairing,
        };
        self.kernels.rope(job);
    }

    /// `out = activation.gate(gate) * activation.up(up)`, all `[n]`; SiLU within 4 units in the last
    /// place.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn gate_up(&self, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert!(
            gate.len() == up.len() && gate.len() == out.len(),
            "FFN vectors differ in length"
        );
        let job = GateUp {
            activation,
            gate,
            up,
            out,
        };
        self.kernels.gate_up(job);
    }

    /// `out[g] = softmax(scale * q[g] . k^T) . v` for one token and the query heads that share one kv
    /// head. Without positions the result is 0.
    ///
    /// # Panics
    /// A buffer is not whole heads, or keys and values differ in number.
    pub fn attend(
        &self,
        q: &[f32], // [group, head_dim]
        k: &[f16], // [n_pos, head_dim]
        v: &[f16], // [n_pos, head_dim]
        head_dim: usize,
        scale: f32,
        out: &mut [f32], // [group, head_dim]
    ) {
        assert!(
            head_dim > 0
                && q.len().is_multiple_of(head_dim)
                && k.len().is_multiple_of(head_dim)
                && k.len() == v.len()
                && q.len() == out.len(),
            "attention buffers are not whole heads of {head_dim}"
        );
        let job = Attend {
            q,
            k,
            v,
            head_dim,
            scale,
            out,
        };
        self.kernels.attend(job);
    }

    pub(super) fn quantise(&self, job: Quantise<'_>) {
        self.kernels.quantise(job);
    }
}

fn row_bytes(block: BlockType, cols: usize) -> usize {
    let Some(bytes) = block.row_bytes(cols) else {
        panic!("{cols} columns are not whole blocks of {block}");
    };
    bytes
}

fn cols(block: BlockType, row: &[u8]) -> usize {
    let bytes = block.block_bytes();
    assert!(
        row.len().is_multiple_of(bytes),
        "row is not whole blocks of {block}"
    );
    row.len() / bytes * block.block_len()
}

/// `[n_tokens, width]` with `stride` fits into `len`, and tokens do not overlap.
fn assert_tokens(n_tokens: usize, width: usize, len: usize, stride: usize) {
    let end = n_tokens
        .saturating_sub(1)
        .checked_mul(stride)
        .and_then(|last| last.checked_add(width));
    assert!(
        end.is_some_and(|end| end <= len) && (n_tokens <= 1 || stride >= width),
        "{n_tokens} tokens of {width}, {stride} apart, exceed {len} elements"
    );
}
