//! What the actors of one core share: they run one after the other on the same thread, so plain
//! mutable state is enough.

use std::sync::Arc;

use forebay_queues::slab::Slot;
use forebay_stages::kernels::Activations;
use forebay_stages::live_mask::LiveMask;
use forebay_stages::neuron_store::CacheCounts;
use forebay_traces::clock::now_ns;
use forebay_traces::lane::TraceLane;
use forebay_traces::ledger::{Ledger, State};
use forebay_traces::record::{Kind, Reason, Record, Residency as Hit, Stage};

use super::early::EarlyProducts;
use super::giving_way::GivingClusters;
use super::program::Item;
use super::shared::{Computed, Shared, Step};
use crate::fault::Fault;

/// A cluster on its way through the stages of one core.
#[derive(Debug)]
pub(super) struct Flight {
    pub item: Item,
    /// Place in the layer's work list; names the flight in UDIO and its part of the gates.
    pub number: usize,
    /// Neurons or rows of the cluster.
    pub count: usize,
    /// Neurons to compute: after Pred those that may be alive, after GC those that are.
    pub live: LiveMask,
    /// Whether GC is done with it.
    pub gated: bool,
    /// Buffer of a streamed cluster.
    pub buffer: Option<Slot>,
    /// Ties the consumer to the read in the trace; 0 for clusters in memory.
    pub flow: u64,
}

/// Shared state of a core's actors.
#[derive(Debug)]
pub(super) struct CoreContext {
    pub shared: Arc<Shared>,
    pub rank: usize,
    pub step: Step,
    pub layer: usize,
    /// Own clusters that may give way.
    pub giving: GivingClusters,
    /// Input of the current phase, normed where it has to be.
    pub x: Activations,
    /// Gates of the layer's clusters, `[first neuron of the flight..][n_tokens, n]`.
    pub gates: Vec<f32>,
    /// Start of each flight's gates, in neurons.
    pub gate_start: Vec<usize>,
    /// Products of neurons that did not wait for the rest of their clusters.
    pub early: EarlyProducts,
    /// What the predictor's fc1 made of the tokens, `relu(fc1 · x)`, `[n_tokens, rank]`.
    pub hidden: Activations,
    /// The same of the next layer's fc1, for reading ahead.
    pub hidden_ahead: Activations,
    /// Neurons that the predictor names by flight and token, `[flights, max_batch]`; empty without one.
    pub named: Vec<LiveMask>,
    /// This core's share of the FFN, `[n_tokens, d_model]` in fixed point.
    pub acc: Vec<i64>,
    /// FFN clusters of the layer that are done.
    pub retired: usize,
    pub trace: TraceLane,
    /// End of the last recorded piece of work.
    pub last_ns: u64,
    /// Live neurons of whole clusters found in memory or read, since the last report.
    pub counts: CacheCounts,
    /// Gates computed since the last report.
    pub gated: Computed,
    /// Ups and Downs.
    pub live: Computed,
    pub ledger: Ledger,
}

impl CoreContext {
    /// Records a piece of work that ends now and began where the last one ended.
    pub fn record(
        &mut self,
        stage: Stage,
        cluster: u32,
        count: usize,
        bytes: u64,
        hit: Hit,
        flow: u64,
    ) {
        self.end_stall();
        let end_ns = now_ns();
        let record = Record::stage(stage, self.layer as u16, self.last_ns, end_ns);
        let record = record.with_clusters(cluster, count as u16, hit);
        self.trace.push(record.with_bytes(bytes).with_flow(flow));
        self.last_ns = end_ns;
    }

    /// The core has found nothing to do: a stall begins, unless it goes on.
    pub fn begin_stall(&mut self, reason: Reason) {
        if self.ledger.state() != State::Stall(reason) {
            self.end_stall();
            let now = now_ns();
            self.ledger.enter(State::Stall(reason), now);
            self.last_ns = now;
        }
    }

    /// The core has found work: the stall, if it was in one, ended when it woke (`last_ns`).
    pub fn end_stall(&mut self) {
        if let State::Stall(reason) = self.ledger.state() {
            let stall = self.ledger.enter(State::Busy, self.last_ns);
            let record = Record::new(Kind::Stall(reason), stall.start_ns, stall.end_ns);
            self.trace.push(Record {
                layer: self.layer as u16,
                ..record
            });
        }
    }

    /// Reports a fault of the current step.
    pub fn fault(&self, fault: Fault) {
        self.shared.faults.report(fault);
    }

    /// The step's tokens' masks of a flight, if neurons are predicted.
    pub fn named_range(&self, number: usize) -> Option<std::ops::Range<usize>> {
        let at = number * self.shared.max_batch;
        (!self.named.is_empty()).then_some(at..at + self.step.n_tokens)
    }

    /// Place of a flight's gates, `[n_tokens, n]`.
    pub fn gate_range(&self, flight: &Flight) -> std::ops::Range<usize> {
        let at = self.gate_start[flight.number] * self.shared.max_batch;
        at..at + self.step.n_tokens * flight.count
    }
}
