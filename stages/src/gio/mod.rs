//! GIO: fetches what GC needs. Streamed clusters come through a window that is read ahead in the order of use; of
//! clusters whose neurons are cached, the missing neurons are requested, and clusters of experts from the expert cache.

mod reader;
mod window;

use std::collections::VecDeque;

use forebay_plans::program::Source;
use forebay_traces::record::Stage;

use crate::contract::{Outbox, StageActor};
use crate::expert_flights::ExpertFlights;
use crate::flight::Flight;
use crate::frame::Frame;
use crate::waiting::Waiting;

pub use reader::{Reader, WindowRead};
pub use window::{Window, WindowTally};

/// The stage.
#[derive(Debug)]
pub struct Gio {
    /// Streamed clusters.
    pub reader: Reader,
    /// Clusters by neuron that have not been examined.
    inbox: VecDeque<Box<Flight>>,
    /// Waiting clusters by neuron.
    pub waiting: Waiting,
    /// Waiting clusters of experts.
    pub experts: ExpertFlights,
}

impl Gio {
    /// Over `reader`, with at most `flights` clusters of a phase.
    pub fn new(reader: Reader, flights: usize) -> Self {
        Self {
            reader,
            inbox: VecDeque::with_capacity(flights),
            waiting: Waiting::new(Stage::Gio, flights),
            experts: ExpertFlights::new(flights),
        }
    }

    /// Takes a cluster whose Gate rows are on flash, or perhaps in the expert cache.
    pub fn push(&mut self, frame: &mut Frame<'_>, flight: Box<Flight>) {
        match flight.item.source {
            Source::Neurons { .. } => self.inbox.push_back(flight),
            Source::Cached { .. } => {
                let whole = !frame.weights.experts.gates_first;
                self.experts.push(frame, flight, whole);
            }
            _ => self.reader.wait_for(flight),
        }
    }

    /// Requests the missing neurons of a cluster by neuron; false if there is none in the inbox.
    pub fn ask(&mut self, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        let Some(flight) = self.inbox.pop_front() else {
            return false;
        };
        let parts = frame.weights.neurons.first_parts();
        self.waiting.want(frame, flight, parts, out);
        true
    }

    /// Clusters in the inbox, and waiting ones.
    pub fn held(&self) -> usize {
        self.inbox.len() + self.waiting.len() + self.reader.waiting() + self.experts.len()
    }
}

impl StageActor for Gio {
    /// Requests the neurons of a cluster, or passes on one that has been read.
    fn turn(&mut self, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        self.ask(frame, out)
            || self.reader.hand_on(frame, Stage::Gio, out)
            || self.experts.hand_on(frame, Stage::Gio, out)
    }
}
