//! From a plan to a running engine: divides and fills the memory, starts the actors.

use std::sync::Arc;
use std::time::Duration;

use forebay_actors::commit;
use forebay_actors::fault::FaultCell;
use forebay_actors::io::probe::{COLD_MEMORY, ReadLoad, measure_read, uring_available};
use forebay_actors::io::{CHUNK_BYTES, Driver, DriverChoice, DriverInfo, MAX_READERS, open_driver};
use forebay_actors::load::{self, HotSet, load_resident, resident_bytes};
use forebay_actors::memory::WeightMemory;
use forebay_actors::runtime::{Runtime, RuntimeOptions};
use forebay_actors::shared::{Shared, predictor_rank};
use forebay_models::bundle::{ALIGN, Bundle, load_hot_set};
use forebay_plans::limits::{HugePages, MemoryLimits, Rlimit};
use forebay_plans::process::rss_now;
use forebay_plans::program::{Program, compile};
use forebay_plans::residency::{ResidencyPlan, Sparsity};
use forebay_plans::room_to_start::check_address_space;
use forebay_plans::topology::Topology;
use forebay_queues::lending::Lending;
use forebay_queues::slab::{Slot, Span};
use forebay_stages::boards::Boards;
use forebay_stages::kernels::KernelTable;
use forebay_stages::rule::Rule;
use forebay_stages::weights::Resident;

use super::depths::{IO_DEPTH, PROBE_DEPTH};
use super::device_choice::{LoadedDevice, OpenDevice};
use super::settings::EngineBuilder;
use crate::engine::facts::{DiskCeiling, Facts};
use crate::engine::handle::Engine;
use crate::engine::thread::drafts::model::DraftModel;
use crate::engine::thread::evaluator::Evaluator;
use crate::engine::thread::jobs::Jobs;
use crate::engine::thread::runner::Runner;
use crate::error::Error;
use crate::memory::MemoryPlan;
use crate::packed::Preparation;
use crate::token_rows::TokenRows;

/// The engine thread and the I/O actor's.
const OTHER_THREADS: usize = 2;
/// Time for measuring the disk's ceiling.
const PROBE_TIME: Duration = Duration::from_millis(150);

impl EngineBuilder {
    /// Whether `coming` bytes and the threads beside `cores` compute threads can be mapped: an allocation that fails
    /// ends the program.
    ///
    /// # Errors
    /// The address space is limited to less.
    pub(super) fn check_address_space(&self, coming: u64, cores: usize) -> Result<(), Error> {
        let limits = MemoryLimits::read()?;
        if limits.address_space == Rlimit::Unlimited {
            return Ok(());
        }
        let readers = match self.driver {
            DriverChoice::Uring => 0,
            DriverChoice::Auto if uring_available().is_ok() => 0,
            _ => MAX_READERS,
        };
        let threads = cores + OTHER_THREADS + readers;
        let cpus = Topology::read()?.cpus.len();
        Ok(check_address_space(&limits, coming, threads, cpus)?)
    }

    /// Opens the packed model for reads into `buffers`, and makes sure that it is the file of which `bundle` knows the
    /// directory: it is opened by its path, where another may lie by now.
    fn open_packed(
        &self,
        bundle: &Bundle,
        buffers: &[Span],
    ) -> Result<(Box<dyn Driver>, DriverInfo), Error> {
        let opened = open_driver(bundle.path(), self.driver, IO_DEPTH, buffers)
            .map_err(|e| Error::system("open the packed model", e))?;
        bundle.check_in_place()?;
        Ok(opened)
    }

