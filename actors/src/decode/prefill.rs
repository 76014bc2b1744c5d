//! The prefill graph: what a prompt does instead of reading single neurons.
//!
//! ```text
//!   Preload (clusters of the next layers, in the order of use, into a window) ──▶ Pred ─▶ GC ─▶ UDC ──▶ boards
//!      ▲ lends                                                                                │
//!   neuron cache ◀────────────────────── hand-over: neurons of the last tokens ───────────────┘
//! ```
//!
//! A batch of tokens wants most neurons, so it takes whole clusters in long reads one after the other
//! (PowerInfer-2, section 4.1), layers ahead of the computation, each weight once per batch. The window's
//! memory is the end of the neuron cache. When the prompt is over, the cache has it back, and the neurons that
//! were alive for the last tokens are taken over from the window: they are the first hot set of decode.
//!
//! The stages, lanes, cores and the I/O actor are those of the decode graph, and so is each sum's order. Models
//! whose clusters are streamed in decode, too, need no second graph: their window runs ahead in both.

use forebay_queues::slab::Slot;
use forebay_stages::gio::WindowTally;
use forebay_stages::neuron_store::{NeuronMemory, NeuronStore};

use super::context::{CoreContext, Flight};
use super::gio::GioActor;
use super::program::{Program, Source};
use super::shared::{Shared, Step};
use crate::io_link::ReadTag;

/// Tokens from which on a batch is a prompt's: with one neuron in ten alive per token, most are alive for one of so
/// many.
const LEAST_TOKENS: usize = 16;
/// Sequential reads are about this many times as fast as reads of single neurons (2.4 against 0.47 GB/s where this
/// was measured), so reading everything pays where so large a part of it is missing.
const SEQUENTIAL_GAIN: usize = 5;
/// The window takes at most this part of the neuron cache, or, where that is not enough for two clusters, at most
/// half of it.
const CACHE_SHARE: usize = 8;
/// Most buffers of the window.
const MAX_BUFFERS: usize = 64;
/// The hand-over takes the neurons of this many last tokens into a cache of half of all neurons, and of fewer into
/// smaller ones: what is too much would push out what came before it.
const RECENT: f64 = 8.0;

/// Which clusters come when, and those that come through a window.
#[derive(Debug)]
pub(super) struct Route {
    pub program: Program,
    pub gio: GioActor,
}

/// The window of the prefill graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreloadWindow {
    pub buffers: usize,
    /// Bytes of each, enough for the longest cluster.
    pub bytes: usize,
}

impl PreloadWindow {
    /// As many layers ahead as the share of the neuron cache allows, at most one: the disk is as fast with less.
    /// `None` where there is no room for two clusters, or nothing to preload.
    pub fn of(shared: &Shared, program: &Program, memory: &NeuronMemory) -> Option<Self> {
        if !program.can_preload() {
            return None;
        }
        let padded = |cluster: u32| shared.entry(cluster).padded_len();
        let by_neuron = |item: &&super::program::Item| !matches!(item.source, Source::Pinned);
        let layers = program.ffn.iter();
        let layer = layers.map(|l| l.iter().filter(by_neuron).map(|i| padded(i.cluster)).sum());
        let items = program.ffn.iter().flatten().filter(by_neuron);
        let bytes = items.map(|i| padded(i.cluster)).max()?;
        let store = memory.store.as_ref()?.len();
        let buffers = ((store / CACHE_SHARE).min(layer.max()?) / bytes).max(2);
        (buffers * bytes <= store / 2).then_some(Self {
            buffers: buffers.min(MAX_BUFFERS),
            bytes,
        })
    }
}

/// The prefill graph's part of a core.
#[derive(Debug)]
struct Prefill {
    route: Route,
    window: PreloadWindow,
}

/// The two graphs' work lists; one of them is in force during a step.
#[derive(Debug)]
pub(super) struct Routes {
    decode: Route,
    prefill: Option<Prefill>,
    prefilling: bool,
}

impl Routes {
    /// The decode graph's route, and the prefill graph's where there is a window for it.
    pub fn new(decode: Route, window: Option<PreloadWindow>, max_waiting: usize) -> Self {
        let prefill = window.map(|window| {
            let program = decode.program.preloading();
            let stream = program.stream.clone();
            let mut gio = GioActor::new(stream, Vec::new(), max_waiting, |ordinal| {
                ReadTag::Preload { ordinal }
            });
            gio.window().free().reserve(window.buffers);
            let route = Route { program, gio };
            Prefill { route, window }
        });
        Self {
            decode,
            prefill,
            prefilling: false,
        }
    }

    /// The decode graph's clusters.
    pub fn decode(&self) -> &Program {
        &self.decode.program
    }

