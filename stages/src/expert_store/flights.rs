//! Flights that wait for the expert cache: what GIO and Preload have in common.

use std::collections::VecDeque;

use forebay_models::bundle::checksum;
use forebay_traces::record::{Residency as Hit, Stage};

use crate::contract::{Outbox, Port, Slice, StageFault};
use crate::flight::Flight;
use crate::frame::Frame;

/// The waiting flights of a stage, in the order in which they came.
#[derive(Debug)]
pub struct ExpertFlights {
    waiting: VecDeque<Box<Flight>>,
}

impl ExpertFlights {
    /// For at most `flights` at once.
    pub fn new(flights: usize) -> Self {
        Self {
            waiting: VecDeque::with_capacity(flights),
        }
    }

    /// Number of waiting flights.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a flight, and asks the cache for its cluster at once, so that a read of it starts.
    pub fn push(&mut self, frame: &mut Frame<'_>, flight: Box<Flight>) {
        if let Some(key) = flight.item.source.key() {
            frame.weights.experts.want(key);
        }
        self.waiting.push_back(flight);
    }

    /// Passes on the first flight whose cluster is in memory; false if there is none.
    pub fn hand_on(&mut self, frame: &mut Frame<'_>, stage: Stage, out: &mut Outbox) -> bool {
        let store = &mut frame.weights.experts;
        let found = self.waiting.iter().enumerate().find_map(|(i, flight)| {
            let taken = store.take(flight.item.source.key()?)?;
            Some((i, taken))
        });
        let Some((i, (slot, flow, is_ok))) = found else {
            return false;
        };
        let Some(mut flight) = self.waiting.remove(i) else {
            return false;
        };
        let cluster = flight.item.cluster;
        let entry = *frame.entry(cluster);
        if flow != 0 {
            // Checked at every read, because the file may be overwritten while it is in use.
            let neuron = None;
            let fault = match is_ok {
                false => Some(StageFault::Unread { cluster }),
                true if checksum(&slot[..entry.len as usize]) != entry.sum => {
                    Some(StageFault::Corrupt { cluster, neuron })
                }
                true => None,
            };
            if let (Some(fault), Some(key)) = (fault, flight.item.source.key()) {
                frame.weights.experts.forget(key);
                out.faults.push(fault);
            }
            out.record(Slice {
                bytes: u64::from(entry.len),
                hit: Hit::Miss,
                ..Slice::plain(stage, cluster, 1)
            });
        }
        (flight.flow, flight.buffer) = (flow, Some(slot));
        out.send(Port::Here, flight);
        true
    }
}
