//! The window of the prefill graph, and when that graph is taken.
//!
//! Where all neurons are cached singly, the window's memory is the end of the neuron cache, which has it back when the
//! prompt is over. Where clusters are streamed in decode as well, it is GIO's window.

use forebay_models::bundle::Bundle;
use forebay_plans::program::{Phase, Program, Source};
use forebay_plans::residency::Pipeline;
use forebay_stages::gio::{Reader, WindowTally};
use forebay_stages::neuron_store::{NeuronMemory, NeuronStore};

use crate::wiring::Stages;

/// Tokens from which on a step is a prompt's: with one neuron in ten alive per token, most are alive for one of so
/// many.
const FEWEST_TOKENS: usize = 16;
/// Sequential reads are about this many times as fast as reads of single neurons (2.4 against 0.47 GB/s where this
/// was measured), so reading everything pays where so large a part of it is missing.
const SEQUENTIAL_GAIN: usize = 5;
/// The window takes at most this part of the neuron cache, or, where that is not enough for two clusters, at most
/// half of it.
const CACHE_SHARE: usize = 8;
/// Most buffers of the window.
const MAX_BUFFERS: usize = 64;

/// A window that is borrowed from the neuron cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreloadWindow {
    pub buffers: usize,
    /// Bytes of each, enough for the longest cluster.
    pub bytes: usize,
}

impl PreloadWindow {
    /// As many layers ahead as the share of the neuron cache allows, at most one: the disk is as fast with less.
    /// `None` where there is no room for two clusters, or nothing to preload.
    pub fn of(bundle: &Bundle, program: &Program, memory: &NeuronMemory) -> Option<Self> {
        if !program.can_preload() {
            return None;
        }
        let padded = |cluster: u32| bundle.clusters[cluster as usize].padded_len();
        let layer = |phase: &Phase| -> usize {
            let items = phase.neurons().iter();
            let read = items.filter(|item| item.source != Source::Pinned);
            read.map(|item| padded(item.cluster)).sum()
        };
        let layers = program.phases.iter().map(layer).max()?;
        let items = program.phases.iter().flat_map(Phase::neurons);
        let read = items.filter(|item| item.source != Source::Pinned);
        let bytes = read.map(|item| padded(item.cluster)).max()?;
        let store = memory.store.as_ref()?.len();
        let buffers = ((store / CACHE_SHARE).min(layers) / bytes).max(2);
        (buffers * bytes <= store / 2).then_some(Self {
            buffers: buffers.min(MAX_BUFFERS),
            bytes,
        })
    }
}

/// What a core keeps for prompts.
#[derive(Debug)]
pub(crate) struct Prompts {
    /// Work with whole clusters preloaded, and the borrowed window for it.
    borrowing: Option<(Program, PreloadWindow)>,
    /// Whether Preload takes GIO's window instead. Not where a baseline confines that window to a phase.
    swaps: bool,
    /// Whether the prefill graph is in force.
    active: bool,
}

impl Prompts {
    /// For a core that runs `program`, and Preload for it.
    pub fn new(
        program: &Program,
        window: Option<PreloadWindow>,
        pipeline: Pipeline,
        max_waiting: usize,
    ) -> (Self, Reader) {
        let borrowing = window.map(|window| (program.preloading(), window));
        let stream = borrowing
            .as_ref()
            .map(|(program, _)| program.stream.clone());
        let mut reader = Reader::new(stream.unwrap_or_default(), Vec::new(), max_waiting);
        let buffers = window.map_or(0, |window| window.buffers);
        reader.window().free().reserve(buffers);
        let prompts = Self {
            borrowing,
            swaps: program.cached_neurons == 0 && pipeline == Pipeline::Cluster,
            active: false,
        };
        (prompts, reader)
    }

    /// Whether the prefill graph is in force.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Whether Preload has GIO's window.
    pub fn has_swapped(&self) -> bool {
        self.active && self.borrowing.is_none()
    }

    /// The program in force, where it is not decode's.
    pub fn program(&self) -> Option<&Program> {
        let borrowing = self.borrowing.as_ref().filter(|_| self.active);
        borrowing.map(|(program, _)| program)
    }

    /// The borrowed window's buffers, where there is one.
    pub fn tally(&self, stages: &Stages) -> Option<WindowTally> {
        let window = stages.preload.reader.window_ref();
        self.borrowing.as_ref().map(|_| window.tally())
    }

    /// A step of `n_tokens` begins, and more of the same prompt may follow: chooses the graph, and sees to its window.
    pub fn begin_step(
        &mut self,
        (n_tokens, more): (usize, bool),
        stages: &mut Stages,
        store: &mut NeuronStore,
    ) {
        let is_prompt = n_tokens >= FEWEST_TOKENS;
        let Some((program, window)) = &self.borrowing else {
            // GIO's window changes hands; what it has read stays in it.
            let active = is_prompt && self.swaps;
            if active != self.active {
                self.active = active;
                std::mem::swap(&mut stages.gio.reader, &mut stages.preload.reader);
            }
            return;
        };
        // What is in the cache is not read again where that is most of it.
        let neurons = program.cached_neurons;
        let missing = neurons - store.cached();
        self.active = is_prompt
            && missing * SEQUENTIAL_GAIN >= neurons
            // A cache that has shrunk may have too little to lend.
            && store.can_lend(window.buffers * window.bytes);
        let preload = stages.preload.reader.window();
        if !self.active {
            // A prompt that was cut short read ahead for a part that does not come.
            preload.restart();
            return self.return_window(stages, store);
        }
        store.lend(window.buffers, window.bytes, preload.free());
        preload.set_wraps(more);
    }

    /// A step is over: after a prompt's last one the cache gets its memory back.
    pub fn end_step(&mut self, more: bool, stages: &mut Stages, store: &mut NeuronStore) {
        if self.active && !more {
            self.return_window(stages, store);
        }
    }

    /// Gives a borrowed window's memory back, unless a read is still under way into it: then the next step tries.
    fn return_window(&mut self, stages: &mut Stages, store: &mut NeuronStore) {
        let Some((_, window)) = self.borrowing.as_ref().filter(|_| store.lends()) else {
            return;
        };
        let free = stages.preload.reader.window().free();
        if free.len() == window.buffers {
            store.take_back(free);
        }
    }
}
