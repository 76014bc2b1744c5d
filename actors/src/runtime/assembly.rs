//! The actors, connected but not yet running: threads run them ([`super::Runtime`]), or a simulator does, one turn at a
//! time.

use std::sync::Arc;

use forebay_plans::program::Program;
use forebay_plans::residency::Pipeline;
use forebay_queues::capacity::Capacity;
use forebay_queues::doorbell::{Bell, Ringer, Spin, doorbell};
use forebay_queues::exchange::{Aborter, exchange};
use forebay_queues::lane::{LaneRx, LaneTx, SendError, lane};
use forebay_stages::pred::SharedClusters;
use forebay_stages::rows::SharedRows;
use forebay_stages::weights::SharedEvictables;
use forebay_traces::lane::TraceLane;

use super::device_part::DevicePart;
use crate::core::{Core, CoreParts, build_core, most_reads};
use crate::device::{DeviceEnds, DeviceLanes, JobRoom, OwnAttention, device_lanes};
use crate::fault::Fault;
use crate::io::Driver;
use crate::io_link::{IoLanes, RowLink, io_lanes};
use crate::memory::{CoreMemory, row_buffers};
use crate::shared::Shared;
use crate::step::{Sizes, Step, StepDone};

/// A trace lane of the I/O queue has 1/`IO_LANE_SHARE` of the records of a core's: reads are fewer and longer.
pub const IO_LANE_SHARE: usize = 32;

/// All actors and their connections.
#[derive(Debug)]
pub struct Assembly {
    /// The engine thread's end.
    pub steps: Steps,
    /// The parts from which the compute cores are built, by rank.
    pub cores: Vec<CoreSeed>,
    /// The I/O actor's ends of all lanes.
    pub lanes: IoLanes,
    /// The engine thread's own client, for embedding rows.
    pub rows: RowLink,
    /// The device actor's ends of its lanes, if there is a device.
    pub device: Option<DeviceLanes>,
    /// Aborts the cores' exchange.
    pub aborter: Aborter,
}

/// The parts from which a compute core is built.
#[derive(Debug)]
pub struct CoreSeed {
    shared: Arc<Shared>,
    parts: CoreParts,
}

impl CoreSeed {
    /// Which of the cores this is.
    pub fn rank(&self) -> usize {
        self.parts.rank
    }

    /// Makes the core with its buffers. Call it on the core's own thread, so that its memory is
    /// near.
    pub fn build(self) -> Core {
        build_core(&self.shared, self.parts)
    }
}

impl Assembly {
    /// Connects one core per program with each other and with the I/O actor on `driver`, sink first.
    pub fn new(
        shared: &Arc<Shared>,
        programs: Vec<Program>,
        mut memory: Vec<CoreMemory>,
        driver: &dyn Driver,
        trace_records: usize,
    ) -> Self {
        let threads = programs.len();
        let rows_of_all = Arc::new(SharedRows::new(&programs));
        // Graphs for comparison keep every cluster on its core, and so do predictors, which name neurons there.
        let shares = shared.neurons.pipeline == Pipeline::Cluster && !shared.rule.is_predicted();
        let clusters_of_all = SharedClusters::new(&shared.bundle, &programs).filter(|_| shares);
        let clusters_of_all = clusters_of_all.map(Arc::new);
        let evictables = memory.iter_mut().map(|core| &mut core.evictable);
        let evictables = Arc::new(SharedEvictables::new(evictables));
        let (bells, ringers): (Vec<Bell>, Vec<Ringer>) = (0..threads).map(|_| doorbell()).unzip();

        // Sink: reports to the engine thread, one per core and step.
        let (bell, ringer) = doorbell();
        let (done_tx, done) = lane(&Capacity::of(&[("a report per core", threads)]), ringer);
        // Exchanges between phases.
        let (members, aborter) = exchange(ringers.clone());
        // The I/O actor, with a lane pair per core and one for the engine thread's embedding rows.
        let reads = programs.iter().zip(&memory);
        let reads = reads.map(|(program, memory)| most_reads(shared, program, memory));
        let clients = reads.zip(ringers.iter().cloned()).collect();
        let row_reads = Capacity::of(&[("embedding rows", row_buffers(shared.max_batch))]);
        let io_traces = (0..driver.capacity())
            .map(|i| TraceLane::new(format!("I/O slot {i}"), trace_records / IO_LANE_SHARE))
            .collect();
        let (links, rows, lanes) = io_lanes(clients, row_reads, &driver.waker(), io_traces);

        // The device actor, with lanes to and from core 0, and the other cores if they copy streamed clusters to it or
        // have it attend for them.
        let (ends, device) = device(shared, &ringers, trace_records).unzip();
        let mut ends = ends.unwrap_or_default();
        ends.resize_with(threads, DeviceEnds::default);

        // Sources: commands to the cores.
        let capacity = Capacity::of(&[("the current step", 1)]);
        let (commands, inboxes): (Vec<_>, Vec<_>) =
            ringers.iter().map(|r| lane(&capacity, r.clone())).unzip();

        let parts = programs
            .into_iter()
            .zip(memory)
            .zip(members)
            .zip(links)
            .zip(inboxes)
            .zip(bells)
            .zip(ends);
        let seed =
            |(rank, ((((((program, memory), member), io), commands), bell), device))| CoreSeed {
                shared: Arc::clone(shared),
                parts: CoreParts {
                    rank,
                    program,
                    rows: Arc::clone(&rows_of_all),
                    clusters: clusters_of_all.clone(),
                    evictables: Arc::clone(&evictables),
                    memory,
                    member,
                    bell,
                    io,
                    device,
                    commands,
                    done: done_tx.clone(),
                    trace: TraceLane::new(format!("core {rank}"), trace_records),
                },
            };
        Self {
            cores: parts.enumerate().map(seed).collect(),
            steps: Steps {
                shared: Arc::clone(shared),
                commands,
                done,
                bell,
                distrust: false,
                resizes: false,
                n_tokens: 0,
                part: DevicePart::new(shared.on_device.learns),
            },
            lanes,
            rows,
            device,
            aborter,
        }
    }
}

