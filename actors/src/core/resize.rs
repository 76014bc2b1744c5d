//! Pinned clusters are evicted while the budget is smaller, and pinned again when it grows. So are copies of others on
//! a device, before them: the cores have the clusters in memory and compute them meanwhile.
//!
//! It happens between two steps. First the stream window's reads finish, since the cycle of streamed clusters changes;
//! what is pinned again is read into its place and verified like everything that is streamed; then the core gets
//! another program. Kernels, owners and sums are the same, so no result depends on it.

use forebay_plans::program::{Item, Source, compile};
use forebay_plans::residency::Residency;
use forebay_queues::slab::Slot;
use forebay_stages::contract::Turn;
use forebay_stages::gio::Reader;
use forebay_traces::record::{Reason, Stage};

use super::parts::max_flights;
use super::phases::Apart;
use super::{Core, State};
use crate::step::Sizes;

impl Core {
    /// A step without tokens: the caches get their new size, then clusters on a device are given back or copied again,
    /// then others are evicted or read back.
    pub(super) fn begin_resize(&mut self, sizes: Sizes) {
        // A prompt that was cut short may still have a part of the cache's memory.
        self.begin_graph();
        if sizes.kv_blocks < self.sizes.kv_blocks {
            self.mixers.attention.forget(sizes.kv_blocks);
        }
        if sizes.max_tokens < self.sizes.max_tokens {
            self.give_back_scratch();
        }
        self.sizes = sizes;
        self.weights.view.look_away();
        self.state = State::ResizeCaches;
    }

    /// The caches get their new size once nothing is read into what they give back: a guess may still be on its way, or
    /// a part of a prompt that was cut short.
    pub(super) fn cache_resize_turn(&mut self) -> Turn {
        if !self.resize_caches() && self.reads_into_caches() {
            return Turn::Blocked(Reason::IoGate);
        }
        match (&self.device, self.step.resize) {
            (Some(_), Some(sizes)) => {
                let keep = sizes.phases_on_device;
                self.state = State::ResizeDevice { keep };
            }
            (_, sizes) => self.begin_evicting(sizes.map_or(0, |sizes| sizes.evicted_clusters)),
        }
        Turn::Progress
    }

    /// Gives the caches the size that they should have; false if one has not got it yet.
    pub(super) fn resize_caches(&mut self) -> bool {
        let neurons = self.weights.neurons.resize(self.sizes.cache_slots);
        let experts = self.weights.experts.resize(self.sizes.cache_slots);
        neurons && experts
    }

    fn reads_into_caches(&self) -> bool {
        let weights = &self.weights;
        let borrowed = self.stages.preload.reader.window_ref();
        weights.experts.has_reads() || weights.neurons.is_reading() || borrowed.is_reading()
    }

    /// One more phase's clusters are given back or copied again, until the device has those of the first `keep` phases.
    pub(super) fn device_resize_turn(&mut self, keep: usize) -> Turn {
        match self.move_on_device(keep) {
            Some(turn) => turn,
            None => {
                let evicted = self.step.resize.map_or(0, |sizes| sizes.evicted_clusters);
                self.begin_evicting(evicted);
                Turn::Progress
            }
        }
    }

    fn begin_evicting(&mut self, evicted: u32) {
        if self.weights.evictable.retarget(evicted) {
            self.stages.gio.reader.close();
            self.state = State::Resize;
        } else {
            self.state = State::Idle;
            self.report();
        }
    }

    /// The window's reads finish, then clusters that are pinned again are read, then there is a new cycle.
    pub(super) fn resize_turn(&mut self) -> Turn {
        if self.take_evicted() {
            return Turn::Progress;
        }
        let reader = &mut self.stages.gio.reader;
        if reader.is_busy() {
            return Turn::Blocked(Reason::IoGate);
        }
        let evictable = &mut self.weights.evictable;
        if !evictable.proceed(|| reader.window().free().drain(..).collect()) {
            // The other cores look away when they come to this step, which they have been sent.
            return Turn::Progress;
        }
        // After a fault, what was read may be wrong; everything stays as it was.
        let failed = evictable.grows() && self.shared.faults.is_set();
        if !failed {
            let (clusters, slots) = evictable.next_batch();
            if !clusters.is_empty() {
                *reader = loader(&clusters, slots);
                return Turn::Progress;
            }
        }
        let window = evictable.end_change(failed);
        self.recompile(window);
        self.state = State::Idle;
        self.report();
        Turn::Progress
    }

    /// Receives a cluster that has been read back.
    fn take_evicted(&mut self) -> bool {
        let Apart {
            frame, stages, out, ..
        } = &mut self.apart(0);
        if !stages.gio.reader.hand_on(frame, Stage::Gio, out) {
            return false;
        }
        while let Some(rows) = out.rows.pop_front() {
            frame.weights.evictable.take(rows.buffer);
        }
        self.publish(0);
        true
    }

    /// The program and the cycle for what is now streamed, over the buffers `window`.
    fn recompile(&mut self, window: Vec<Slot>) {
        let shared = &self.shared;
        let mut plan = shared.plan.clone();
        for cluster in self.weights.evictable.streamed() {
            plan.residency[cluster as usize] = Residency::Streamed;
        }
        self.program = compile(&shared.bundle, &plan, self.rank, shared.program_options());
        let flights = max_flights(shared, &self.program);
        let waiting = flights.max(self.program.max_rows());
        self.stages.gio.reader = Reader::new(self.program.stream.clone(), window, waiting);
    }
}

/// Reads each of `clusters` into the slot of the same index.
fn loader(clusters: &[u32], slots: Vec<Slot>) -> Reader {
    let mut reader = Reader::new(clusters.to_vec(), slots, clusters.len());
    reader.window().set_wraps(false);
    for (number, &cluster) in clusters.iter().enumerate() {
        let ordinal = number as u32;
        reader.wait_for_rows(Item {
            cluster,
            matrix: 0,
            expert: None,
            source: Source::Streamed { ordinal },
        });
    }
    reader
}