    /// The route in force.
    pub fn now(&self) -> &Route {
        match &self.prefill {
            Some(prefill) if self.prefilling => &prefill.route,
            _ => &self.decode,
        }
    }

    /// The route in force.
    pub fn now_mut(&mut self) -> &mut Route {
        match &mut self.prefill {
            Some(prefill) if self.prefilling => &mut prefill.route,
            _ => &mut self.decode,
        }
    }

    /// The buffers of both windows, and the clusters that wait for one of them.
    pub fn tally(&self) -> (WindowTally, Option<WindowTally>, usize) {
        let (window, waiting) = self.decode.gio.tally();
        let preload = self.prefill.as_ref().map(|p| p.route.gio.tally());
        let also_waiting = preload.map_or(0, |p| p.1);
        (window, preload.map(|p| p.0), waiting + also_waiting)
    }

    /// Takes in a cluster of either window.
    pub fn arrived(&mut self, tag: ReadTag, slot: Slot, result: Result<(), crate::io::ReadFault>) {
        match (tag, &mut self.prefill) {
            (ReadTag::Stream { ordinal }, _) => self.decode.gio.arrived(ordinal, slot, result),
            (ReadTag::Preload { ordinal }, Some(prefill)) => {
                prefill.route.gio.arrived(ordinal, slot, result);
            }
            _ => debug_assert!(false, "{tag:?} is no window's"),
        }
    }

    /// A step begins: chooses the route, and lends the prefill graph its window if it is a prompt's.
    pub fn begin_step(&mut self, step: &Step, store: &mut NeuronStore) {
        let Some(prefill) = &mut self.prefill else {
            return;
        };
        // What is in the cache is not read again where that is most of it.
        let neurons = prefill.route.program.cached_neurons;
        let missing = neurons - store.cached();
        // A neuron that was read ahead and that nobody wanted may still be on its way into the memory that would
        // be lent; then the next batch takes this route.
        self.prefilling = step.n_tokens >= LEAST_TOKENS
            && missing * SEQUENTIAL_GAIN >= neurons
            && !store.is_reading()
            // A cache that has shrunk may have too little to lend.
            && store.can_lend(prefill.window.buffers * prefill.window.bytes);
        if !self.prefilling {
            // A prompt that was cut short read ahead for a part that does not come.
            prefill.route.gio.window().restart();
            self.end_prompt(store);
            return;
        }
        let PreloadWindow { buffers, bytes } = prefill.window;
        store.lend(buffers, bytes, prefill.route.gio.window().free());
        prefill.route.gio.window().set_wraps(step.more);
    }

    /// A step is over: after a prompt's last one the cache gets its memory back.
    pub fn end_step(&mut self, step: &Step, store: &mut NeuronStore) {
        if self.prefilling && !step.more {
            self.end_prompt(store);
        }
    }

    /// Gives the window's memory back, unless a read is still under way into it: then the next step tries.
    fn end_prompt(&mut self, store: &mut NeuronStore) {
        let Some(prefill) = self.prefill.as_mut().filter(|_| store.lends()) else {
            return;
        };
        let free = prefill.route.gio.window().free();
        if free.len() == prefill.window.buffers {
            store.take_back(free);
        }
    }
}

/// Takes the neurons of a preloaded cluster into the cache that were alive for the prompt's last tokens. They are
/// checked as neurons that are read singly are: a cluster that failed goes its way to the end of the step, and is
/// not to be found here afterwards.
pub(super) fn hand_over(cx: &CoreContext, flight: &Flight, store: &mut NeuronStore) {
    let (Source::Preloaded { base, .. }, Some(bytes), false) =
        (flight.item.source, &flight.buffer, cx.step.more)
    else {
        return;
    };
    let g = &cx.shared.bundle.meta.layers[cx.layer].ffn;
    let gates = &cx.gates[cx.gate_range(flight)];
    let activation = cx.shared.pred.activation();
    let tokens = (RECENT * (2.0 * store.share()).min(1.0)).max(1.0) as usize;
    let recent = &gates[cx.step.n_tokens.saturating_sub(tokens) * flight.count..];
    for neuron in flight.live.iter() {
        let mut tokens = recent.chunks_exact(flight.count);
        if tokens.any(|token| activation.gate(token[neuron]) != 0.0) {
            let cluster = flight.item.cluster as usize;
            let bundle = &bytes[neuron * g.bundle_stride()..][..g.bundle_bytes()];
            if let Some(sums) = cx.shared.bundle.neuron_sums(cluster, neuron) {
                store.adopt(base as usize + neuron, g, bundle, sums);
            }
        }
    }
}
