//! What a step needs of its tokens before the cores begin: their embeddings and, if the model has them, their rows of
//! the table of token inputs, on the boards from which the cores take them.

mod embed;

use forebay_actors::io_link::RowLink;
use forebay_actors::shared::Shared;
use forebay_models::network::Network;
use forebay_models::tensor::TensorId;
use forebay_queues::slab::Slot;

use crate::error::Error;

use embed::Embedder;
pub(crate) use embed::fault_of;

/// Looks tokens up in all tables.
#[derive(Debug)]
pub(crate) struct TokenRows {
    embeddings: Embedder,
    /// Tokens whose embeddings are in `rows`, and the position of the first.
    held: (Vec<u32>, usize),
    /// `[max_batch, d_model]`
    rows: Vec<f32>,
    inputs: Option<Embedder>,
    /// Token inputs on their way to their board, `[rows read at a time, n_layers * width]`
    input_rows: Vec<f32>,
}

impl TokenRows {
    /// With read buffers for embeddings and for token inputs.
    pub fn new(shared: &Shared, embeddings: Vec<Slot>, inputs: Vec<Slot>) -> Self {
        let has_inputs = shared.network().token_inputs.is_some();
        let embeddings = Embedder::new(shared, TensorId::TokenEmbedding, embeddings);
        let inputs = has_inputs.then(|| Embedder::new(shared, TensorId::TokenInputs, inputs));
        let room = inputs.as_ref().map_or(0, |t| t.wave() * t.width());
        Self {
            held: (Vec::with_capacity(shared.max_batch), 0),
            rows: vec![0.0; shared.max_batch * embeddings.width()],
            embeddings,
            inputs,
            input_rows: vec![0.0; room],
        }
    }

    /// Bytes that [`Self::new`] allocates, for memory budgets, if `buffers` rows are read at a time.
    pub fn bytes(network: &Network, max_batch: usize, buffers: usize) -> usize {
        let each = max_batch * network.d_model + buffers * network.inputs_width();
        each * size_of::<f32>()
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
        let (held, position) = &self.held;
        if !held.starts_with(tokens) || *position != first {
            self.look_up(shared, link, tokens, first)
                .map_err(|error| with_cause(shared, error))?;
        }
        let boards = &shared.boards;
        let rows = &self.rows[..tokens.len() * self.embeddings.width()];
        boards.input.write(0, rows);
        let Some(table) = &mut self.inputs else {
            return Ok(());
        };
        let (wave, width) = (table.wave(), table.width());
        for (i, tokens) in tokens.chunks(wave).enumerate() {
            let rows = &mut self.input_rows[..tokens.len() * width];
            table
                .embed(shared, link, tokens, rows)
                .map_err(|error| with_cause(shared, error))?;
            boards.input_rows.write(i * wave * width, rows);
        }
        Ok(())
    }

    /// While the cores compute: looks up the embeddings of the tokens that come next, at the positions from `first` on.
    /// An error is reported when it is their turn.
    pub fn look_ahead(
        &mut self,
        shared: &Shared,
        link: &mut RowLink,
        following: &[u32],
        first: usize,
    ) {
        let batch = &following[..following.len().min(shared.max_batch)];
        if !batch.is_empty() {
            let _ = self.look_up(shared, link, batch, first);
        }
    }

    fn look_up(
        &mut self,
        shared: &Shared,
        link: &mut RowLink,
        tokens: &[u32],
        first: usize,
    ) -> Result<(), Error> {
        self.held.0.clear();
        let rows = &mut self.rows[..tokens.len() * self.embeddings.width()];
        self.embeddings.embed(shared, link, tokens, rows)?;
        add_positions(shared, first, rows);
        self.held.0.extend_from_slice(tokens);
        self.held.1 = first;
        Ok(())
    }

    /// Everything is checked again at its next use: the file may have changed.
    pub fn distrust(&mut self) {
        self.held.0.clear();
        self.embeddings.distrust();
        self.inputs.iter_mut().for_each(Embedder::distrust);
    }
}

/// If the I/O actor has ended, why it did.
fn with_cause(shared: &Shared, error: Error) -> Error {
    match error {
        Error::Stopped => {
            let cause = shared.faults.take();
            cause.map_or(Error::Stopped, |fault| fault_of(shared, fault))
        }
        other => other,
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

#[cfg(test)]
mod tests;
