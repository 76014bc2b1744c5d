//! What every stage has in common: it takes owned messages from its inbox, does a little work per turn, and puts
//! messages into an outbox. It never blocks, and names no other stage: the graph decides which stage receives what.

use std::collections::VecDeque;

use forebay_traces::record::{Reason, Residency as Hit, Stage};

use crate::flight::{Flight, RowFlight};
use crate::frame::Frame;

/// Result of one turn, of a stage as well as of a core or the I/O actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something was done; call again.
    Progress,
    /// Nothing can be done until a message arrives.
    Blocked(Reason),
    /// It has ended.
    Finished,
}

/// A stage of the pipeline.
pub trait StageActor {
    /// Does a small piece of work: true if there was any.
    fn turn(&mut self, frame: &mut Frame<'_>, out: &mut Outbox) -> bool;
}

/// Which way a cluster leaves a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The next part can be computed: its weights are in memory.
    Here,
    /// The weights of the next part are on flash.
    Away,
    /// It waits for weights, but some of its neurons can be computed meanwhile.
    Part,
    /// Nothing is left to do.
    Done,
}

/// A piece of work for the trace; the core adds the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which stage.
    pub stage: Stage,
    /// The first cluster.
    pub cluster: u32,
    /// Number of clusters; 0 for a part of one that waits for the rest.
    pub count: usize,
    /// Bytes worked on.
    pub bytes: u64,
    /// Whether they were in memory.
    pub hit: Hit,
    /// Ties the slice to the read that brought them; 0 for none.
    pub flow: u64,
}

impl Slice {
    /// Work on `count` clusters or tokens that is not about streamed weights.
    pub fn plain(stage: Stage, cluster: u32, count: usize) -> Self {
        Self {
            stage,
            cluster,
            count,
            bytes: 0,
            hit: Hit::NotApplicable,
            flow: 0,
        }
    }
}

/// Something that is wrong with a cluster; the step continues to its end and reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageFault {
    /// A read failed; the core knows why.
    Unread {
        /// Directory index.
        cluster: u32,
    },
    /// Bytes do not match their checksum.
    Corrupt {
        /// Directory index.
        cluster: u32,
        /// Neuron within the cluster, if it is only one.
        neuron: Option<usize>,
    },
    /// A value of the FFN's output is not finite, or too large for the accumulator.
    OutOfRange,
}

/// What stages produce in a turn.
#[derive(Debug)]
pub struct Outbox {
    /// Clusters that leave, and their ports.
    pub flights: VecDeque<(Port, Box<Flight>)>,
    /// Rows that have been read.
    pub rows: VecDeque<RowFlight>,
    /// Work that was done.
    pub slices: VecDeque<Slice>,
    /// Faults that were found.
    pub faults: Vec<StageFault>,
}

impl Outbox {
    /// Room for the messages of one turn: `flights` clusters at most.
    pub fn new(flights: usize) -> Self {
        Self {
            flights: VecDeque::with_capacity(flights),
            rows: VecDeque::with_capacity(1),
            slices: VecDeque::with_capacity(4),
            faults: Vec::new(),
        }
    }

    /// A cluster leaves.
    pub fn send(&mut self, port: Port, flight: Box<Flight>) {
        self.flights.push_back((port, flight));
    }

    /// Records a piece of work.
    pub fn record(&mut self, slice: Slice) {
        self.slices.push_back(slice);
    }
}
