//! The actor of single neurons, GIO and UDIO in one: holds clusters until the wanted part of all their
//! neurons is in the neuron cache.

use std::collections::VecDeque;

use forebay_queues::slab::Slot;
use forebay_stages::live_mask::LiveMask;
use forebay_stages::neuron_store::{NeuronMemory, NeuronRules, NeuronStore, Parts, Place, Wanted};
use forebay_traces::record::Reason;

use super::context::{CoreContext, Flight};
use super::gc::GcActor;
use super::program::{Item, Source};
use super::udc::UdcActor;
use crate::fault::Fault;
use crate::io::ReadFault;
use crate::io_link::{IoLink, ReadTag};

#[derive(Debug)]
pub(super) struct NeuronActor {
    store: NeuronStore,
    /// Flights under way, by number.
    waiting: Vec<Option<Flight>>,
    /// How many of them wait for Gate rows, and how many for Up and Down.
    count: [usize; 2],
    /// Flights in the order in which they began to wait, for [`NeuronActor::next_waiting`].
    parked: VecDeque<usize>,
}

/// Where clusters go whose neurons are here.
pub(super) struct Onward<'a> {
    pub gc: &'a mut GcActor,
    pub udc: &'a mut UdcActor,
}

impl Onward<'_> {
    fn push(&mut self, flight: Flight) {
        if flight.gated {
            self.udc.push(flight);
        } else {
            self.gc.push(flight);
        }
    }
}

impl NeuronActor {
    /// For at most `max_flights` clusters of up to `max_neurons` in a layer.
    pub fn new(
        memory: NeuronMemory,
        rules: NeuronRules,
        (max_flights, max_neurons): (usize, usize),
    ) -> Self {
        Self {
            store: NeuronStore::new(memory, rules, (max_flights, max_neurons)),
            waiting: (0..max_flights).map(|_| None).collect(),
            count: [0; 2],
            // A flight may wait for its Gates, and then again.
            parked: VecDeque::with_capacity(2 * max_flights),
        }
    }

    /// A new layer begins.
    pub fn begin_layer(&mut self) {
        self.parked.clear();
        self.store.stop_reading_ahead();
    }

    /// The next flight that waits, each time it does, with those of its neurons that are here.
    pub fn next_waiting(&mut self) -> Option<(&Flight, Parts, LiveMask, &NeuronStore)> {
        loop {
            let number = self.parked.pop_front()?;
            if self.waiting[number].is_none() {
                continue;
            }
            let (parts, here) = self.store.here(number);
            if !here.is_empty() {
                let flight = self.waiting[number].as_ref()?;
                return Some((flight, parts, here, &self.store));
            }
        }
    }

    /// The neuron cache, for GC and UDC to read and release.
    pub fn store(&mut self) -> &mut NeuronStore {
        &mut self.store
    }

    /// Clusters that wait for neurons.
    pub fn waiting(&self) -> usize {
        self.waiting.iter().flatten().count()
    }

    /// What flights wait for, if any do.
    pub fn waiting_for(&self) -> Option<Reason> {
        match self.count {
            [0, 0] => None,
            [_, 0] => Some(Reason::IoGate),
            _ => Some(Reason::IoUpDown),
        }
    }

    /// A cluster wants the next part of its live neurons; it goes straight on if all of it is here.
    pub fn want(&mut self, cx: &CoreContext, flight: Flight, onward: &mut Onward<'_>) {
        let (base, parts) = match (flight.item.source, flight.gated) {
            (Source::Neurons { base }, false) => (base, self.store.first_parts()),
            (Source::Neurons { base } | Source::GatePinned { base }, true) => {
                (base, Parts::UP_DOWN)
            }
            _ => return onward.push(flight),
        };
        let wanted = Wanted {
            flight: flight.number,
            place: place(cx, flight.item.cluster, base),
            live: flight.live,
            parts,
        };
        if self.store.want(wanted) {
            onward.push(flight);
        } else {
            self.count[usize::from(flight.gated)] += 1;
            let number = flight.number;
            self.waiting[number] = Some(flight);
            self.parked.push_back(number);
        }
    }

    /// Neurons of a cluster of the next layer will probably be wanted.
    pub fn read_ahead(&mut self, cx: &CoreContext, item: &Item, probable: &LiveMask) {
        if let Source::Neurons { base } = item.source {
            self.store
                .read_ahead(&place(cx, item.cluster, base), probable);
        }
    }

    /// Starts as many reads as there are free buffers.
    pub fn start_reads(&mut self, io: &mut IoLink) {
        while let Some(read) = self.store.next_read() {
            let tag = ReadTag::Neurons { id: read.id };
            let flow = match read.is_ahead {
                true => io.prefetch(tag, read.offset, read.len, read.slot),
                false => io.urgent(tag, read.offset, read.len, read.slot),
            };
            if let Some(flight) = self
                .store
                .flight_of(read.id)
                .and_then(|f| self.waiting[f].as_mut())
            {
                flight.flow = flow;
            }
        }
        io.flush();
    }

    /// The read `id`, made at `offset`, came back; passes its cluster on if that was the last one missing. If it
    /// failed, that is a fault where a cluster waits for it: a read ahead may be left over from an earlier step.
    pub fn arrived(
        &mut self,
        cx: &CoreContext,
        (id, offset): (usize, u64),
        slot: Slot,
        result: Result<(), ReadFault>,
        onward: &mut Onward<'_>,
    ) {
        let read_ok = result.is_ok();
        if let Err(fault) = result
            && self.store.is_awaited(id)
        {
            let what = "neurons".to_string();
            cx.fault(Fault::Read {
                what,
                offset,
                fault,
            });
        }
        let bundle = &cx.shared.bundle;
        let ready = match self
            .store
            .arrived(id, slot, read_ok, |c, n| bundle.neuron_sums(c, n))
        {
            Ok(ready) => ready,
            Err(corrupt) => {
                let cluster = corrupt.cluster as u32;
                let what = format!(
                    "neuron {} of the {}",
                    corrupt.neuron,
                    cx.shared.describe(cluster)
                );
                let offset = cx.shared.entry(cluster).offset;
                cx.fault(Fault::Corrupt { what, offset });
                corrupt.ready
            }
        };
        self.pass_on(ready, onward);
    }

    /// Lets clusters that waited for room try again; true if one went on.
    pub fn turn(&mut self, onward: &mut Onward<'_>) -> bool {
        let ready = self.store.retry_blocked();
        self.pass_on(ready, onward);
        ready.is_some()
    }

    fn pass_on(&mut self, ready: Option<usize>, onward: &mut Onward<'_>) {
        if let Some(flight) = ready.and_then(|f| self.waiting[f].take()) {
            self.count[usize::from(flight.gated)] -= 1;
            onward.push(flight);
        }
    }
}

/// Where a cluster's neurons are; `base` is the number of its first one among the core's.
fn place(cx: &CoreContext, cluster: u32, base: u32) -> Place {
    let entry = cx.shared.entry(cluster);
    Place {
        base: base as usize,
        file_offset: entry.offset,
        geometry: cx.shared.bundle.meta.layers[usize::from(entry.layer.unwrap_or(0))].ffn,
        cluster: cluster as usize,
    }
}
