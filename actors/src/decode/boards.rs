//! Boards on which cores publish their part of a result, to be read by all after an exchange.
//!
//! A board is written again only two exchanges later at the earliest, and an exchange is passed only when
//! every core has arrived, so nobody can still be reading what a faster core overwrites.

use forebay_models::config::ModelConfig;
use forebay_queues::board::{F32Board, I64Board};

/// All boards of a decode graph.
#[derive(Debug)]
pub struct Boards {
    /// Embedded tokens, `[max_batch, d_model]`, written by the driver.
    pub input: F32Board,
    /// Q, K and V side by side, `[max_batch, q_dim + 2 * kv_dim]`.
    pub qkv: F32Board,
    /// Attention's output before projection, `[max_batch, q_dim]`.
    pub attention: F32Board,
    /// Projected attention output, `[max_batch, d_model]`.
    pub output: F32Board,
    /// fc1 of the layer and of the next one times the residual stream, `[max_batch, 2 * largest rank]`; empty
    /// where neurons are not predicted.
    pub predictor: F32Board,
    /// Each core's share of the FFN in fixed point, `[threads][max_batch, d_model]`.
    pub ffn: Vec<I64Board>,
    /// `[max_logits, vocab_size]`.
    pub logits: F32Board,
}

impl Boards {
    /// Boards for batches of `max_batch` tokens, `max_logits` of which want logits, and predictors of at
    /// most `rank`.
    pub fn new(
        c: &ModelConfig,
        threads: usize,
        max_batch: usize,
        max_logits: usize,
        rank: usize,
    ) -> Self {
        Self {
            input: F32Board::new(max_batch * c.d_model),
            qkv: F32Board::new(max_batch * (c.q_dim() + 2 * c.kv_dim())),
            attention: F32Board::new(max_batch * c.q_dim()),
            output: F32Board::new(max_batch * c.d_model),
            predictor: F32Board::new(max_batch * 2 * rank),
            ffn: (0..threads)
                .map(|_| I64Board::new(max_batch * c.d_model))
                .collect(),
            logits: F32Board::new(max_logits * c.vocab_size),
        }
    }
}
