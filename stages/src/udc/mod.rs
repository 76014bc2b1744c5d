//! UDC: computes Up and Down of whichever cluster is in memory, and adds the result to the core's
//! share.

mod up_down;

use std::collections::VecDeque;

use forebay_traces::record::{Residency as Hit, Stage};

use crate::computed::Computed;
use crate::contract::{Outbox, Port, Slice, StageActor, StageFault};
use crate::flight::Flight;
use crate::frame::Frame;
use crate::gathered::first_rows;
use crate::kernels::{Activations, Aligned, Gather};
use crate::neuron_store::CacheCounts;

pub use up_down::{ClusterWork, OutOfRange, UdcScratch, add_to_residual, up_down};

/// The stage.
#[derive(Debug)]
pub struct Udc {
    inbox: VecDeque<Box<Flight>>,
    scratch: UdcScratch,
    /// This core's share of the FFN, `[n_tokens, d_model]` in fixed point.
    share: Aligned<i64>,
    /// Its elements.
    len: usize,
    /// Ups and Downs computed since the counts were last taken.
    pub computed: Computed,
    /// Live neurons of whole clusters found in memory or read, likewise.
    pub counts: CacheCounts,
}

impl Udc {
    /// With at most `flights` clusters of a phase, and the sizes of [`UdcScratch::new`].
    pub fn new(flights: usize, sizes: (usize, usize, usize), by_neuron: usize) -> Self {
        let (max_tokens, _, d_model) = sizes;
        Self {
            inbox: VecDeque::with_capacity(flights),
            scratch: UdcScratch::new(sizes, by_neuron),
            share: Aligned::new(max_tokens * d_model),
            len: 0,
            computed: Computed::default(),
            counts: CacheCounts::default(),
        }
    }

    /// Gives the memory of shares and hidden values back to the system until a step needs it.
    pub fn give_back(&mut self) {
        self.len = 0;
        self.share.give_back();
        self.scratch.give_back();
    }

    /// Bytes of what [`Self::give_back`] gives back.
    pub fn bytes_of_steps((max_tokens, max_neurons, d_model): (usize, usize, usize)) -> usize {
        let values = max_tokens * (2 * max_neurons * size_of::<f32>() + d_model * size_of::<i64>());
        Activations::bytes_for(max_tokens, max_neurons) + values
    }

    /// A layer's FFN begins, with `len` elements of output.
    pub fn begin(&mut self, len: usize) {
        self.len = len;
        self.share.part_mut(0, len).fill(0);
    }

    /// Adds a device's share of it, `[n_tokens, d_model]`.
    pub fn add(&mut self, share: &[i64]) {
        for (sum, more) in self.share.part_mut(0, self.len).iter_mut().zip(share) {
            *sum = sum.wrapping_add(*more);
        }
    }

    /// The core's share of the FFN.
    pub fn share(&self) -> &[i64] {
        self.share.part(0, self.len)
    }

    /// Takes a cluster whose Up and Down are in memory.
    pub fn push(&mut self, flight: Box<Flight>) {
        self.inbox.push_back(flight);
    }

    /// Clusters in the inbox.
    pub fn held(&self) -> usize {
        self.inbox.len()
    }

    /// Computes one cluster. The Gates of `next` are prefetched meanwhile. False if there is no cluster.
    pub fn turn_before(
        &mut self,
        frame: &mut Frame<'_>,
        next: Option<&Flight>,
        out: &mut Outbox,
    ) -> bool {
        let Some(flight) = self.inbox.pop_front() else {
            return false;
        };
        let (geometry, item) = (frame.geometry(&flight.item), flight.item);
        let tokens = frame.tokens_of(&item);
        let (kernels, [_, up_bias]) = (frame.kernels, frame.biases(&item));
        let entry = &frame.bundle.clusters[item.cluster as usize];
        let next = next.filter(|_| geometry.layout.is_by_neuron());
        let next = next.map(|next| (next, frame.geometry(&next.item)));
        let of = (item.expert, tokens);
        let input = frame.input_of(&item);
        let input = frame.expert_input.select(of, geometry, input);
        let (next, n_next) = next.map_or(([&[][..]; Gather::NEXT], 0), |(next, geometry)| {
            let rows = frame.weights.gate_rows(next);
            first_rows(&next.live, |i| rows.gate(geometry, i))
        });
        let work = ClusterWork {
            geometry,
            n: flight.count,
            live: flight.live,
            gates: flight.gates(tokens.n),
            tokens,
            up_bias,
            rows: frame.weights.up_down_rows(&flight),
            ups: (&flight.early.upped, &flight.early.ups),
            next: &next[..n_next],
            observer: frame.observer.map(|observer| (observer, entry)),
        };
        let activation = frame.rule.activation();
        let done = up_down(
            kernels,
            &work,
            input,
            activation,
            &mut self.scratch,
            self.share.part_mut(0, self.len),
        );
        match done {
            Ok(_) if frame.is_hot(&item) => {}
            Ok(pairs) => self.computed.add(flight.live.count(), pairs),
            Err(OutOfRange) => out.faults.push(StageFault::OutOfRange),
        }
        let early_bytes = flight.early.upped.count() * geometry.up_row();
        let bytes = flight.live.count() * geometry.touched_per_neuron() - early_bytes;
        self.finish(flight, bytes as u64, out);
        true
    }

    fn finish(&mut self, flight: Box<Flight>, bytes: u64, out: &mut Outbox) {
        let by_neuron = flight.is_by_neuron();
        let (hit, flow) = match (flight.flow, by_neuron) {
            (0, _) => (Hit::Hit, 0),
            (flow, true) => (Hit::Miss, flow),
            (_, false) => (Hit::Miss, 0),
        };
        out.record(Slice {
            stage: Stage::Udc,
            cluster: flight.item.cluster,
            count: 1,
            bytes,
            hit,
            flow,
        });
        let live = flight.live.count() as u64;
        let missed = match (flight.read_later, flight.flow) {
            (Some(missed), _) => missed as u64,
            (None, 0) => 0,
            (None, _) => live,
        };
        // The cache counts those by neuron.
        if !by_neuron {
            self.counts.hits += live - missed;
            self.counts.misses += missed;
        }
        out.send(Port::Done, flight);
    }
}

impl StageActor for Udc {
    fn turn(&mut self, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        self.turn_before(frame, None, out)
    }
}
