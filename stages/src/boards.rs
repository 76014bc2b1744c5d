//! Boards on which cores publish their part of a result, to be read by all after an exchange.
//!
//! A board is written again only after later exchanges, and an exchange is passed only when every core has arrived, so
//! no core can still be reading what a faster one overwrites.

use forebay_models::network::Network;
use forebay_plans::program::Board;
use forebay_queues::board::{F32Board, I64Board};

use crate::kernels::BLOCK_WORDS;

/// All boards of a run.
#[derive(Debug)]
pub struct Boards {
    /// Embedded tokens, `[max_batch, d_model]`, written by the engine thread.
    pub input: F32Board,
    /// Scaled rows of the table of token inputs, `[max_batch, n_layers * width]`, written by the engine thread; empty
    /// if the model has none.
    pub input_rows: F32Board,
    /// Results of the matrices of a mixer's input side by side, `[max_batch, in_dim of the layer's mixer]`.
    qkv: F32Board,
    /// What heads of latent attention mixed, `[max_batch, n_heads * rank]`; empty if there is none.
    latents: F32Board,
    /// A mixer's output before projection, `[max_batch, out_dim of the layer's mixer]`.
    heads: F32Board,
    /// A mixer's projected output, `[max_batch, d_model]`.
    output: F32Board,
    /// Rows of a phase's input that each core has made of its tokens, `[max_batch, d_model]`; empty with one core.
    pub rows: F32Board,
    /// The same of inputs of which only quantised blocks are needed, `[max_batch, blocks, BLOCK_WORDS]`.
    pub blocks: I64Board,
    /// The predictor's fc1 times the residual stream, `[max_batch, largest rank]`; empty where neurons are not
    /// predicted.
    predictor: F32Board,
    /// Logits of the experts, `[max_batch, router_width of the layer and experts that are guessed]`; empty if the model
    /// has none.
    router: F32Board,
    /// How many clusters of each expert of a layer each core has in memory, `[threads, widest_router]`; written where
    /// experts in memory are preferred.
    pub held: F32Board,
    /// Each core's share of the FFN in fixed point, `[threads][max_batch, d_model]`.
    pub shares: Vec<I64Board>,
    /// `[max_logits, vocab_size]`.
    pub logits: F32Board,
    /// Projected embeddings, `[max_batch, n_layers * width]`; empty if the model has no token inputs.
    inputs: F32Board,
    /// Gates of a layer's token inputs, `[max_batch, width]`.
    input_gate: F32Board,
}

impl Boards {
    /// Boards for steps of `max_batch` tokens, `max_logits` of which want logits, and predictors of at
    /// most `rank`.
    pub fn new(
        network: &Network,
        threads: usize,
        max_batch: usize,
        max_logits: usize,
        rank: usize,
    ) -> Self {
        let d = network.d_model;
        let spread = if threads > 1 { max_batch } else { 0 };
        Self {
            input: F32Board::new(max_batch * d),
            qkv: F32Board::new(max_batch * network.widest_mixer_in()),
            latents: F32Board::new(max_batch * network.widest_latents()),
            heads: F32Board::new(max_batch * network.widest_mixer_out()),
            output: F32Board::new(max_batch * d),
            rows: F32Board::new(spread * d),
            blocks: I64Board::new(spread * block_words(network)),
            predictor: F32Board::new(max_batch * rank),
            router: F32Board::new(max_batch * network.widest_routing()),
            held: F32Board::new(threads * network.widest_router()),
            shares: (0..threads).map(|_| I64Board::new(max_batch * d)).collect(),
            logits: F32Board::new(max_logits * network.vocab_size),
            input_rows: F32Board::new(max_batch * network.inputs_width()),
            inputs: F32Board::new(max_batch * network.inputs_width()),
            input_gate: F32Board::new(max_batch * network.input_width()),
        }
    }

    /// Bytes of what [`Self::new`] allocates and [`Self::give_back`] keeps, for memory budgets.
    pub fn bytes_kept(
        network: &Network,
        threads: usize,
        max_batch: usize,
        max_logits: usize,
    ) -> usize {
        let columns = network.d_model + network.inputs_width();
        let held = threads * network.widest_router();
        (max_batch * columns + max_logits * network.vocab_size + held) * size_of::<f32>()
    }

    /// Boards that cores write in every step, besides the engine thread's.
    fn of_steps(&self) -> [&F32Board; 9] {
        [
            &self.rows,
            &self.qkv,
            &self.latents,
            &self.heads,
            &self.output,
            &self.predictor,
            &self.router,
            &self.inputs,
            &self.input_gate,
        ]
    }

    /// Between two steps: gives the memory of what cores write in every step back to the system.
    pub fn give_back(&self) {
        self.of_steps().into_iter().for_each(F32Board::give_back);
        let sums = self.shares.iter().chain([&self.blocks]);
        sums.for_each(I64Board::give_back);
    }

    /// Bytes of what it gives back.
    pub fn bytes_of_steps(
        network: &Network,
        threads: usize,
        max_batch: usize,
        rank: usize,
    ) -> usize {
        let columns = network.widest_mixer_in()
            + network.widest_latents()
            + network.widest_mixer_out()
            + network.d_model
            + rank
            + network.widest_routing()
            + network.inputs_width()
            + network.input_width();
        let shares = threads * network.d_model * size_of::<i64>();
        let spread = match threads {
            1 => 0,
            _ => network.d_model * size_of::<f32>() + block_words(network) * size_of::<i64>(),
        };
        max_batch * (columns * size_of::<f32>() + shares + spread)
    }

    /// The board of that name.
    pub fn board(&self, board: Board) -> &F32Board {
        match board {
            Board::Qkv => &self.qkv,
            Board::Latents => &self.latents,
            Board::Heads => &self.heads,
            Board::Output => &self.output,
            Board::Predictor => &self.predictor,
            Board::Router => &self.router,
            Board::Logits => &self.logits,
            Board::Inputs => &self.inputs,
            Board::InputGate => &self.input_gate,
        }
    }
}

/// Words of a token's blocks, of the residual stream or a mixer's output.
fn block_words(network: &Network) -> usize {
    let columns = network.d_model.max(network.widest_mixer_out());
    columns.div_ceil(32) * BLOCK_WORDS
}
