//! The phases that latent attention has besides those of others: queries from compressed ones, queries for latents, and
//! values of what was mixed.

use forebay_models::network::{Attention, NormKind};
use forebay_models::tensor::{LayerTensor as T, TensorId};
use forebay_traces::record::Stage;

use super::compile::Compiler;
use super::{Board, ByHead, Finish, NormAt, Prepare, Work};

impl Compiler<'_> {
    /// Q, if its input is QDown's result, and KUp.
    pub(super) fn latent_queries(&mut self, layer: usize, a: &Attention) {
        let Some(latent) = a.latent else {
            return;
        };
        let (site, id) = ((Stage::Qkv, Board::Qkv, a.in_dim()), |t| {
            TensorId::Layer(layer, t)
        });
        if let Some(rank) = latent.query_rank {
            let prepare = Prepare::TakeQueries {
                columns: 0..rank,
                all_columns: a.in_dim(),
                norm: NormAt {
                    kind: NormKind::Rms,
                    weight: self.vector(layer, T::QNorm),
                    bias: 0..0,
                    eps: latent.eps,
                },
            };
            let work = self.rows(site, &[(id(T::Q), a.q_column(), 0..0)], Finish::Plain);
            self.push(layer, vec![prepare], work);
        }
        let by_head = ByHead {
            input: Board::Qkv,
            width: a.in_dim(),
            first: a.q_column(),
            stride: a.query_dim(),
            cols: latent.plain_dim,
            rows: latent.rank,
            out_stride: a.head_dim,
        };
        let work = self.rows(site, &[(id(T::KUp), a.query_column(), 0..0)], Finish::Plain);
        self.push(layer, Vec::new(), head_by_head(work, by_head));
    }

    /// VUp.
    pub(super) fn values_of_latents(&mut self, layer: usize, a: &Attention) {
        let Some(latent) = a.latent else {
            return;
        };
        let by_head = ByHead {
            input: Board::Latents,
            width: a.mixed_dim(),
            first: 0,
            stride: latent.rank,
            cols: latent.rank,
            rows: latent.value_dim,
            out_stride: latent.value_dim,
        };
        let site = (Stage::Output, Board::Heads, a.out_dim());
        let id = TensorId::Layer(layer, T::VUp);
        let work = self.rows(site, &[(id, 0, 0..0)], Finish::Plain);
        self.push(layer, Vec::new(), head_by_head(work, by_head));
    }
}

/// The same work with matrices that have rows for each head.
fn head_by_head(mut work: Work, heads: ByHead) -> Work {
    if let Work::Rows(rows) = &mut work {
        for matrix in &mut rows.matrices {
            matrix.heads = Some(heads);
        }
    }
    work
}
