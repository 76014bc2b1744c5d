//! The input of one head, for matrices that have rows for each.

use forebay_plans::program::ByHead;

use crate::boards::Boards;
use crate::kernels::{Activations, Form, KernelTable};

/// The input of one head, made again when another one's is wanted. Clusters of a head mostly follow each other.
#[derive(Debug)]
pub(crate) struct HeadInput {
    head: Option<usize>,
    input: Activations,
    /// The tokens' parts, `[n_tokens, columns of a head]`.
    rows: Vec<f32>,
}

impl HeadInput {
    /// Room for `max_tokens` tokens of `columns`.
    pub fn new(max_tokens: usize, columns: usize) -> Self {
        let tokens = if columns > 0 { max_tokens } else { 0 };
        Self {
            head: None,
            input: Activations::new(tokens, columns),
            rows: vec![0.0; tokens * columns],
        }
    }

    /// Bytes that [`Self::new`] allocates, for memory budgets.
    pub fn bytes_for(max_tokens: usize, columns: usize) -> usize {
        let tokens = if columns > 0 { max_tokens } else { 0 };
        Activations::bytes_for(tokens, columns) + tokens * columns * size_of::<f32>()
    }

    /// A phase begins, with another input.
    pub fn begin(&mut self) {
        self.head = None;
    }

    /// The input of `head` for all of a step's tokens.
    pub fn select(
        &mut self,
        (kernels, boards): (&KernelTable, &Boards),
        heads: &ByHead,
        head: usize,
        n_tokens: usize,
    ) -> &Activations {
        if self.head != Some(head) {
            let board = boards.board(heads.input);
            let rows = &mut self.rows[..n_tokens * heads.cols];
            for (t, row) in rows.chunks_exact_mut(heads.cols).enumerate() {
                board.read(t * heads.width + heads.first + head * heads.stride, row);
            }
            self.input
                .load(kernels, Form::Panels, n_tokens, heads.cols, rows);
            self.head = Some(head);
        }
        &self.input
    }
}
