//! What preparing a phase needs besides the residual stream.

use std::ops::Range;

use forebay_models::block::BlockType;
use forebay_models::bundle::{Bundle, FfnGeometry, FfnLayout};
use forebay_models::network::NormKind;
use forebay_plans::program::{NormAt, Phase, Program, Work};
use forebay_stages::boards::Boards;
use forebay_stages::kernels::KernelTable;

use crate::shared::Shared;
use crate::step::Step;

/// From so many tokens on, a core keeps up the residual stream of its part of them. Of fewer, it takes less time to add
/// all cores' results of all tokens on each core than to wait once more for the others.
const SPREAD_TOKENS: usize = 16;

/// See the [module](self).
pub(super) struct Surroundings<'a> {
    pub bundle: &'a Bundle,
    pub kernels: &'a KernelTable,
    pub boards: &'a Boards,
    pub phase: &'a Phase,
    pub n_tokens: usize,
    /// Tokens whose rows of the stream this core keeps up: all, or its part of them.
    pub own: Range<usize>,
    /// Tokens that want logits, by index in the step.
    pub wanted: &'a [u32],
    /// Largest rank of the predictors.
    pub rank: usize,
    /// Whether the token was generated.
    pub decodes: bool,
}

impl<'a> Surroundings<'a> {
    /// Those of phase `number` of `program` in a step.
    pub fn of(
        (shared, program): (&'a Shared, &'a Program),
        step: &'a Step,
        rank: usize,
        number: usize,
    ) -> Self {
        let (n, threads) = (step.tokens.places.len(), shared.boards.shares.len());
        let own = match n >= SPREAD_TOKENS && shared.observer.is_none() {
            true => rank * n / threads..(rank + 1) * n / threads,
            false => 0..n,
        };
        Self {
            bundle: &shared.bundle,
            kernels: &shared.kernels,
            boards: &shared.boards,
            phase: &program.phases[number],
            n_tokens: n,
            own,
            wanted: &step.tokens.wanted,
            rank: shared.predictor_rank(),
            decodes: step.decodes,
        }
    }

    /// Width of the stream.
    pub fn d_model(&self) -> usize {
        self.bundle.meta.network.d_model
    }

    /// Whether each core keeps up a part of the tokens only.
    pub fn is_spread(&self) -> bool {
        self.own.len() < self.n_tokens
    }

    /// Whether only quantised blocks of the phase's input are needed, in panels: no weights are in floating point.
    pub fn takes_blocks(&self) -> bool {
        let is_quantised = |block: BlockType| block.block_len() > 1;
        match &self.phase.work {
            Work::Mixer { .. } => false,
            Work::Rows(rows) => {
                let mut matrices = rows.matrices.iter();
                matrices.all(|m| m.heads.is_none() && is_quantised(m.block))
            }
            Work::Neurons { .. } => self.geometry().is_some_and(|g| {
                let up = g.up.is_none_or(is_quantised);
                g.layout == FfnLayout::Cluster && is_quantised(g.gate) && up
            }),
        }
    }

    /// How the neurons of the phase's layer are stored, but for hot ones: where it has an FFN and experts, they are
    /// alike.
    pub fn geometry(&self) -> Option<&FfnGeometry> {
        let (meta, layer) = (&self.bundle.meta, self.phase.layer);
        meta.ffns[layer].as_ref().or(meta.experts[layer].as_ref())
    }

    /// Whether the phase has hot neurons, whose input is in panels.
    pub fn has_hot(&self) -> bool {
        let of_layer = self.bundle.meta.hot.get(self.phase.layer);
        matches!(self.phase.work, Work::Neurons { .. }) && of_layer.is_some_and(Option::is_some)
    }

    /// Where its tokens are in the stream, `[n_tokens, d_model]`.
    pub fn own_values(&self) -> Range<usize> {
        self.own.start * self.d_model()..self.own.end * self.d_model()
    }

    /// Tokens of an input, by index in the step.
    pub fn places(&self, only_wanted: bool) -> impl ExactSizeIterator<Item = usize> + Clone {
        let n = match only_wanted {
            true => self.wanted.len(),
            false => self.n_tokens,
        };
        (0..n).map(move |i| match only_wanted {
            true => self.wanted[i] as usize,
            false => i,
        })
    }

    /// A norm of one row, `[d_model]`.
    pub fn normalise(&self, norm: &NormAt, row: &[f32], out: &mut [f32]) {
        let values = self.bundle.vectors.values();
        let (weight, bias) = (&values[norm.weight.clone()], &values[norm.bias.clone()]);
        match norm.kind {
            NormKind::Rms => self.kernels.rmsnorm(row, weight, norm.eps, out),
            NormKind::Layer => self.kernels.layernorm(row, weight, norm.eps, out),
        }
        out.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
    }
}
