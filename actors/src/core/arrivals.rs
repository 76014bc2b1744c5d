//! Reads: those that are due are started, and those that have finished go to the stage that wants
//! them.

use forebay_queues::slab::Slot;
use forebay_stages::contract::StageFault;
use forebay_stages::gio::Reader;
use forebay_traces::record::Reason;

use super::{Core, State};
use crate::fault::Fault;
use crate::io::{ReadDone, ReadFault};
use crate::io_link::{IoLink, ReadTag};
use crate::shared::Shared;

impl Core {
    /// Receives finished reads from the I/O actor, and what a device has done for this core.
    pub(super) fn collect_arrivals(&mut self) {
        if let Some(uploader) = &mut self.stages.uploader {
            uploader.collect();
        }
        if let Some(attender) = &mut self.mixers.attender {
            attender.collect();
        }
        while let Some(done) = self.io.try_done() {
            let ReadDone {
                tag,
                slot,
                result,
                offset,
                ..
            } = done;
            match ReadTag::decode(tag) {
                ReadTag::Stream { ordinal } => self.cluster_arrived(false, ordinal, slot, result),
                ReadTag::Preload { ordinal } => self.cluster_arrived(true, ordinal, slot, result),
                ReadTag::Expert { cell } => self.expert_arrived(cell, slot, result),
                ReadTag::Neurons { id } => self.neurons_arrived((id, offset), slot, result),
                ReadTag::Embedding { .. } => debug_assert!(false, "cores do not look tokens up"),
            }
        }
    }

    /// A cluster was read into a window: into the one that is borrowed from the cache, or into the stream window.
    fn cluster_arrived(
        &mut self,
        borrowed: bool,
        ordinal: usize,
        slot: Slot,
        result: Result<(), ReadFault>,
    ) {
        let reader = match borrowed || self.prompts.has_swapped() {
            true => &mut self.stages.preload.reader,
            false => &mut self.stages.gio.reader,
        };
        reader.arrived(ordinal, slot, result.is_ok());
        if let Err(fault) = result {
            let cluster = reader.cluster(ordinal);
            self.note_unread(cluster, fault);
        }
        if borrowed && !self.prompts.is_active() {
            // A prompt was cancelled, and decoding goes on: it may need the whole cache.
            let store = &mut self.weights.neurons;
            self.prompts.return_window(&mut self.stages, store);
        }
    }

    /// A cluster of an expert was read into a cell.
    fn expert_arrived(&mut self, cell: usize, slot: Slot, result: Result<(), ReadFault>) {
        let wanted = self.weights.experts.arrived(cell, slot, result.is_ok());
        if let (Some(key), Err(fault)) = (wanted, result) {
            self.note_unread(self.program.cached_clusters[key], fault);
        }
    }

    /// Keeps why a cluster could not be read, for when it is wanted. An earlier reason may be left of a read that
    /// nobody wanted in the end.
    fn note_unread(&mut self, cluster: u32, fault: ReadFault) {
        self.unread.retain(|(unread, _)| *unread != cluster);
        self.unread.push((cluster, fault));
    }

    /// Neurons that a cluster waits for came back.
    fn neurons_arrived(
        &mut self,
        (id, offset): (usize, u64),
        slot: Slot,
        result: Result<(), ReadFault>,
    ) {
        let store = &mut self.weights.neurons;
        let read_ok = result.is_ok();
        if let Err(fault) = result {
            let what = "neurons".to_string();
            self.shared.faults.report(Fault::Read {
                what,
                offset,
                fault,
            });
        }
        let bundle = &self.shared.bundle;
        let sums = |cluster, neuron| bundle.neuron_sums(cluster, neuron);
        let ready = match store.arrived(id, slot, read_ok, sums) {
            Ok(ready) => ready,
            Err(corrupt) => {
                let neuron = Some(corrupt.neuron);
                let cluster = corrupt.cluster as u32;
                self.report_fault(StageFault::Corrupt { cluster, neuron }, 0);
                corrupt.ready
            }
        };
        if let Some(number) = ready {
            self.flight_is_ready(number);
        }
    }