/// The cores' ends of a device's lanes, and the device actor's.
fn device(
    shared: &Shared,
    cores: &[Ringer],
    trace_records: usize,
) -> Option<(Vec<DeviceEnds>, DeviceLanes)> {
    let device = shared.device.as_ref()?;
    let rank = shared.predictor_rank();
    let network = shared.network();
    let steps = (
        shared.max_batch,
        shared.boards.logits.len() / network.vocab_size,
    );
    let room = JobRoom::new(&shared.bundle, steps, rank);
    let (kv, batch) = (&shared.kv, shared.max_batch);
    let own = |rank| OwnAttention::of(network, kv, (rank, cores.len()), batch);
    let room = (room, (0..cores.len()).map(own).collect());
    let trace = TraceLane::new("device", trace_records);
    let uploads = shared.on_device.uploads.as_ref();
    let uploads = uploads.map(|uploads| (uploads, &shared.plan.owner[..]));
    Some(device_lanes(device, room, uploads, cores, trace))
}

/// What is done if the I/O actor ends before its clients: the cause is kept, and all that wait for reads are released,
/// since none will finish.
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

/// The engine thread's end of the graph: sends each step to all cores and takes their reports.
#[derive(Debug)]
pub struct Steps {
    shared: Arc<Shared>,
    commands: Vec<LaneTx<Step>>,
    done: LaneRx<StepDone>,
    /// The engine thread's own bell.
    bell: Bell,
    /// Whether something went wrong since the last good step.
    distrust: bool,
    /// Whether the current step reads no weights, so that what was to be read again still is.
    resizes: bool,
    /// How many tokens it has.
    n_tokens: usize,
    part: DevicePart,
}

impl Steps {
    /// What the cores share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The next step reads again what was read ahead, and verifies everything again: the caller
    /// found something wrong with the file.
    pub fn distrust(&mut self) {
        self.distrust = true;
    }

    /// Sends a step to all cores.
    ///
    /// # Errors
    /// Why a core has ended.
    pub fn begin(&mut self, step: Step) -> Result<(), Fault> {
        let step = Step {
            read_again: step.read_again || self.distrust,
            device_part: self.device_part(step.tokens.places.len()),
            ..step
        };
        self.resizes = step.resize.is_some();
        self.n_tokens = step.tokens.places.len();
        for (rank, lane) in self.commands.iter().enumerate() {
            lane.send(step.clone()).map_err(|unsent| match unsent {
                SendError::Closed { .. } => self.stopped(rank),
                SendError::Full { .. } => Fault::CoreStopped {
                    rank,
                    cause: unsent.to_string(),
                },
            })?;
        }
        Ok(())
    }

    /// What a device computes of its clusters in a step.
    fn device_part(&self, n_tokens: usize) -> u8 {
        let device = self.shared.device.as_ref();
        let is_used = device.is_some_and(|device| !device.account.is_gone());
        if is_used { self.part.get(n_tokens) } else { 0 }
    }

    /// Waits for the reports of all cores.
    ///
    /// # Errors
    /// Why a core has ended.
    pub fn wait(&self, reports: &mut Vec<StepDone>) -> Result<(), Fault> {
        loop {
            let seen = self.bell.epoch();
            if self.poll(reports)? {
                return Ok(());
            }
            self.bell.wait(seen, Spin::NONE, None);
        }
    }

    /// Takes the reports that have arrived; true once all cores have reported.
    ///
    /// # Errors
    /// Why a core has ended.
    pub fn poll(&self, reports: &mut Vec<StepDone>) -> Result<bool, Fault> {
        while reports.len() < self.commands.len() {
            match self.done.try_recv() {
                Some(report) => reports.push(report),
                None if self.done.is_closed() => return Err(self.stopped(0)),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Ends a step of which all reports have arrived; afterwards they are ordered by rank.
    ///
    /// # Errors
    /// The root cause of a fault during the step.
    pub fn end(&mut self, reports: &mut [StepDone]) -> Result<(), Fault> {
        // They come in the order in which cores finish; two steps are compared by rank.
        reports.sort_unstable_by_key(|report| report.rank);
        if let Some(first) = reports.first() {
            let took = first.charged.since(&first.charged_before);
            self.part.learn(self.n_tokens, took.total());
        }
        let fault = self.shared.faults.take();
        self.distrust = fault.is_some() || self.distrust && self.resizes;
        fault.map_or(Ok(()), Err)
    }

    /// Makes the cores keep this much in memory from now on. A core whose cache slots are held by reads in flight
    /// releases them at its next step.
    ///
    /// # Errors
    /// Why a core has ended, or why a cluster could not be pinned again; then some cores may have changed and others
    /// not.
    pub fn resize(&mut self, sizes: Sizes) -> Result<(), Fault> {
        let mut reports = Vec::with_capacity(self.commands.len());
        self.begin(Step {
            resize: Some(sizes),
            ..Step::default()
        })?;
        self.wait(&mut reports)?;
        self.end(&mut reports)
    }

    /// Closes the cores' command lanes: they end.
    pub fn close(&mut self) {
        self.commands.clear();
    }

    fn stopped(&self, rank: usize) -> Fault {
        let cause = "its thread has ended".to_string();
        let first = self.shared.faults.take();
        first.unwrap_or(Fault::CoreStopped { rank, cause })
    }
}