    /// Carves the slab and reads resident weights.
    pub(super) fn load(
        &mut self,
        bundle: &Bundle,
        memory: &MemoryPlan,
        threads: usize,
        sparsity: Sparsity,
        device: Option<OpenDevice>,
    ) -> Result<Prepared, Error> {
        let plan = &memory.residency;
        let _span = tracing::info_span!("load", bytes = plan.pinned_bytes).entered();
        let predicted = sparsity == Sparsity::Predicted;
        let programs = self.programs(bundle, plan, threads, predicted);
        let reads_clusters = plan.stream_slots > 0 || plan.expert_cache.cells > 0;
        let ceiling = if reads_clusters || plan.neuron_cache.slots > 0 {
            let room = memory.budget.total_bytes().saturating_sub(rss_now()?);
            self.disk_ceiling(bundle, plan, threads, room as usize)
        } else {
            DiskCeiling::default()
        };
        let mut weights = WeightMemory::carve(bundle, plan, &programs, memory.max_batch)
            .map_err(|e| Error::system("reserve memory", e))?;
        // Resident weights are read by a separate driver: a ring belongs to the thread that uses it.
        let (mut driver, _) = self.open_packed(bundle, &[])?;
        let failed = |fault| Error::Fault {
            path: bundle.path().to_path_buf(),
            fault,
        };
        let hot = match self.hot_set {
            true => load_hot_set(bundle),
            false => Vec::new(),
        };
        let hot = HotSet::new(&hot, &programs, &mut weights.cores);
        let before_hot = resident_bytes(bundle, plan);
        let hot_bytes = hot.bytes(bundle, &programs, &weights.cores);
        let (report, total) = (&mut self.report, before_hot + hot_bytes);
        let mut progress = |done: u64| report(Preparation::Loading { done, total });
        let coming = load::filled(&weights);
        let (reader, cores) = (driver.as_mut(), (&*programs, &mut *weights.cores));
        let resident = &mut weights.resident;
        commit::beside(&coming, threads, || {
            load_resident(reader, bundle, plan, resident, &mut progress)?;
            let mut progress = |done| progress(before_hot + done);
            hot.load(reader, bundle, cores, predicted, &mut progress)
        })
        .map_err(failed)?;
        drop((driver, coming));
        weights.gather();
        let buffers: Vec<_> = weights
            .cores
            .iter()
            // Registering the expert cache would commit all of it at once.
            .flat_map(|m| m.stream.iter().chain(&m.neurons.buffers))
            .chain(&weights.rows)
            .chain(&weights.input_rows)
            .map(Slot::span)
            .collect();
        let (driver, info) = self.open_packed(bundle, &buffers)?;
        let mut notes = vec![info.to_string()];
        // Where there never are any, the request is accepted all the same.
        let limits = MemoryLimits::read();
        let never = limits.is_ok_and(|limits| limits.huge_pages == HugePages::Never);
        if never || !weights.huge_pages {
            notes.push("no transparent huge pages: memory and reads are slower".into());
        }
        let resident = Arc::new(Resident::new(std::mem::take(&mut weights.resident)));
        let device = device.map(|device| {
            let of_cores = (&resident, programs.len());
            self.load_device(device, bundle, (memory, sparsity), of_cores, &mut notes)
        });
        Ok(Prepared {
            programs,
            resident,
            weights,
            driver,
            device,
            ceiling,
            notes,
        })
    }

    /// The programs of all cores.
    pub(super) fn programs(
        &mut self,
        bundle: &Bundle,
        plan: &ResidencyPlan,
        threads: usize,
        predicted: bool,
    ) -> Vec<Program> {
        if plan.expert_cache.cells == 0 {
            // No read could come too late.
            self.neurons.guesses = 0;
        }
        let options = self.neurons.program(predicted);
        let programs = (0..threads).map(|rank| compile(bundle, plan, rank, options));
        programs.collect()
    }

