//! Flights that wait for the expert cache: what GIO, UDIO and Preload have in common.

use std::collections::VecDeque;

use forebay_models::bundle::checksum;
use forebay_traces::record::{Residency as Hit, Stage};

use crate::contract::{Outbox, Port, Slice, StageFault};
use crate::expert_store::{Held, Request, Spans, Taken, check};
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

    /// Takes a flight, and asks the cache for its cluster at once, so that a read of it starts: for all of it, or for
    /// its Gates alone.
    pub fn push(&mut self, frame: &mut Frame<'_>, flight: Box<Flight>, whole: bool) {
        let request = Request::of(frame.bundle, frame.phase.layer, &flight.item, whole);
        if let Some(request) = request {
            frame.weights.experts.want(request);
        }
        self.waiting.push_back(flight);
    }

    /// Takes a flight whose Gates are known, and has the missing ones of Up and Down read into its buffer.
    pub fn push_rest(&mut self, frame: &mut Frame<'_>, mut flight: Box<Flight>) {
        let geometry = frame.geometry(&flight.item);
        let store = &mut frame.weights.experts;
        if let (Some(key), Some(slot)) = (flight.item.source.key(), flight.buffer.take()) {
            let missing = store.lacks(key, &flight.live);
            flight.read_later = Some(missing.count());
            let spans = Spans::of_pairs(geometry, flight.count, &missing);
            store.read_more(key, slot, spans);
        }
        self.waiting.push_back(flight);
    }

    /// Passes on the first flight whose cluster is in memory; false if there is none.
    pub fn hand_on(&mut self, frame: &mut Frame<'_>, stage: Stage, out: &mut Outbox) -> bool {
        let store = &mut frame.weights.experts;
        let found = self.waiting.iter().enumerate().find_map(|(i, flight)| {
            let key = flight.item.source.key()?;
            Some((i, key, store.take(key)?))
        });
        let Some((i, key, taken)) = found else {
            return false;
        };
        let Some(mut flight) = self.waiting.remove(i) else {
            return false;
        };
        if taken.flow != 0 && !look_at(frame, &flight, (&taken, stage), out) {
            let store = &mut frame.weights.experts;
            store.read_more(key, taken.slot, taken.spans.again());
            self.waiting.push_back(flight);
            return true;
        }
        (flight.flow, flight.buffer) = (taken.flow, Some(taken.slot));
        out.send(Port::Here, flight);
        true
    }
}

/// Checks what was read of a flight's cluster, at every read, because the file may be overwritten while it is in use.
/// False if it is to be read once more: a guess was wrong, which may have been read while an earlier generation had
/// trouble.
fn look_at(
    frame: &mut Frame<'_>,
    flight: &Flight,
    (taken, stage): (&Taken, Stage),
    out: &mut Outbox,
) -> bool {
    let cluster = flight.item.cluster;
    let entry = *frame.entry(cluster);
    let is_whole = taken
        .spans
        .iter()
        .any(|range| range == (0, entry.padded_len()));
    let now = match taken.is_ok {
        false => Err(StageFault::Unread { cluster }),
        true if is_whole => match checksum(&taken.slot[..entry.len as usize]) == entry.sum {
            true => Ok(Held::All),
            false => Err(StageFault::Corrupt {
                cluster,
                neuron: None,
            }),
        },
        true => {
            let sums = |i| frame.bundle.neuron_sums(cluster as usize, i);
            let of = (frame.geometry(&flight.item), flight.count);
            let read = check(of, &taken.slot, (&taken.spans, taken.held), sums);
            read.map_err(|neuron| StageFault::Corrupt {
                cluster,
                neuron: Some(neuron),
            })
        }
    };
    if now.is_err() && taken.guessed {
        return false;
    }
    let store = &mut frame.weights.experts;
    match (flight.item.source.key(), now) {
        (Some(key), Ok(held)) => store.checked(key, held),
        (Some(key), Err(fault)) => {
            store.forget(key);
            out.faults.push(fault);
        }
        (None, _) => {}
    }
    out.record(Slice {
        bytes: taken.spans.bytes() as u64,
        hit: Hit::Miss,
        ..Slice::plain(stage, cluster, 1)
    });
    true
}