    /// Starts as many reads as there are free buffers.
    pub(super) fn start_reads(&mut self) {
        let borrowed = self.prompts.program().is_some();
        // Not a clone: this happens many times per phase, and all cores would count on one cache line.
        let shared = &self.shared;
        let reader = match self.prompts.is_active() {
            true => &mut self.stages.preload.reader,
            false => &mut self.stages.gio.reader,
        };
        read_clusters(shared, reader, borrowed, &mut self.io);
        let experts = &mut self.weights.experts;
        while let Some(read) = experts.next_read() {
            let entry = shared.entry(self.program.cached_clusters[read.key]);
            let tag = ReadTag::Expert { cell: read.cell };
            let (start, len) = (read.range.start, read.range.len());
            let (offset, slot) = (entry.offset + start as u64, (read.slot, start));
            let flow = match read.guessed {
                true => self.io.prefetch(tag, offset, len, slot),
                false => self.io.urgent(tag, offset, len, slot),
            };
            experts.started(read.cell, flow);
        }
        let (store, stages) = (&mut self.weights.neurons, &mut self.stages);
        while let Some(read) = store.next_read() {
            let tag = ReadTag::Neurons { id: read.id };
            let flow = self.io.urgent(tag, read.offset, read.len, (read.slot, 0));
            stages.gio.waiting.reads(read.flight, flow);
            stages.udio.waiting.reads(read.flight, flow);
        }
        self.io.flush();
    }

    /// Whether a read of the step is in flight or due.
    pub(super) fn is_reading(&mut self) -> bool {
        self.reader().window_ref().is_reading()
            || self.weights.neurons.is_reading()
            || self.weights.experts.is_reading()
    }

    /// What the core waits for when it waits for reads, or for clusters that another core computes.
    pub(super) fn waits_for(&self) -> Reason {
        let (gio, udio) = (&self.stages.gio, &self.stages.udio);
        let is_routed = |number: usize| self.program().phases[number].is_routed();
        let lends = matches!(self.state, State::Phase(number) if is_routed(number));
        if lends && !self.prompts.is_active() && gio.held() + udio.held() == 0 {
            return Reason::Barrier;
        }
        match udio.waiting.is_empty() && udio.experts.is_empty() {
            true => Reason::IoGate,
            false => Reason::IoUpDown,
        }
    }

    /// Reports a fault in a cluster of `layer`.
    pub(super) fn report_fault(&mut self, fault: StageFault, layer: usize) {
        let shared = &self.shared;
        let fault = match fault {
            StageFault::OutOfRange => Fault::OutOfRange { layer },
            StageFault::Corrupt { cluster, neuron } => {
                let (name, offset) = (shared.describe(cluster), shared.entry(cluster).offset);
                let what = match neuron {
                    Some(neuron) => format!("neuron {neuron} of the {name}"),
                    None => name,
                };
                Fault::Corrupt { what, offset }
            }
            StageFault::Unread { cluster } => {
                let at = self.unread.iter().position(|(c, _)| *c == cluster);
                let Some(at) = at else {
                    debug_assert!(false, "cluster {cluster} failed for no reason");
                    return;
                };
                let (_, fault) = self.unread.swap_remove(at);
                let (what, offset) = (shared.describe(cluster), shared.entry(cluster).offset);
                Fault::Read {
                    what,
                    offset,
                    fault,
                }
            }
        };
        shared.faults.report(fault);
    }
}

/// Fills a window.
fn read_clusters(shared: &Shared, reader: &mut Reader, borrowed: bool, io: &mut IoLink) {
    while let Some(read) = reader.next_read() {
        let entry = shared.entry(read.cluster);
        let ordinal = read.ordinal;
        let tag = match borrowed {
            true => ReadTag::Preload { ordinal },
            false => ReadTag::Stream { ordinal },
        };
        let flow = io.prefetch(tag, entry.offset, entry.padded_len(), (read.slot, 0));
        reader.started(ordinal, flow);
    }
}
