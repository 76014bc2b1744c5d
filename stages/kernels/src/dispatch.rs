//! From a format to the kernel that is compiled for it, on each backend.

use forebay_numbers::block::BlockType;

use super::activations::{Quantise, QuantiseLane, QuantiseLaned};
use super::attention::Attend;
use super::axpy::Axpy;
use super::elementwise::{GateUp, LayerNorm, RmsNorm, Rope};
use super::fixed::{Fold, Unfold};
use super::float_panels::FloatPanelMatmul;
use super::formats::for_format;
use super::lanes::{LanedAxpy, LanedMatmul, for_laned};
use super::matmul::{FloatMatmul, Matmul};
use super::numbers::{Codes, Floats};
use super::panels::PanelMatmul;
use super::probe::{F32Peak, Int8Peak, ReadPass};
use super::recurrent::{Decay, DeltaStep, Sigmoid};
use super::simd::Simd;

/// The kernels of a backend: the object behind [`KernelTable`](super::table::KernelTable), which has checked all
/// shapes.
pub(super) trait Kernels: Sync {
    fn matmul(&self, block: BlockType, job: Matmul<'_, ()>);
    fn axpy(&self, block: BlockType, job: Axpy<'_, ()>);
    fn axpy_laned(&self, block: BlockType, job: LanedAxpy<'_, ()>);
    fn quantise(&self, job: Quantise<'_>);
    fn quantise_laned(&self, job: QuantiseLaned<'_>);
    fn quantise_lane(&self, job: QuantiseLane<'_>);
    fn fold(&self, job: Fold<'_>) -> bool;
    fn unfold(&self, job: Unfold<'_>);
    fn rmsnorm(&self, job: RmsNorm<'_>);
    fn layernorm(&self, job: LayerNorm<'_>);
    fn rope(&self, job: Rope<'_>);
    fn gate_up(&self, job: GateUp<'_>);
    fn sigmoid(&self, job: Sigmoid<'_>);
    fn decay(&self, job: Decay<'_>);
    fn delta_step(&self, job: DeltaStep<'_>);
    fn attend(&self, job: Attend<'_>);
    fn read_pass(&self, job: ReadPass<'_>) -> i32;
    fn f32_peak(&self, job: F32Peak) -> u64;
}

/// Products of bytes, for which a CPU may have a unit beside that of the other kernels.
pub(super) trait Products: Sync {
    /// Maximum number of tokens in a piece.
    fn widest(&self) -> usize;
    fn panels(&self, job: PanelMatmul<'_, ()>) -> bool;
    fn int8_peak(&self, job: Int8Peak) -> u64;
}

impl<S: Simd> Products for S {
    fn widest(&self) -> usize {
        S::WIDEST
    }

    fn panels(&self, job: PanelMatmul<'_, ()>) -> bool {
        for_format!(job.w.block,
            quantised F => self.run(job.of::<F>()),
            float F => self.run(FloatPanelMatmul(job.of::<F>())))
    }

    fn int8_peak(&self, job: Int8Peak) -> u64 {
        self.run(job)
    }
}

impl<S: Simd> Kernels for S {
    fn matmul(&self, block: BlockType, job: Matmul<'_, ()>) {
        if job.is_laned() {
            return for_laned!(block, F => self.run(LanedMatmul(job.of::<F>())));
        }
        for_format!(block,
            quantised F => self.run(job.of::<F>()),
            float F => self.run(FloatMatmul(job.of::<F>())))
    }

    fn axpy(&self, block: BlockType, job: Axpy<'_, ()>) {
        for_format!(block,
            quantised F => self.plain().run(job.of::<Codes<F>>()),
            float F => self.plain().run(job.of::<Floats<F>>()))
    }

    fn axpy_laned(&self, block: BlockType, job: LanedAxpy<'_, ()>) {
        for_laned!(block, F => self.plain().run(job.of::<F>()));
    }

    fn quantise(&self, job: Quantise<'_>) {
        self.plain().run(job);
    }

    fn quantise_laned(&self, job: QuantiseLaned<'_>) {
        self.plain().run(job);
    }

    fn quantise_lane(&self, job: QuantiseLane<'_>) {
        self.plain().run(job);
    }

    fn fold(&self, job: Fold<'_>) -> bool {
        self.plain().run(job)
    }

    fn unfold(&self, job: Unfold<'_>) {
        self.plain().run(job);
    }

    fn rmsnorm(&self, job: RmsNorm<'_>) {
        self.plain().run(job);
    }

    fn layernorm(&self, job: LayerNorm<'_>) {
        self.plain().run(job);
    }

    fn rope(&self, job: Rope<'_>) {
        self.plain().run(job);
    }

    fn gate_up(&self, job: GateUp<'_>) {
        self.plain().run(job);
    }

    fn sigmoid(&self, job: Sigmoid<'_>) {
        self.plain().run(job);
    }

    fn decay(&self, job: Decay<'_>) {
        self.plain().run(job);
    }

    fn delta_step(&self, job: DeltaStep<'_>) {
        self.plain().run(job);
    }

    fn attend(&self, job: Attend<'_>) {
        self.run(job);
    }

    fn read_pass(&self, job: ReadPass<'_>) -> i32 {
        self.run(job)
    }

    fn f32_peak(&self, job: F32Peak) -> u64 {
        self.run(job)
    }
}
