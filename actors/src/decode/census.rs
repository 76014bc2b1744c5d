//! Where a core's buffers and clusters are, for who checks that none is lost and says where a stalled core
//! stands.

use forebay_stages::gio::WindowTally;
use forebay_stages::neuron_store::StoreTally;
use forebay_traces::lane::TraceLane;

use super::sequencer::Sequencer;

/// What a core holds between two turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// The phase, for people.
    pub phase: String,
    /// Layer of the phase.
    pub layer: usize,
    /// Clusters of the phase that are done.
    pub retired: usize,
    /// Clusters that wait in an actor's inbox, for a read or behind a barrier.
    pub clusters: usize,
    /// The stream window.
    pub window: WindowTally,
    /// The prefill graph's window, where there is one.
    pub preload: Option<WindowTally>,
    /// The neuron cache.
    pub store: StoreTally,
    /// Clusters that have given way.
    pub given: Vec<u32>,
    /// Buffers of the stream window that were taken out of their memory.
    pub borrowed: usize,
    /// Whether others give way or come back just now: the window's buffers are then parts of their memory.
    pub changing: bool,
}

impl Sequencer {
    /// What the core holds now.
    pub fn census(&mut self) -> Census {
        let (window, preload, in_windows) = self.routes.tally();
        let actors = &mut self.actors;
        let waiting = actors.rows.waiting() + actors.gc.waiting() + actors.udc.waiting();
        Census {
            phase: format!("{:?}", self.phase),
            layer: self.cx.layer,
            retired: self.cx.retired,
            clusters: in_windows + waiting + actors.neurons.waiting() + self.parked.len(),
            window,
            preload,
            store: actors.neurons.store().tally(),
            given: self.cx.giving.streamed().collect(),
            borrowed: self.cx.giving.borrowed(),
            changing: self.cx.giving.is_changing(),
        }
    }

    /// What the core recorded, to be read and cleared between steps.
    pub fn trace(&mut self) -> &mut TraceLane {
        &mut self.cx.trace
    }
}
