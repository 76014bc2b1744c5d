//! Assembly of the decode graph, sink first: this file is the diagram.
//!
//! ```text
//!   driver ──Step──▶ core 0..T-1:  Pred ─▶ GIO ─▶ GC ─▶ UDIO ─▶ UDC ─▶ boards ──exchange──▶ next phase
//!     ▲                             │       ▲ │           ▲ │
//!     └────────StepDone─────────────┘   ReadDone ReadOp   │ │
//!                                           │ ▼           │ ▼
//!                                      the single I/O actor (io_uring or pread)
//! ```

use std::sync::Arc;
use std::thread::JoinHandle;

use flume::Receiver;
use forebay_models::bundle::{HotNeuron, save_hot_set};
use forebay_queues::capacity::Capacity;
use forebay_queues::doorbell::{Bell, Ringer, doorbell};
use forebay_queues::exchange::{Aborter, exchange};
use forebay_queues::lane::{LaneTx, lane};
use forebay_traces::lane::TraceLane;

use super::core_parts::{CoreParts, build_core};
use super::prefill::PreloadWindow;
use super::program::Program;
use super::shared::{Shared, Step, StepDone};
use crate::core_thread;
use crate::fault::{Fault, cause_of_panic};
use crate::io::Driver;
use crate::io_link::{IoLink, io_lanes};
use crate::io_thread::{IoCounters, IoThread};
use crate::memory::CoreMemory;

/// A trace lane of an I/O slot holds this part of what a core's lane holds: reads are fewer and longer.
pub const IO_LANE_SHARE: usize = 32;

/// What a core leaves behind: its trace, and the neurons in its cache, best first.
type CoreRecord = (TraceLane, Vec<HotNeuron>);

/// How the graph is run.
#[derive(Clone, Debug, Default)]
pub struct GraphOptions {
    /// Core to pin each compute thread to; empty leaves them to the scheduler.
    pub cores: Vec<usize>,
    /// Records kept per trace lane; 0 switches tracing off.
    pub trace_records: usize,
    /// Whether what the neuron caches hold at the end is kept for the next run.
    pub keeps_hot_set: bool,
}

/// A running decode graph: compute cores and the I/O actor.
#[derive(Debug)]
pub struct DecodeGraph {
    shared: Arc<Shared>,
    commands: Vec<LaneTx<Step>>,
    done: Receiver<StepDone>,
    cores: Vec<JoinHandle<CoreRecord>>,
    io: Option<IoThread>,
    /// The driver's own client, for embedding rows; gone once the graph stops.
    rows: Option<IoLink>,
    aborter: Aborter,
    keeps_hot_set: bool,
    /// Whether something was wrong since the last good step.
    distrust: bool,
}

