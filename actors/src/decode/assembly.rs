//! The decode graph's actors, connected and not yet run: threads run them ([`super::graph`]), or a simulator
//! does, one turn at a time.

use std::sync::Arc;

use flume::{Receiver, TryRecvError};
use forebay_queues::capacity::Capacity;
use forebay_queues::doorbell::{Bell, Ringer, doorbell};
use forebay_queues::exchange::{Aborter, exchange};
use forebay_queues::lane::{LaneTx, lane};
use forebay_traces::lane::TraceLane;

use super::core_parts::{CoreParts, build_core};
use super::prefill::PreloadWindow;
use super::program::Program;
use super::rows::SharedRows;
use super::shared::{Shared, Sizes, Step, StepDone};
use crate::core_thread::Core;
use crate::fault::Fault;
use crate::io::Driver;
use crate::io_link::{IoLanes, IoLink, io_lanes};
use crate::memory::CoreMemory;

/// A trace lane of an I/O slot holds this part of what a core's lane holds: reads are fewer and longer.
pub const IO_LANE_SHARE: usize = 32;

/// All parts of a decode graph.
#[derive(Debug)]
pub struct Assembly {
    /// The driver's end.
    pub steps: Steps,
    /// What the compute cores are built from, by rank.
    pub cores: Vec<CoreSeed>,
    /// The I/O actor's ends of all lanes.
    pub lanes: IoLanes,
    /// The driver's own client, for embedding rows.
    pub rows: IoLink,
    /// Gives the cores' exchange up.
    pub aborter: Aborter,
}

/// What a compute core is built from, wherever it runs.
#[derive(Debug)]
pub struct CoreSeed {
    shared: Arc<Shared>,
    parts: CoreParts,
    bell: Bell,
}

impl CoreSeed {
    /// Which of the cores this is.
    pub fn rank(&self) -> usize {
        self.parts.rank
    }

    /// Makes the core with its buffers: to be called where it runs, so that its memory is near.
    pub fn build(self) -> Core {
        Core::new(build_core(&self.shared, self.parts), self.bell)
    }
}

impl Assembly {
    /// Connects one core per program with each other and with the I/O actor on `driver`, sink first.
    pub fn new(
        shared: &Arc<Shared>,
        programs: Vec<Program>,
        memory: Vec<CoreMemory>,
        driver: &dyn Driver,
        trace_records: usize,
    ) -> Self {
        let threads = programs.len();
        let rows_of_all = Arc::new(SharedRows::new(&programs));
        let (bells, ringers): (Vec<Bell>, Vec<Ringer>) = (0..threads).map(|_| doorbell()).unzip();

        // Sink: reports to the driver, one per core and step.
        let (done_tx, done) = flume::bounded(threads);
        // Exchanges between phases.
        let (members, aborter) = exchange(ringers.clone());
        // The I/O actor, with a lane pair per core and one for the driver's embedding rows.
        let buffers = programs.iter().zip(&memory).map(|(program, m)| {
            let preloads = PreloadWindow::of(shared, program, &m.neurons);
            m.stream_buffers() + m.neurons.buffers.len() + preloads.map_or(0, |w| w.buffers)
        });
        let bells_of = ringers.iter().map(|r| Some(r.clone()));
        let mut clients: Vec<(usize, Option<Ringer>)> = buffers.zip(bells_of).collect();
        clients.push((shared.max_batch, None));
        let io_traces = (0..driver.capacity())
            .map(|i| TraceLane::new(format!("I/O slot {i}"), trace_records / IO_LANE_SHARE))
            .collect();
        let (mut links, lanes) = io_lanes(clients, &driver.waker(), io_traces);
        let rows = links
            .pop()
            .unwrap_or_else(|| unreachable!("the driver's link was just made"));

        // Sources: commands to the cores.
        let capacity = Capacity::sum(&[("the step under way", 1)]);
        let (commands, inboxes): (Vec<_>, Vec<_>) =
            ringers.iter().map(|r| lane(&capacity, r.clone())).unzip();

        let parts = programs
            .into_iter()
            .zip(memory)
            .zip(members)
            .zip(links)
            .zip(inboxes)
            .zip(bells);
        let seed = |(rank, (((((program, memory), member), io), commands), bell))| CoreSeed {
            shared: Arc::clone(shared),
            parts: CoreParts {
                rank,
                program,
                rows: Arc::clone(&rows_of_all),
                memory,
                member,
                io,
                commands,
                done: done_tx.clone(),
                trace: TraceLane::new(format!("core {rank}"), trace_records),
            },
            bell,
        };
        Self {
            cores: parts.enumerate().map(seed).collect(),
            steps: Steps {
                shared: Arc::clone(shared),
                commands,
                done,
                distrust: false,
                resizes: false,
            },
            lanes,
            rows,
            aborter,
        }
    }
}

