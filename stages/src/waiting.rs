//! Flights that wait until their neurons are in the cache: what GIO and UDIO have in common.

use std::collections::VecDeque;

use forebay_traces::record::{Residency as Hit, Stage};

use crate::contract::{Outbox, Port, Slice};
use crate::flight::Flight;
use crate::frame::Frame;
use crate::neuron_store::{Parts, Place, Wanted};

/// Where a waiting flight is.
#[derive(Debug, Default)]
enum Seat {
    /// No flight waits under this number.
    #[default]
    Empty,
    /// The flight waits here.
    Taken(Box<Flight>),
    /// A part of it is being computed; `ready` tells whether all of its neurons have arrived since.
    Away { ready: bool },
}

/// The waiting flights of a stage, by number.
#[derive(Debug)]
pub struct Waiting {
    stage: Stage,
    seats: Vec<Seat>,
    count: usize,
    /// Numbers of flights, in the order in which they began to wait.
    order: VecDeque<usize>,
}

impl Waiting {
    /// For at most `flights` clusters of a phase; `stage` is the name in the trace.
    pub fn new(stage: Stage, flights: usize) -> Self {
        Self {
            stage,
            seats: (0..flights).map(|_| Seat::Empty).collect(),
            count: 0,
            order: VecDeque::with_capacity(flights),
        }
    }

    /// A phase begins.
    pub fn begin(&mut self) {
        self.order.clear();
    }

    /// Whether any flight waits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of waiting flights.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Requests `parts` of the flight's live neurons from the cache; the flight leaves at once if all are there.
    pub fn want(
        &mut self,
        frame: &mut Frame<'_>,
        flight: Box<Flight>,
        parts: Parts,
        out: &mut Outbox,
    ) {
        let cluster = flight.item.cluster;
        let wanted = Wanted {
            flight: flight.number,
            place: Place {
                base: flight.item.source.base().unwrap_or(0) as usize,
                file_offset: frame.entry(cluster).offset,
                geometry: *frame.geometry(&flight.item),
                cluster: cluster as usize,
            },
            live: flight.live,
            parts,
        };
        let ready = frame.weights.neurons.want(wanted);
        out.record(Slice {
            hit: if ready { Hit::Hit } else { Hit::Miss },
            ..Slice::plain(self.stage, cluster, 1)
        });
        if ready {
            return out.send(Port::Here, flight);
        }
        self.count += 1;
        self.order.push_back(flight.number);
        let number = flight.number;
        self.seats[number] = Seat::Taken(flight);
    }

    /// All neurons of flight `number` are in memory: it leaves if it waits in this stage; false if it does not.
    pub fn ready(&mut self, number: usize, out: &mut Outbox) -> bool {
        match std::mem::take(&mut self.seats[number]) {
            Seat::Empty => return false,
            Seat::Taken(flight) => {
                self.count -= 1;
                out.send(Port::Here, flight);
            }
            Seat::Away { .. } => self.seats[number] = Seat::Away { ready: true },
        }
        true
    }

    /// A read for flight `number` has begun, if it waits in this stage.
    pub fn reads(&mut self, number: usize, flow: u64) {
        if let Some(Seat::Taken(flight)) = self.seats.get_mut(number) {
            flight.flow = flow;
        }
    }

    /// Sends the next waiting flight away with those of its neurons that are in memory; false if all have been sent
    /// since they began to wait.
    pub fn send_part(&mut self, frame: &Frame<'_>, out: &mut Outbox) -> bool {
        while let Some(number) = self.order.pop_front() {
            let is_here = matches!(self.seats[number], Seat::Taken(_));
            if !is_here || frame.weights.neurons.here(number).1.is_empty() {
                continue;
            }
            let away = Seat::Away { ready: false };
            if let Seat::Taken(flight) = std::mem::replace(&mut self.seats[number], away) {
                out.send(Port::Part, flight);
                return true;
            }
        }
        false
    }

    /// A flight that was sent away comes back.
    pub fn take_back(&mut self, flight: Box<Flight>, out: &mut Outbox) {
        let seat = &mut self.seats[flight.number];
        match std::mem::take(seat) {
            Seat::Away { ready: true } => {
                self.count -= 1;
                out.send(Port::Here, flight);
            }
            _ => *seat = Seat::Taken(flight),
        }
    }
}
