//! What a step needs of its tokens before the cores begin: their embeddings and, if the model has them, their rows of
//! the table of token inputs, on the boards from which the cores take them.

use forebay_actors::io_link::RowLink;
use forebay_actors::runtime::Shared;
use forebay_models::tensor::TensorId;
use forebay_queues::slab::Slot;

use super::embed::Embedder;
use crate::error::Error;

/// Looks tokens up in all tables.
#[derive(Debug)]
pub(super) struct TokenRows {
    embeddings: Embedder,
    inputs: Option<Embedder>,
    /// Rows on their way to a board, `[rows read at a time, widest table]`
    rows: Vec<f32>,
}

impl TokenRows {
    /// With read buffers for embeddings and for token inputs.
    pub fn new(shared: &Shared, embeddings: Vec<Slot>, inputs: Vec<Slot>) -> Self {
        let has_inputs = shared.network().token_inputs.is_some();
        let embeddings = Embedder::new(shared, TensorId::TokenEmbedding, embeddings);
        let inputs = has_inputs.then(|| Embedder::new(shared, TensorId::TokenInputs, inputs));
        let all = [Some(&embeddings), inputs.as_ref()].into_iter().flatten();
        let room = all.map(|table| table.wave() * table.width()).max();
        Self {
            rows: vec![0.0; room.unwrap_or(0)],
            embeddings,
            inputs,
        }
    }

    /// Shows the cores the rows of a step's `tokens`, which are at the positions from `first` on.
    ///
    /// # Errors
    /// A failed read, or a checksum that does not match.
    pub fn show(
        &mut self,
        shared: &Shared,
        link: &mut RowLink,
        tokens: &[u32],
        first: usize,
    ) -> Result<(), Error> {
        let boards = &shared.boards;
        let tables = [
            (Some(&mut self.embeddings), &boards.input, true),
            (self.inputs.as_mut(), &boards.input_rows, false),
        ];
        for (table, board, has_positions) in tables {
            let Some(table) = table else { continue };
            let (wave, width) = (table.wave(), table.width());
            for (i, tokens) in tokens.chunks(wave).enumerate() {
                let rows = &mut self.rows[..tokens.len() * width];
                table.embed(shared, link, tokens, rows)?;
                if has_positions {
                    add_positions(shared, first + i * wave, rows);
                }
                board.write(i * wave * width, rows);
            }
        }
        Ok(())
    }

    /// Everything is checked again at its next use: the file may have changed.
    pub fn distrust(&mut self) {
        self.embeddings.distrust();
        self.inputs.iter_mut().for_each(Embedder::distrust);
    }
}

/// Adds the learned positions, if the model has them, of tokens from `first` on to their embeddings `x`,
/// `[n_tokens, d_model]`.
fn add_positions(shared: &Shared, first: usize, x: &mut [f32]) {
    let network = shared.network();
    let Some(offset) = network.position_offset else {
        return;
    };
    let table = shared.bundle.vectors.get(TensorId::PositionEmbedding);
    // The table has a row for every position that a context may have.
    let rows = table.chunks_exact(network.d_model).skip(first + offset);
    for (x, row) in x.chunks_exact_mut(network.d_model).zip(rows) {
        x.iter_mut().zip(row).for_each(|(x, p)| *x += p);
    }
}
