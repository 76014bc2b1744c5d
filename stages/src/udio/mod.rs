//! UDIO: fetches Up and Down of neurons whose gate is alive: one by one, or, of experts, with neighbours into the
//! cluster's buffer.

use std::collections::VecDeque;

use forebay_traces::record::Stage;

use crate::contract::{Outbox, StageActor};
use crate::expert_flights::ExpertFlights;
use crate::flight::Flight;
use crate::frame::Frame;
use crate::neuron_store::Parts;
use crate::waiting::Waiting;

/// The stage.
#[derive(Debug)]
pub struct Udio {
    inbox: VecDeque<Box<Flight>>,
    /// Waiting clusters.
    pub waiting: Waiting,
    /// Waiting clusters of experts.
    pub experts: ExpertFlights,
}

impl Udio {
    /// With at most `flights` clusters of a phase.
    pub fn new(flights: usize) -> Self {
        Self {
            inbox: VecDeque::with_capacity(flights),
            waiting: Waiting::new(Stage::Udio, flights),
            experts: ExpertFlights::new(flights),
        }
    }

    /// Takes a cluster whose Gate is done.
    pub fn push(&mut self, flight: Box<Flight>) {
        self.inbox.push_back(flight);
    }

    /// Clusters in the inbox, and waiting ones.
    pub fn held(&self) -> usize {
        self.inbox.len() + self.waiting.len() + self.experts.len()
    }
}

impl StageActor for Udio {
    /// Requests a cluster's Up and Down, or passes on one of an expert whose are here.
    fn turn(&mut self, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        match self.inbox.pop_front() {
            Some(flight) if flight.is_by_neuron() => {
                self.waiting.want(frame, flight, Parts::UP_DOWN, out);
            }
            Some(flight) => self.experts.push_rest(frame, flight),
            None => return self.experts.hand_on(frame, Stage::Udio, out),
        }
        true
    }
}
