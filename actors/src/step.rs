//! One pass of some tokens through the model, and the cores' reports on it.

use std::sync::Arc;

use forebay_stages::computed::Computed;
use forebay_stages::expert_store::GuessCounts;
use forebay_stages::sequences::{Copies, Sequences, Tables, TokenPlace};
use forebay_traces::ledger::Charged;
use forebay_traces::record::StepKind;

/// The tokens of a step.
#[derive(Clone, Debug, Default)]
pub struct StepTokens {
    /// Sequence and position of each; tokens of a sequence are in the order of their positions.
    pub places: Vec<TokenPlace>,
    /// Those that want logits, ascending; their logits are on the board in this order.
    pub wanted: Vec<u32>,
    /// Where the KV cache has the sequences of these tokens, and their recurrent states.
    pub tables: Tables,
    /// Blocks of the KV cache and recurrent states that are copied.
    pub copies: Copies,
}

impl StepTokens {
    /// Position of the first token.
    pub fn position(&self) -> usize {
        self.places.first().map_or(0, |t| t.position as usize)
    }

    /// Takes over the tables of the sequences to which its tokens belong.
    pub fn take_tables(&mut self, sequences: &Sequences) {
        self.tables.fill(sequences, &self.places);
    }
}

/// One pass through the model: of a sequence's next token, of a prompt's batch, of several sequences at once.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// The tokens.
    pub tokens: Arc<StepTokens>,
    /// Whether more of the same prompt follows, so that its weights may be read ahead.
    pub more: bool,
    /// Whether its one token was generated, and is no part of a prompt: then experts may be left out.
    pub decodes: bool,
    /// Whether its tokens are the newest one and some that may follow it: they are for the text that is generated.
    pub checks: bool,
    /// Whether its one token is only run to guess the next one, without the FFN clusters that are streamed: see
    /// [`Shared::can_draft`](crate::shared::Shared::can_draft). What it writes to the KV cache must not stay there.
    pub drafts: bool,
    /// Which part of its clusters a device computes, in [`PARTS`](forebay_plans::placement::PARTS). `Steps` sets it:
    /// what it does not compute is divided among the cores.
    pub device_part: u8,
    /// Whether weights that were read ahead are to be read again, because something went wrong before this step.
    /// `Steps` sets it after a failed step.
    pub read_again: bool,
    /// In a step without tokens: what is kept in memory from now on.
    pub resize: Option<Sizes>,
}

impl Step {
    /// What it is for, as traces tell it.
    pub fn kind(&self) -> StepKind {
        match self.drafts {
            true => StepKind::Draft,
            false if self.decodes || self.checks => StepKind::Token,
            false => StepKind::Prompt,
        }
    }

    /// Whether any token wants logits.
    pub fn wants_logits(&self) -> bool {
        !self.tokens.wanted.is_empty()
    }
}

/// How much is kept in memory while tokens are generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Slots of each core's neuron cache that are used.
    pub cache_slots: usize,
    /// How many of the clusters that may be evicted are streamed: the first ones in the order of
    /// [`GivingWay`](forebay_plans::giving_way::GivingWay).
    pub evicted_clusters: u32,
    /// The device keeps its clusters of the first so many phases only.
    pub phases_on_device: usize,
    /// Most tokens of a step.
    pub max_tokens: usize,
    /// The first blocks of each of the KV cache's pools; no sequence has others.
    pub kv_blocks: usize,
}

impl Sizes {
    /// Everything is kept.
    pub const ALL: Self = Self {
        cache_slots: usize::MAX,
        evicted_clusters: 0,
        phases_on_device: usize::MAX,
        max_tokens: usize::MAX,
        kv_blocks: usize::MAX,
    };
}

/// A core's report at the end of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepDone {
    /// Rank of the core.
    pub rank: usize,
    /// Live FFN neurons found in memory.
    pub hits: u64,
    /// Live FFN neurons that had to be read.
    pub misses: u64,
    /// Clusters of experts that were left out because they were not in memory.
    pub left_out: u64,
    /// What became of guessed experts.
    pub guesses: GuessCounts,
    /// Computed Gates.
    pub gated: Computed,
    /// Computed Ups and Downs.
    pub live: Computed,
    /// The core's accounts when the step began.
    pub charged_before: Charged,
    /// The core's accounts when it ended.
    pub charged: Charged,
}