    /// The disk's current speed for this file, into as much memory as the reads of the run use in turn. The buffers are
    /// freed before anything else is allocated, and take at most `room` bytes: a budget may have less than the usual
    /// depth needs.
    fn disk_ceiling(
        &self,
        bundle: &Bundle,
        plan: &ResidencyPlan,
        threads: usize,
        room: usize,
    ) -> DiskCeiling {
        let rate = |block_bytes: u32, depth: usize, memory: usize| {
            let load = ReadLoad {
                block_bytes,
                depth: depth.min(room / (block_bytes as usize).max(1)).max(1),
                memory: memory.min(COLD_MEMORY).min(room),
                bytes: u64::MAX,
                duration: PROBE_TIME,
                range: 0,
                choice: self.driver,
            };
            measure_read(bundle.path(), &load).map_or(0.0, |rate| rate.bytes_per_second)
        };
        let cells = plan.expert_cache.cells * plan.expert_cache.cell_bytes;
        let memory = threads * plan.stream_bytes_per_core().max(cells);
        let clusters = rate(CHUNK_BYTES, PROBE_DEPTH, memory);
        let neuron = plan.neuron_cache.slot_bytes.next_multiple_of(ALIGN);
        DiskCeiling {
            prompt: clusters,
            // If clusters are streamed, most bytes come in large reads; else neurons are read one by one.
            decode: match plan.stream_slots > 0 || plan.expert_cache.cells > 0 {
                true => clusters,
                // Into read buffers, which are few.
                false => rate(neuron as u32, IO_DEPTH, 0),
            },
        }
    }

    /// Starts the cores and the I/O actor.
    pub(super) fn start(
        &self,
        (bundle, kernels, rule): (Bundle, KernelTable, Rule),
        memory: MemoryPlan,
        prepared: Prepared,
        facts: Arc<Facts>,
    ) -> Result<Evaluator, Error> {
        let threads = prepared.programs.len();
        let network = &bundle.meta.network;
        let kv = self.kv_room(&bundle, &memory);
        let boards = Boards::new(
            network,
            threads,
            memory.max_batch,
            memory.max_logits,
            predictor_rank(&bundle, rule.is_predicted()),
        );
        let WeightMemory {
            cores: core_memory,
            rows,
            input_rows,
            ..
        } = prepared.weights;
        let (driver, device) = match prepared.device {
            Some(LoadedDevice { driver, parts, .. }) => (Some(driver), Some(parts)),
            None => (None, None),
        };
        let shared = Arc::new(Shared {
            bundle,
            plan: memory.residency,
            on_device: memory.on_device,
            rule,
            neurons: self.neurons,
            fewer: self.fewer,
            sequential_gain: facts.plan.sequential_gain,
            observer: self.observer.clone(),
            kernels,
            resident: prepared.resident,
            device,
            boards,
            lending: Lending::new(threads),
            faults: FaultCell::default(),
            threads,
            kv,
            max_batch: memory.max_batch,
        });
        let token_rows = TokenRows::new(&shared, rows, input_rows);
        let options = RuntimeOptions {
            cores: facts.cores.clone(),
            trace_records: self.trace_records,
            keeps_hot_set: self.hot_set,
        };
        let runtime = Runtime::start(
            shared,
            prepared.programs,
            core_memory,
            prepared.driver,
            driver,
            &options,
        )
        .map_err(|e| Error::system("start the compute threads", e))?;
        let watch = self.yields_memory.then(|| facts.budget.watch());
        Ok(Evaluator::new(runtime, facts, token_rows, watch))
    }

    /// Starts the engine thread; `draft` is the model that drafts, if there is one.
    pub(super) fn serve(
        self,
        evaluator: Evaluator,
        draft: Option<DraftModel>,
    ) -> Result<Engine, Error> {
        let (facts, stopping) = (Arc::clone(&evaluator.facts), evaluator.stopping());
        let (jobs, inbox) = Jobs::new();
        let runner = Runner::new(evaluator, draft, inbox);
        let (tally, door) = (self.tally, jobs.clone());
        let thread = std::thread::Builder::new()
            .name("forebay-engine".into())
            .spawn(move || runner.serve(&door, tally.as_deref()))
            .map_err(|e| Error::system("start the engine thread", e))?;
        Ok(Engine {
            facts,
            jobs,
            thread: Some(thread),
            stopping,
        })
    }
}

/// Loaded weights, and what loading them found out.
pub(super) struct Prepared {
    programs: Vec<Program>,
    resident: Arc<Resident>,
    weights: WeightMemory,
    driver: Box<dyn Driver>,
    pub device: Option<LoadedDevice>,
    pub ceiling: DiskCeiling,
    pub notes: Vec<String>,
}
