//! Where a core's buffers and clusters are: to check that none is lost, and to report what a stalled core waits for.

use forebay_stages::gio::WindowTally;
use forebay_stages::neuron_store::StoreTally;
use forebay_traces::lane::TraceLane;

use super::Core;

/// The contents of a core between two turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// What the core is doing, as text.
    pub state: String,
    /// Layer of the phase.
    pub layer: usize,
    /// Clusters of the phase that are done.
    pub retired: usize,
    /// Clusters in a stage's inbox, or waiting for a read or at a barrier.
    pub clusters: usize,
    /// The stream window.
    pub window: WindowTally,
    /// The window that prompts borrow, if there is one.
    pub preload: Option<WindowTally>,
    /// Whether a prompt has that window: otherwise what it borrowed comes back.
    pub prompts: bool,
    /// The neuron cache.
    pub store: StoreTally,
    /// Cells of the expert cache whose bytes are here.
    pub cells: usize,
    /// Cells of the expert cache that have memory.
    pub cells_in_use: usize,
    /// Holds on these cells.
    pub cells_held: usize,
    /// Clusters that have been evicted.
    pub evicted: Vec<u32>,
    /// Buffers of the stream window that were taken out of their memory.
    pub borrowed: usize,
    /// Jobs for a device that the core has, and what it needs to copy clusters to one.
    pub jobs: usize,
    /// Whether clusters are being evicted or read back: the window's buffers are then parts of their memory.
    pub changing: bool,
}

impl Core {
    /// What the core currently holds.
    pub fn census(&mut self) -> Census {
        let stages = &self.stages;
        let held = stages.rows.held()
            + stages.gio.held()
            + stages.preload.reader.waiting()
            + stages.preload.experts.len()
            + stages.gc.held()
            + stages.udio.held()
            + stages.udc.held()
            + stages
                .uploader
                .as_ref()
                .map_or(0, |uploader| uploader.held())
            + self.wiring().held();
        let streamed = match self.prompts.has_swapped() {
            true => &stages.preload.reader,
            false => &stages.gio.reader,
        };
        let evictable = &self.weights.evictable;
        Census {
            state: format!("{:?}", self.state),
            layer: self.layer(),
            retired: stages.retired,
            clusters: held,
            window: streamed.window_ref().tally(),
            preload: self.prompts.tally(stages),
            prompts: self.prompts.is_active(),
            store: self.weights.neurons.tally(),
            cells: self.weights.experts.cells_here(),
            cells_in_use: self.weights.experts.cells_in_use(),
            cells_held: self.weights.experts.holds(),
            evicted: evictable.streamed().collect(),
            borrowed: evictable.borrowed(),
            jobs: self.device.as_ref().map_or(0, |link| link.spare())
                + stages
                    .uploader
                    .as_ref()
                    .map_or(0, |uploader| uploader.spare())
                + self.mixers.attender.as_ref().map_or(0, |a| a.spare()),
            changing: evictable.is_changing(),
        }
    }

    /// The core's trace, to be read and cleared between steps.
    pub fn trace(&mut self) -> &mut TraceLane {
        &mut self.recorder.trace
    }
}
