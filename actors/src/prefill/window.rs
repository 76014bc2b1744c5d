//! The window of the prefill graph, and when that graph is taken. Its size is the plan's ([`PreloadWindow`]).
//!
//! Where neurons are cached singly, the window's memory is the end of the neuron cache, which has it back when the
//! prompt is over; clusters that decode streams come through it as well. Elsewhere it is GIO's window.

use forebay_plans::preload::{PROMPT_TOKENS, PreloadWindow};
use forebay_plans::program::Program;
use forebay_plans::residency::Pipeline;
use forebay_stages::contract::Slice;
use forebay_stages::gio::{Reader, WindowTally};
use forebay_stages::neuron_store::NeuronStore;
use forebay_traces::record::Stage;

use crate::shared::Shared;
use crate::wiring::Stages;

/// What a core keeps for prompts.
#[derive(Debug)]
pub(crate) struct Prompts {
    /// The program with whole clusters preloaded, and the borrowed window for it.
    borrowing: Option<(Program, PreloadWindow)>,
    /// Whether Preload takes GIO's window instead. Not if a baseline confines that window to a phase.
    swaps: bool,
    /// How much faster sequential reads are than reads of single neurons.
    gain: f64,
    /// Whether the prefill graph is in force.
    active: bool,
}

impl Prompts {
    /// For a core that runs `program`, and Preload for it.
    pub fn new(
        shared: &Shared,
        program: &Program,
        window: Option<PreloadWindow>,
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
            swaps: program.cached_neurons == 0 && shared.neurons.pipeline == Pipeline::Cluster,
            gain: shared.sequential_gain,
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

    /// The program in force, if it is not decode's.
    pub fn program(&self) -> Option<&Program> {
        let borrowing = self.borrowing.as_ref().filter(|_| self.active);
        borrowing.map(|(program, _)| program)
    }

    /// The borrowed window's buffers, if there is one.
    pub fn tally(&self, stages: &Stages) -> Option<WindowTally> {
        let window = stages.preload.reader.window_ref();
        self.borrowing.as_ref().map(|_| window.tally())
    }

    /// A step of `n_tokens` begins, and more of the same prompt may follow: chooses the graph, and sees to its window.
    /// Returns the record of GIO's window being handed over to decode, with what has been read into it.
    pub fn begin_step(
        &mut self,
        (n_tokens, more): (usize, bool),
        stages: &mut Stages,
        store: &mut NeuronStore,
    ) -> Option<Slice> {
        let is_prompt = n_tokens >= PROMPT_TOKENS;
        let Some((program, window)) = &self.borrowing else {
            // Preload takes GIO's window, or returns it; what it has read stays in it.
            let active = is_prompt && self.swaps;
            if active == self.active {
                return None;
            }
            self.active = active;
            std::mem::swap(&mut stages.gio.reader, &mut stages.preload.reader);
            let ready = stages.gio.reader.window_ref().ready();
            return (!active && ready > 0).then(|| Slice::plain(Stage::HandOver, 0, ready));
        };
        // If most neurons are in the cache, they are not read again.
        let neurons = program.cached_neurons;
        let missing = neurons - store.cached();
        self.active = is_prompt
            && missing as f64 * self.gain >= neurons as f64
            // A cache that has shrunk may have too little to lend.
            && store.can_lend(window.buffers * window.buffer_bytes);
        let preload = stages.preload.reader.window();
        if !self.active {
            // A cancelled prompt has read ahead for a part that does not come.
            preload.restart();
            self.return_window(stages, store);
            return None;
        }
        store.lend(window.buffers, window.buffer_bytes, preload.free());
        preload.set_wraps(more);
        None
    }

    /// A step is over: after a prompt's last one, the cache gets its memory back.
    pub fn end_step(&mut self, more: bool, stages: &mut Stages, store: &mut NeuronStore) {
        if self.active && !more {
            self.return_window(stages, store);
        }
    }

    /// Returns a borrowed window's memory, unless a read into it is still in flight: then its end tries again.
    pub fn return_window(&mut self, stages: &mut Stages, store: &mut NeuronStore) {
        let Some((_, window)) = self.borrowing.as_ref().filter(|_| store.lends()) else {
            return;
        };
        let free = stages.preload.reader.window().free();
        if free.len() == window.buffers {
            store.take_back(free);
        }
    }
}
