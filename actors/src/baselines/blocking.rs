//! Reads block, as in LLM in a Flash (arXiv 2312.11514): everything in memory is computed, then all reads that are due
//! are started, and all of them are waited for.

use forebay_stages::contract::{Outbox, Turn};
use forebay_stages::frame::Frame;
use forebay_stages::gio::Reader;
use forebay_traces::record::Reason;

use crate::decode::graph::{ready, retry, work};
use crate::decode::stations::{deliver, reader};
use crate::wiring::{Stages, Wiring, begin};

/// The decode graph's connections; reading and computing alternate.
#[derive(Debug, Default)]
pub struct BlockingGraph {
    by_neuron: bool,
    /// Whether reads are being waited for.
    reading: bool,
    /// Whether the last turn found nothing to compute, so that reads were started.
    tried: bool,
}

impl Wiring for BlockingGraph {
    fn reader<'a>(&self, stages: &'a mut Stages) -> &'a mut Reader {
        reader(stages)
    }

    fn begin(&mut self, stages: &mut Stages, frame: &mut Frame<'_>) {
        self.by_neuron = frame.phase.is_by_neuron();
        begin(reader, stages, frame);
        // Nothing is read before its phase.
        reader(stages).confine(frame.phase.items());
    }

    fn turn(&mut self, stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        work(self.by_neuron, stages, frame, out, deliver)
            || self.by_neuron && retry(stages, frame, out)
    }

    fn ready(
        &mut self,
        number: usize,
        stages: &mut Stages,
        frame: &mut Frame<'_>,
        out: &mut Outbox,
    ) {
        ready(number, stages, frame, out);
    }

    fn starts_reads(&self) -> bool {
        self.reading
    }

    fn waits(&mut self, reading: bool) -> bool {
        self.reading &= reading;
        self.reading
    }

    fn after(&mut self, turn: Turn) -> Turn {
        let is_short = matches!(turn, Turn::Blocked(Reason::IoGate | Reason::IoUpDown));
        // Where there was nothing to start, a guess has the memory: it will arrive.
        self.tried = is_short && !self.tried;
        if self.tried {
            self.reading = true;
            return Turn::Progress;
        }
        turn
    }
}
