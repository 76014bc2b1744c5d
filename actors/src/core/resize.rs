//! Pinned clusters are evicted while the budget is smaller, and pinned again when it grows.
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

impl Core {
    /// A step without tokens: the caches get their new size, if no read holds their slots, and clusters are evicted or
    /// read back.
    pub(super) fn begin_resize(&mut self, evicted: u32) -> Turn {
        // A prompt that was cut short may still have a part of the cache's memory.
        self.begin_graph();
        self.weights.neurons.resize(self.cache_slots);
        self.weights.experts.resize(self.cache_slots);
        if !self.weights.evictable.retarget(evicted) {
            self.report();
            return Turn::Progress;
        }
        self.stages.gio.reader.close();
        self.state = State::Resize;
        Turn::Progress
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
        evictable.proceed(|| reader.window().free().drain(..).collect());
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
        } = self.apart(0);
        if !stages.gio.reader.hand_on(&frame, Stage::Gio, out) {
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
