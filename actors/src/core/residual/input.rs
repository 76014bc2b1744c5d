//! A phase's input: of few tokens, each core makes it of the stream or of what heads wrote. Of many, it makes that of
//! its tokens, and takes that of all from a board once all cores have published theirs.

use forebay_plans::program::{Board, NormAt, Work};
use forebay_stages::kernels::{BLOCK_WORDS, Form};

use super::Residual;
use crate::core::surroundings::Surroundings;

/// What cores have published of their tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Published {
    /// The stream with this norm or without one, perhaps only of tokens that want logits; otherwise what heads wrote.
    normed: Option<(Option<NormAt>, bool)>,
    /// Tokens and columns.
    shape: (usize, usize),
    /// As quantised blocks instead of rows.
    in_blocks: bool,
}

impl Residual {
    /// The phase's input: what heads wrote. True if that of this core's tokens is on a board instead.
    pub(super) fn take_heads(&mut self, around: &Surroundings<'_>) -> bool {
        let network = &around.bundle.meta.network;
        let width = network.mixer(around.phase.layer).out_dim();
        let spread = around.is_spread() && around.takes_blocks();
        let own = match spread {
            true => around.own.clone(),
            false => 0..around.n_tokens,
        };
        let rows = &mut self.rows[..own.len() * width];
        let board = around.boards.board(Board::Heads);
        board.read(own.start * width, rows);
        let n = own.len();
        self.input
            .load(around.kernels, Form::Panels, n, width, rows);
        if spread {
            self.publish_blocks(around, own.start);
            self.has_published(Published {
                normed: None,
                shape: (around.n_tokens, width),
                in_blocks: true,
            });
        }
        spread
    }

    /// The phase's input: the residual stream, normalised if the phase has a norm. True if that of this core's tokens
    /// is on a board instead; it may be there already, and then that of all cores is.
    pub(super) fn norm(
        &mut self,
        around: &Surroundings<'_>,
        norm: Option<&NormAt>,
        only_wanted: bool,
    ) -> bool {
        let (d, spread, in_blocks) = (around.d_model(), around.is_spread(), around.takes_blocks());
        let normed = Some((norm.cloned(), only_wanted));
        let fits = |p: &Published| p.normed == normed && (in_blocks || !p.in_blocks);
        if spread && self.published.as_ref().is_some_and(fits) {
            self.awaited.clone_from(&self.published);
            return false;
        }
        let (places, is_own) = (around.places(only_wanted), |p: &usize| {
            around.own.contains(p)
        });
        let n = places.len();
        // Those that want logits are in the order of the step, so that a core's are one after the other.
        let first = places.clone().position(|p| is_own(&p)).unwrap_or(n);
        let own = places.skip(first).take_while(is_own);
        let mut n_own = 0;
        for (place, out) in own.zip(self.rows.chunks_exact_mut(d)) {
            let token = &self.x[place * d..][..d];
            match norm {
                Some(norm) => around.normalise(norm, token, out),
                None => out.copy_from_slice(token),
            }
            n_own += 1;
        }
        if in_blocks || !spread {
            self.load(around, (n_own, d));
        }
        let rows = &self.rows[..n_own * d];
        if spread {
            match in_blocks {
                true => self.publish_blocks(around, first),
                false => around.boards.rows.write(first * d, rows),
            }
            self.has_published(Published {
                normed,
                shape: (n, d),
                in_blocks,
            });
        }
        spread
    }

    /// The core's part of this is on a board, and all of it is the phase's input.
    fn has_published(&mut self, published: Published) {
        self.awaited = Some(published.clone());
        self.published = Some(published);
    }

    /// Publishes the input, which is that of tokens from `first` on.
    fn publish_blocks(&self, around: &Surroundings<'_>, first: usize) {
        let per_token = self.input.cols().div_ceil(32);
        for block in self.input.token_blocks() {
            let at = (first + block.token) * per_token + block.block;
            let board = &around.boards.blocks;
            board.write(at * BLOCK_WORDS, &block.words());
        }
    }

    /// Takes the phase's input from the boards, where the cores have published it; false if it is here.
    pub(in super::super) fn take_published(&mut self, around: &Surroundings<'_>) -> bool {
        let Some(published) = self.awaited.take() else {
            return false;
        };
        let (kernels, (n, cols)) = (around.kernels, published.shape);
        if published.in_blocks {
            let per_token = cols.div_ceil(32);
            self.input.take_blocks(kernels, (n, cols), |token, block| {
                let mut words = [0; BLOCK_WORDS];
                let at = (token * per_token + block) * BLOCK_WORDS;
                around.boards.blocks.read(at, &mut words);
                words
            });
        } else {
            let rows = &mut self.rows[..n * cols];
            around.boards.rows.read(0, rows);
            self.load(around, (n, cols));
        }
        true
    }

    /// Makes the phase's input of the first rows, `[n, cols]`, in the form that its kernels take; for hot neurons in
    /// panels, too.
    fn load(&mut self, around: &Surroundings<'_>, (n, cols): (usize, usize)) {
        let rows = &self.rows[..n * cols];
        self.input.load(around.kernels, form(around), n, cols, rows);
        if around.has_hot() {
            let hot = &mut self.hot_input;
            hot.load(around.kernels, Form::Panels, n, cols, rows);
        }
    }
}

/// The form in which the phase's kernels take their input.
fn form(around: &Surroundings<'_>) -> Form {
    let Work::Neurons { .. } = around.phase.work else {
        return Form::Panels;
    };
    match around.geometry() {
        Some(g) if g.has_laned_rows() => Form::Lanes,
        Some(g) if g.layout.is_by_neuron() => Form::Rows,
        _ => Form::Panels,
    }
}
