//! The attention actor: this core's heads over its own part of the KV cache.

use forebay_stages::attention::Attention;
use forebay_traces::record::{Residency as Hit, Stage};

use super::context::CoreContext;

#[derive(Debug)]
pub(super) struct AttendActor {
    stage: Attention,
    /// `[max_batch, q_dim + 2 * kv_dim]`
    qkv: Vec<f32>,
    /// `[max_batch, own columns]`
    out: Vec<f32>,
}

impl AttendActor {
    pub fn new(stage: Attention, max_batch: usize, qkv_width: usize) -> Self {
        let out = vec![0.0; max_batch * stage.columns().1];
        Self {
            stage,
            qkv: vec![0.0; max_batch * qkv_width],
            out,
        }
    }

    /// Prepares a step's rotations.
    pub fn begin_step(&mut self, cx: &CoreContext) {
        self.stage.begin(cx.step.position, cx.step.n_tokens);
    }

    /// Attends for all tokens of the step and publishes the result.
    pub fn run(&mut self, cx: &mut CoreContext) {
        let (start, width) = self.stage.columns();
        if width > 0 {
            let shared = std::sync::Arc::clone(&cx.shared);
            let c = &shared.bundle.meta.config;
            let n_tokens = cx.step.n_tokens;
            let qkv_width = c.q_dim() + 2 * c.kv_dim();
            let qkv = &mut self.qkv[..n_tokens * qkv_width];
            shared.boards.qkv.read(0, qkv);
            let out = &mut self.out[..n_tokens * width];
            self.stage.run(
                &shared.kernels,
                cx.layer,
                cx.step.position,
                n_tokens,
                qkv,
                out,
            );
            for (t, row) in out.chunks_exact(width).enumerate() {
                shared.boards.attention.write(t * c.q_dim() + start, row);
            }
        }
        cx.record(
            Stage::Attention,
            0,
            cx.step.n_tokens,
            0,
            Hit::NotApplicable,
            0,
        );
    }
}
