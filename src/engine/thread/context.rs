//! What the KV cache holds: the tokens of one conversation, as a sequence of blocks and, with recurrent layers, a
//! state.

use std::sync::Arc;

use forebay_actors::step::StepTokens;
use forebay_stages::attention::KvRoom;
use forebay_stages::sequences::{SequenceId, Sequences, TokenPlace};

/// How far before the end of a prompt a snapshot of recurrent states is taken. Templates end a prompt with the start of
/// an answer, which the next prompt may write in another way.
const SNAPSHOT_BEFORE: usize = 16;

/// The conversation whose keys and values are in the cache.
#[derive(Debug)]
pub(in crate::engine) struct Context {
    sequences: Sequences,
    sequence: SequenceId,
    /// Its tokens, by position.
    tokens: Vec<u32>,
    /// The latest step's, to be reused.
    step: Arc<StepTokens>,
}

impl Context {
    /// An empty context.
    pub fn new(room: &KvRoom) -> Self {
        let mut sequences = Sequences::new(&room.pools, room.states);
        Self {
            sequence: sequences.open(),
            sequences,
            tokens: Vec::new(),
            step: Arc::default(),
        }
    }

    /// Number of tokens in the cache.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.keep(0);
    }

    /// Keeps the beginning that it shares with `tokens`, except the last token, whose logits are wanted; returns the
    /// number of tokens kept. They may be fewer than are shared: recurrent states exist for some positions only. The
    /// rest of `tokens`, the first `prompt` of which are a prompt, follows in the next steps.
    pub fn keep_common(&mut self, tokens: &[u32], prompt: usize) -> usize {
        let pairs = self.tokens.iter().zip(tokens);
        let same = pairs.take_while(|(a, b)| a == b).count();
        self.keep(same.min(tokens.len().saturating_sub(1)));
        let snapshot = prompt.saturating_sub(SNAPSHOT_BEFORE);
        // A generation that goes on after a pause has its snapshot.
        if prompt == tokens.len() || self.len() <= snapshot {
            self.sequences
                .want_snapshot(self.sequence, snapshot.max(self.len()));
        }
        self.len()
    }

    /// Keeps the first `n` tokens, or fewer: see [`Sequences::cut`]. All of `n` if they were there before the last
    /// step, and no layer is recurrent.
    pub fn keep(&mut self, n: usize) {
        let kept = self.sequences.cut(self.sequence, n);
        self.tokens.truncate(kept);
    }

    /// The step that runs `tokens` after those in the cache, with logits for the last `n_logits`; `None` if there is no
    /// room for them. [`Context::add`] or [`Context::drop_step`] follows.
    pub fn step(&mut self, tokens: &[u32], n_logits: usize) -> Option<Arc<StepTokens>> {
        if Arc::get_mut(&mut self.step).is_none() {
            // A core that has ended may still hold the last one.
            self.step = Arc::default();
        }
        let step = Arc::get_mut(&mut self.step)?;
        step.copies.clear();
        step.places.clear();
        step.wanted.clear();
        let (first, n) = (self.tokens.len(), tokens.len());
        let extended = self.sequences.extend(self.sequence, n, &mut step.copies);
        extended.ok()?;
        step.places
            .extend((first..first + n).map(|position| TokenPlace {
                sequence: self.sequence,
                position: position as u32,
            }));
        step.wanted.extend((n - n_logits..n).map(|t| t as u32));
        step.take_tables(&self.sequences);
        Some(Arc::clone(&self.step))
    }

    /// The step is done: its tokens are in the cache.
    pub fn add(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// The step has failed: its tokens are not in the cache.
    pub fn drop_step(&mut self) {
        self.keep(self.tokens.len());
    }
}