impl DecodeGraph {
    /// Starts the I/O actor on `driver` and one thread per program.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn start(
        shared: Arc<Shared>,
        programs: Vec<Program>,
        memory: Vec<CoreMemory>,
        driver: Box<dyn Driver>,
        options: &GraphOptions,
    ) -> std::io::Result<Self> {
        let threads = programs.len();
        let (bells, ringers): (Vec<Bell>, Vec<Ringer>) = (0..threads).map(|_| doorbell()).unzip();

        // Sink: reports to the driver, one per core and step.
        let (done_tx, done) = flume::bounded(threads);
        // Exchanges between phases.
        let (members, aborter) = exchange(ringers.clone());
        // The I/O actor, with a lane pair per core and one for the driver's embedding rows.
        let buffers = programs.iter().zip(&memory).map(|(program, m)| {
            let preloads = PreloadWindow::of(&shared, program, &m.neurons);
            m.stream.len() + m.neurons.buffers.len() + preloads.map_or(0, |w| w.buffers)
        });
        let bells_of = ringers.iter().map(|r| Some(r.clone()));
        let mut clients: Vec<(usize, Option<Ringer>)> = buffers.zip(bells_of).collect();
        clients.push((shared.max_batch, None));
        let io_traces = (0..driver.capacity())
            .map(|i| {
                TraceLane::new(
                    format!("I/O slot {i}"),
                    options.trace_records / IO_LANE_SHARE,
                )
            })
            .collect();
        let (mut links, lanes) = io_lanes(clients, &driver.waker(), io_traces);
        let (cell, bystanders) = (Arc::clone(&shared), aborter.clone());
        let report = move |cause| {
            cell.faults.report(Fault::IoStopped { cause });
            bystanders.abort();
        };
        let io = IoThread::start(driver, lanes, Arc::new(report))?;
        let rows = links
            .pop()
            .unwrap_or_else(|| unreachable!("the driver's link was just made"));

        // Sources: commands to the cores.
        let capacity = Capacity::sum(&[("the step under way", 1)]);
        let (commands, inboxes): (Vec<_>, Vec<_>) =
            ringers.iter().map(|r| lane(&capacity, r.clone())).unzip();

        let mut cores = Vec::with_capacity(threads);
        let parts = programs
            .into_iter()
            .zip(memory)
            .zip(members)
            .zip(links)
            .zip(inboxes)
            .zip(bells);
        for (rank, (((((program, memory), member), io), inbox), bell)) in parts.enumerate() {
            let parts = CoreParts {
                rank,
                program,
                memory,
                member,
                io,
                commands: inbox,
                done: done_tx.clone(),
                trace: TraceLane::new(format!("core {rank}"), options.trace_records),
            };
            let shared = Arc::clone(&shared);
            let pin = options.cores.get(rank).copied();
            let builder = std::thread::Builder::new().name(format!("forebay-core-{rank}"));
            cores.push(builder.spawn(move || run_core(&shared, parts, &bell, pin))?);
        }
        Ok(Self {
            shared,
            commands,
            done,
            cores,
            io: Some(io),
            rows: Some(rows),
            aborter,
            keeps_hot_set: options.keeps_hot_set,
            distrust: false,
        })
    }

    /// What the cores share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The driver's lanes to the I/O actor, for embedding rows.
    pub fn rows(&mut self) -> Option<&mut IoLink> {
        self.rows.as_mut()
    }

    /// What the I/O actor has done so far.
    pub fn io_counters(&self) -> IoCounters {
        self.io.as_ref().map(IoThread::counters).unwrap_or_default()
    }

    /// The next step reads anew what was read ahead, and checks everything again: the caller found
    /// something wrong with the file.
    pub fn distrust(&mut self) {
        self.distrust = true;
    }

    /// Runs one step to its end; the logits are on their board and a report per core, by rank, in `reports`
    /// afterwards.
    ///
    /// # Errors
    /// The root cause of a fault during the step. The graph stays usable unless a thread has stopped.
    pub fn step(&mut self, step: Step, reports: &mut Vec<StepDone>) -> Result<(), Fault> {
        let stopped = |rank: usize| {
            let cause = "its thread has ended".to_string();
            self.shared
                .faults
                .take()
                .unwrap_or(Fault::CoreStopped { rank, cause })
        };
        reports.clear();
        let step = Step {
            read_anew: step.read_anew || self.distrust,
            ..step
        };
        for (rank, lane) in self.commands.iter().enumerate() {
            lane.send(step).map_err(|_| stopped(rank))?;
        }
        for _ in 0..self.commands.len() {
            reports.push(self.done.recv().map_err(|_| stopped(0))?);
        }
        // They come as the cores finish; whoever compares two steps goes by rank.
        reports.sort_unstable_by_key(|report| report.rank);
        let fault = self.shared.faults.take();
        self.distrust = fault.is_some();
        fault.map_or(Ok(()), Err)
    }

    /// Ends all threads and returns what they recorded: cores first, then I/O slots. What the neuron caches
    /// hold is kept beside the packed model, if the options say so.
    pub fn finish(mut self) -> Vec<TraceLane> {
        let (traces, hot) = self.stop();
        if self.keeps_hot_set && !hot.is_empty() {
            save_hot_set(&self.shared.bundle, &hot);
        }
        traces
    }

    fn stop(&mut self) -> (Vec<TraceLane>, Vec<HotNeuron>) {
        // The I/O actor ends when its last client is gone.
        self.commands.clear();
        self.rows = None;
        let cores = self.cores.drain(..).filter_map(|core| core.join().ok());
        let (mut traces, hot): (Vec<TraceLane>, Vec<Vec<HotNeuron>>) = cores.unzip();
        if let Some(io) = self.io.take() {
            traces.extend(io.stop());
        }
        // In turn, so that a part of the list is a part of each core's.
        let longest = hot.iter().map(Vec::len).max().unwrap_or(0);
        let in_turn = (0..longest).flat_map(|i| hot.iter().filter_map(move |core| core.get(i)));
        let hot = in_turn.copied().collect();
        (traces, hot)
    }
}

impl Drop for DecodeGraph {
    fn drop(&mut self) {
        self.aborter.abort();
        self.stop();
    }
}

/// Body of a compute thread: returns what it recorded. A panic is reported as the step's fault and releases the other cores.
fn run_core(shared: &Arc<Shared>, parts: CoreParts, bell: &Bell, pin: Option<usize>) -> CoreRecord {
    let rank = parts.rank;
    let run = std::panic::AssertUnwindSafe(|| {
        // Buffers are made on the core that uses them.
        core_thread::run(build_core(shared, parts), bell, pin).into_record()
    });
    match std::panic::catch_unwind(run) {
        Ok(record) => record,
        Err(panic) => {
            let cause = cause_of_panic(panic.as_ref());
            shared.faults.report(Fault::CoreStopped { rank, cause });
            (TraceLane::new(format!("core {rank}"), 0), Vec::new())
        }
    }
}
