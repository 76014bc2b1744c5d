//! UDIO: fetches Up and Down of neurons whose gate is alive, one by one.

use std::collections::VecDeque;

use forebay_traces::record::Stage;

use crate::contract::{Outbox, StageActor};
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
}

impl Udio {
    /// With at most `flights` clusters of a phase.
    pub fn new(flights: usize) -> Self {
        Self {
            inbox: VecDeque::with_capacity(flights),
            waiting: Waiting::new(Stage::Udio, flights),
        }
    }

    /// Takes a cluster whose Gate is done.
    pub fn push(&mut self, flight: Box<Flight>) {
        self.inbox.push_back(flight);
    }

    /// Clusters in the inbox, and waiting ones.
    pub fn held(&self) -> usize {
        self.inbox.len() + self.waiting.len()
    }
}

impl StageActor for Udio {
    /// Requests a cluster's Up and Down.
    fn turn(&mut self, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        let Some(flight) = self.inbox.pop_front() else {
            return false;
        };
        self.waiting.want(frame, flight, Parts::UP_DOWN, out);
        true
    }
}
