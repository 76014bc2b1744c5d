//! The UDIO actor: holds clusters until all their live neurons are in the neuron cache.

use forebay_queues::slab::Slot;
use forebay_stages::udio::{NeuronStore, Udio, Wanted};

use super::context::{CoreContext, Flight};
use super::program::Source;
use super::udc::UdcActor;
use crate::fault::Fault;
use crate::io_link::{IoLink, ReadTag};

#[derive(Debug)]
pub(super) struct UdioActor {
    stage: Udio,
    /// Flights under way, by number.
    waiting: Vec<Option<Flight>>,
    count: usize,
}

impl UdioActor {
    pub fn new(memory: NeuronStore, max_flights: usize) -> Self {
        Self {
            stage: Udio::new(memory, max_flights),
            waiting: (0..max_flights).map(|_| None).collect(),
            count: 0,
        }
    }

    /// The neuron cache, for UDC to read and release.
    pub fn stage(&mut self) -> &mut Udio {
        &mut self.stage
    }

    /// Whether flights wait for reads or for room.
    pub fn is_waiting(&self) -> bool {
        self.count > 0
    }

    /// A cluster wants its live neurons; it goes straight on to UDC if they are all here.
    pub fn want(&mut self, cx: &CoreContext, flight: Flight, udc: &mut UdcActor) {
        let Source::Neurons { base } = flight.item.source else {
            return udc.push(flight);
        };
        let wanted = Wanted {
            flight: flight.number,
            base: base as usize,
            file_offset: cx.shared.entry(flight.item.cluster).offset,
            live: flight.live,
            geometry: cx.shared.bundle.meta.layers[cx.layer].ffn,
            cluster: flight.item.cluster as usize,
        };
        if self.stage.want(wanted) {
            udc.push(flight);
        } else {
            self.count += 1;
            let number = flight.number;
            self.waiting[number] = Some(flight);
        }
    }

    /// Starts as many reads as there are free buffers.
    pub fn start_reads(&mut self, io: &mut IoLink) {
        while let Some(read) = self.stage.next_read() {
            let tag = ReadTag::Neurons { id: read.id };
            let flow = io.urgent(tag, read.offset, read.len, read.slot);
            if let Some(flight) = self
                .stage
                .flight_of(read.id)
                .and_then(|f| self.waiting[f].as_mut())
            {
                flight.flow = flow;
            }
        }
        io.flush();
    }

    /// A read came back; passes its cluster on if that was the last one missing.
    pub fn arrived(
        &mut self,
        cx: &CoreContext,
        id: usize,
        slot: Slot,
        read_ok: bool,
        udc: &mut UdcActor,
    ) {
        let bundle = &cx.shared.bundle;
        let ready = match self
            .stage
            .arrived(id, slot, read_ok, |c, n| bundle.neuron_sum(c, n))
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
        self.pass_on(ready, udc);
    }

    /// Lets clusters that waited for room try again; true if one went on, or has reads to be started by
    /// the next turn.
    pub fn turn(&mut self, udc: &mut UdcActor) -> bool {
        let ready = self.stage.retry_blocked();
        self.pass_on(ready, udc);
        ready.is_some() || self.stage.can_read()
    }

    fn pass_on(&mut self, ready: Option<usize>, udc: &mut UdcActor) {
        if let Some(flight) = ready.and_then(|f| self.waiting[f].take()) {
            self.count -= 1;
            udc.push(flight);
        }
    }
}