/// What is done when the I/O actor has ended before its clients: the cause is kept, and whoever waits for reads is
/// released, since none will come.
pub fn when_io_stops(
    shared: &Arc<Shared>,
    aborter: &Aborter,
) -> impl Fn(String) + Send + Sync + use<> {
    let (shared, bystanders) = (Arc::clone(shared), aborter.clone());
    move |cause| {
        shared.faults.report(Fault::IoStopped { cause });
        bystanders.abort();
    }
}

/// The driver's end of the graph: sends each step to all cores and takes their reports.
#[derive(Debug)]
pub struct Steps {
    shared: Arc<Shared>,
    commands: Vec<LaneTx<Step>>,
    done: Receiver<StepDone>,
    /// Whether something was wrong since the last good step.
    distrust: bool,
    /// Whether the step under way reads no weights, so that what was to be read anew still is.
    resizes: bool,
}

impl Steps {
    /// What the cores share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The next step reads anew what was read ahead, and checks everything again: the caller found
    /// something wrong with the file.
    pub fn distrust(&mut self) {
        self.distrust = true;
    }

    /// Sends a step to all cores.
    ///
    /// # Errors
    /// The cause for which a core has ended.
    pub fn begin(&mut self, step: Step) -> Result<(), Fault> {
        let step = Step {
            read_anew: step.read_anew || self.distrust,
            ..step
        };
        self.resizes = step.resize.is_some();
        for (rank, lane) in self.commands.iter().enumerate() {
            lane.send(step).map_err(|_| self.stopped(rank))?;
        }
        Ok(())
    }

    /// Waits for the reports of all cores.
    ///
    /// # Errors
    /// The cause for which a core has ended.
    pub fn wait(&self, reports: &mut Vec<StepDone>) -> Result<(), Fault> {
        while reports.len() < self.commands.len() {
            reports.push(self.done.recv().map_err(|_| self.stopped(0))?);
        }
        Ok(())
    }

    /// Takes the reports that are here; true once they are all cores'.
    ///
    /// # Errors
    /// The cause for which a core has ended.
    pub fn poll(&self, reports: &mut Vec<StepDone>) -> Result<bool, Fault> {
        while reports.len() < self.commands.len() {
            match self.done.try_recv() {
                Ok(report) => reports.push(report),
                Err(TryRecvError::Empty) => return Ok(false),
                Err(TryRecvError::Disconnected) => return Err(self.stopped(0)),
            }
        }
        Ok(true)
    }

    /// Ends a step whose reports are all here; they are by rank afterwards.
    ///
    /// # Errors
    /// The root cause of a fault during the step.
    pub fn end(&mut self, reports: &mut [StepDone]) -> Result<(), Fault> {
        // They come as the cores finish; whoever compares two steps goes by rank.
        reports.sort_unstable_by_key(|report| report.rank);
        let fault = self.shared.faults.take();
        self.distrust = fault.is_some() || self.distrust && self.resizes;
        fault.map_or(Ok(()), Err)
    }

    /// Has the cores keep so much in memory from now on. A core whose cache slots are held by reads under way gives
    /// them up at its next step.
    ///
    /// # Errors
    /// The cause for which a core has ended, or for which a cluster could not be pinned again; then some cores may have
    /// done what was asked, and others not.
    pub fn resize(&mut self, sizes: Sizes) -> Result<(), Fault> {
        let mut reports = Vec::with_capacity(self.commands.len());
        self.begin(Step {
            resize: Some(sizes),
            ..Step::default()
        })?;
        self.wait(&mut reports)?;
        self.end(&mut reports)
    }

    /// Takes the cores' work away: they end.
    pub fn close(&mut self) {
        self.commands.clear();
    }

    fn stopped(&self, rank: usize) -> Fault {
        let cause = "its thread has ended".to_string();
        let first = self.shared.faults.take();
        first.unwrap_or(Fault::CoreStopped { rank, cause })
    }
}
