//! The actors on threads: starts, steps and ends what [`super::Assembly`] connects.
//!
//! ```text
//!   engine ──Step──▶ core 0..T-1: program, graph, stages ──▶ boards ──exchange──▶ next phase
//!     ▲                             │       ▲
//!     └────────StepDone─────────────┘   ReadDone ReadOp
//!                                           │ ▼
//!                                      the single I/O actor (io_uring or pread)
//! ```

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_devices::DeviceDriver;
use forebay_models::bundle::{HotNeuron, save_hot_set};
use forebay_plans::program::Program;
use forebay_queues::exchange::Aborter;
use forebay_traces::lane::TraceLane;

use super::{Assembly, CoreSeed, Steps, when_io_stops};
use crate::device::DeviceThread;
use crate::fault::{Fault, cause_of_panic};
use crate::io::Driver;
use crate::io_counters::IoCounters;
use crate::io_link::RowLink;
use crate::io_thread::IoThread;
use crate::memory::CoreMemory;
use crate::shared::Shared;
use crate::step::{Sizes, Step, StepDone};

pub use super::assembly::IO_LANE_SHARE;

/// What a core returns at its end: its trace, and the neurons in its cache, best first.
type CoreRecord = (TraceLane, Vec<HotNeuron>);

/// How the actors are run.
#[derive(Clone, Debug, Default)]
pub struct RuntimeOptions {
    /// The core to which each compute thread is pinned; if empty, the scheduler chooses.
    pub cores: Vec<usize>,
    /// Records kept per trace lane; 0 switches tracing off.
    pub trace_records: usize,
    /// Whether the contents of the neuron caches are saved at the end for the next run.
    pub keeps_hot_set: bool,
}

/// Compute cores and the I/O actor, running.
#[derive(Debug)]
pub struct Runtime {
    steps: Steps,
    cores: Vec<JoinHandle<CoreRecord>>,
    io: Option<IoThread>,
    device: Option<DeviceThread>,
    /// The engine thread's own client, for embedding rows; gone once the actors stop.
    rows: Option<RowLink>,
    aborter: Aborter,
    keeps_hot_set: bool,
}

impl Runtime {
    /// Starts the I/O actor on `driver`, the device actor on `device` if there is one, and one thread per program.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn start(
        shared: Arc<Shared>,
        programs: Vec<Program>,
        memory: Vec<CoreMemory>,
        driver: Box<dyn Driver>,
        device: Option<Box<dyn DeviceDriver>>,
        options: &RuntimeOptions,
    ) -> std::io::Result<Self> {
        let Assembly {
            steps,
            cores: seeds,
            lanes,
            rows,
            device: device_lanes,
            aborter,
        } = Assembly::new(
            &shared,
            programs,
            memory,
            driver.as_ref(),
            options.trace_records,
        );
        let stopped = when_io_stops(&shared, &aborter);
        let io = IoThread::start(driver, lanes, Arc::new(stopped))?;
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        let spare = cpus > seeds.len();
        let device = device.zip(device_lanes);
        let device = device.map(|(driver, lanes)| DeviceThread::start(driver, lanes, spare));
        let device = device.transpose()?;
        let mut cores = Vec::with_capacity(seeds.len());
        for (rank, seed) in seeds.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            let pin = options.cores.get(rank).copied();
            let builder = std::thread::Builder::new().name(format!("forebay-core-{rank}"));
            cores.push(builder.spawn(move || run_core(&shared, seed, (pin, spare)))?);
        }
        Ok(Self {
            steps,
            cores,
            io: Some(io),
            device,
            rows: Some(rows),
            aborter,
            keeps_hot_set: options.keeps_hot_set,
        })
    }

    /// What the cores share.
    pub fn shared(&self) -> &Arc<Shared> {
        self.steps.shared()
    }

    /// The engine thread's lanes to the I/O actor, for embedding rows.
    pub fn rows(&mut self) -> Option<&mut RowLink> {
        self.rows.as_mut()
    }

    /// The I/O actor's work so far.
    pub fn io_counters(&self) -> IoCounters {
        self.io.as_ref().map(IoThread::counters).unwrap_or_default()
    }

    /// The next step reads again what was read ahead, and verifies everything again: the caller
    /// found something wrong with the file.
    pub fn distrust(&mut self) {
        self.steps.distrust();
    }

    /// Runs one step to its end; afterwards the logits are on their board, and `reports` has a report per core, by
    /// rank. While the cores compute, the engine thread does something else, `meanwhile`.
    ///
    /// # Errors
    /// The root cause of a fault during the step. The runtime stays usable unless a thread has stopped.
    pub fn step(
        &mut self,
        step: Step,
        reports: &mut Vec<StepDone>,
        meanwhile: impl FnOnce(&mut RowLink),
    ) -> Result<(), Fault> {
        reports.clear();
        self.steps.begin(step)?;
        self.rows.as_mut().map(meanwhile);
        self.steps.wait(reports)?;
        self.steps.end(reports)
    }

    /// Makes the cores keep this much in memory from now on, at most as much as at the start, and gives the rest back
    /// to the system. No result depends on it.
    ///
    /// # Errors
    /// Why a core has ended, or why a cluster could not be pinned again.
    pub fn resize(&mut self, sizes: Sizes) -> Result<(), Fault> {
        self.steps.resize(sizes)
    }

    /// Ends all threads and returns their traces: cores first, then the places in the I/O queue and the device. The
    /// contents of the neuron caches are saved beside the packed model, if the options require it.
    pub fn finish(mut self) -> Vec<TraceLane> {
        let (traces, hot) = self.stop();
        if self.keeps_hot_set && !hot.is_empty() {
            save_hot_set(&self.shared().bundle, &hot);
        }
        traces
    }

    fn stop(&mut self) -> (Vec<TraceLane>, Vec<HotNeuron>) {
        // The I/O actor ends when its last client is gone.
        self.steps.close();
        self.rows = None;
        let cores = self.cores.drain(..).filter_map(|core| core.join().ok());
        let (mut traces, hot): (Vec<TraceLane>, Vec<Vec<HotNeuron>>) = cores.unzip();
        if let Some(io) = self.io.take() {
            traces.extend(io.stop());
        }
        traces.extend(self.device.take().and_then(DeviceThread::stop));
        // Alternating between cores, so that a part of the list has a part of each core's.
        let longest = hot.iter().map(Vec::len).max().unwrap_or(0);
        let in_turn = (0..longest).flat_map(|i| hot.iter().filter_map(move |core| core.get(i)));
        let hot = in_turn.copied().collect();
        (traces, hot)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.aborter.abort();
        self.stop();
    }
}

/// Body of a compute thread: returns its record. A panic is reported as the step's fault and releases the other cores.
fn run_core(shared: &Shared, seed: CoreSeed, (pin, spare): (Option<usize>, bool)) -> CoreRecord {
    let rank = seed.rank();
    let report = |panic: Box<dyn Any + Send>| {
        let cause = cause_of_panic(panic.as_ref());
        shared.faults.report(Fault::CoreStopped { rank, cause });
    };
    // Buffers are made on the core that uses them.
    let whole = AssertUnwindSafe(|| {
        let mut core = seed.build();
        // Reported while the core still has its ends of lanes: who finds one closed asks for the cause.
        let ran = catch_unwind(AssertUnwindSafe(|| core.run(pin, spare)));
        ran.map_err(report).ok()?;
        Some(core.into_record())
    });
    let record = catch_unwind(whole).map_err(report).ok().flatten();
    record.unwrap_or_else(|| (TraceLane::new(format!("core {rank}"), 0), Vec::new()))
}
