//! A barrier between matrices: clusters wait after GC until all cores have finished the Gate matrix. Its programs have
//! two phases per FFN.

use std::collections::VecDeque;

use forebay_plans::program::{Part, Phase, Work};
use forebay_stages::contract::{Outbox, Port};
use forebay_stages::flight::Flight;
use forebay_stages::frame::Frame;
use forebay_stages::gio::Reader;

use crate::decode::graph;
use crate::decode::stations::{self, Station, reader};
use crate::wiring::{Stages, Wiring, begin};

/// The decode graph's connections, except for clusters whose neurons are read one by one: GC sends them here.
#[derive(Debug, Default)]
pub struct MatrixGraph {
    by_neuron: bool,
    parks: bool,
    parked: VecDeque<Box<Flight>>,
}

impl MatrixGraph {
    /// Delivers what `from` has sent, but keeps clusters whose Gate is done until the barrier is
    /// passed.
    fn deliver(
        parked: Option<&mut VecDeque<Box<Flight>>>,
        from: Station,
        stages: &mut Stages,
        frame: &mut Frame<'_>,
        out: &mut Outbox,
    ) {
        if let (Station::Gc, Some(parked)) = (from, parked) {
            let mut passing = 0;
            while passing < out.flights.len() {
                match out.flights[passing].0 {
                    Port::Away => {
                        parked.extend(out.flights.remove(passing).map(|(_, flight)| flight));
                    }
                    _ => passing += 1,
                }
            }
        }
        stations::deliver(from, stages, frame, out);
    }
}

impl Wiring for MatrixGraph {
    fn reader<'a>(&self, stages: &'a mut Stages) -> &'a mut Reader {
        reader(stages)
    }

    fn begin(&mut self, stages: &mut Stages, frame: &mut Frame<'_>) {
        self.by_neuron = frame.phase.is_by_neuron();
        begin(reader, stages, frame);
        reader(stages).confine(frame.phase.items());
        let part = match &frame.phase.work {
            Work::Neurons { part, .. } => Some(*part),
            _ => None,
        };
        self.parks = part == Some(Part::Gates);
        if part == Some(Part::UpDown) {
            self.parked.drain(..).for_each(|f| stages.udio.push(f));
        }
    }

    fn turn(&mut self, stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        let Self {
            by_neuron,
            parks,
            parked,
        } = self;
        let parks = *parks;
        let deliver =
            |from: Station, stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox| {
                Self::deliver(parks.then_some(&mut *parked), from, stages, frame, out);
            };
        graph::work(*by_neuron, stages, frame, out, deliver)
            || *by_neuron && graph::retry(stages, frame, out)
            || *by_neuron && frame.weights.neurons.can_read()
    }

    fn ready(
        &mut self,
        number: usize,
        stages: &mut Stages,
        frame: &mut Frame<'_>,
        out: &mut Outbox,
    ) {
        graph::ready(number, stages, frame, out);
    }

    fn is_done(&self, stages: &Stages, phase: &Phase) -> bool {
        let sent = stages.pred.sent(phase);
        sent.is_some_and(|sent| stages.retired + self.parked.len() >= sent)
    }

    fn held(&self) -> usize {
        self.parked.len()
    }
}
