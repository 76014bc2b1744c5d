//! Configuring and building an engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use forebay_actors::decode::graph::IO_LANE_SHARE;
use forebay_actors::decode::{Boards, DecodeGraph, GraphOptions, Program, Resident, Shared};
use forebay_actors::fault::FaultCell;
use forebay_actors::io::probe::{ReadLoad, measure_read};
use forebay_actors::io::{CHUNK_BYTES, Driver, DriverChoice, open_driver};
use forebay_actors::load::load_resident;
use forebay_actors::memory::WeightMemory;
use forebay_models::bundle::{Bundle, PackOptions};
use forebay_models::kv_cache::KvType;
use forebay_models::tokenizer::Tokenizer;
use forebay_plans::cache_dir;
use forebay_plans::limits::MemoryLimits;
use forebay_plans::process::rss_now;
use forebay_plans::residency::{Residency, Sparsity};
use forebay_plans::topology::Topology;
use forebay_queues::slab::Slot;
use forebay_stages::kernels::{Isa, KernelTable};
use forebay_stages::pred::Pred;
use forebay_traces::record::Record;

use super::embed::Embedder;
use super::memory::{MemoryPlan, MemoryRequest, plan};
use super::runner::Runner;
use super::{Engine, Facts};
use crate::demo;
use crate::error::Error;
use crate::packed::{self, Preparation};

/// Reads in flight at most: NVMe and UFS gain little beyond, and a core's window is shorter anyway.
const IO_DEPTH: usize = 32;
/// Share of the available memory taken when no budget is given.
const DEFAULT_SHARE: f64 = 0.8;
/// Reads in flight while the disk's ceiling is measured.
const PROBE_DEPTH: usize = 16;
/// Time for measuring it.
const PROBE_TIME: Duration = Duration::from_millis(150);

type Report = Box<dyn FnMut(Preparation)>;

/// Configures an [`Engine`].
pub struct EngineBuilder {
    model: Option<PathBuf>,
    cache: Option<PathBuf>,
    pack: PackOptions,
    memory: Option<u64>,
    weight_memory: Option<u64>,
    threads: Option<usize>,
    context: Option<usize>,
    context_hint: Option<usize>,
    kv_type: KvType,
    max_batch: Option<usize>,
    max_logits: usize,
    sparsity: Option<Sparsity>,
    driver: DriverChoice,
    isa: Option<Isa>,
    trace_records: usize,
    report: Report,
}

impl Default for EngineBuilder {
    fn default() -> Self {
        Self {
            model: None,
            cache: None,
            pack: PackOptions::default(),
            memory: None,
            weight_memory: None,
            threads: None,
            context: None,
            context_hint: None,
            kv_type: KvType::default(),
            max_batch: None,
            max_logits: 1,
            sparsity: None,
            driver: DriverChoice::Auto,
            isa: None,
            trace_records: 0,
            report: Box::new(|_| {}),
        }
    }
}

impl std::fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineBuilder")
            .field("model", &self.model)
            .field("memory", &self.memory)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl EngineBuilder {
    /// The model: a `.gguf` or `.fbay` file or a safetensors folder. Without it, the embedded demo model.
    #[must_use]
    pub fn model(mut self, path: impl AsRef<Path>) -> Self {
        self.model = Some(path.as_ref().to_path_buf());
        self
    }

    /// Folder for packed models instead of the user's cache folder.
    #[must_use]
    pub fn cache_folder(mut self, path: impl AsRef<Path>) -> Self {
        self.cache = Some(path.as_ref().to_path_buf());
        self
    }

    /// How a source is packed if it has to be.
    #[must_use]
    pub fn pack_options(mut self, options: PackOptions) -> Self {
        self.pack = options;
        self
    }

    /// Budget in bytes for the whole process. Default: most of what the system has available.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Bytes for weights alone (pinned, streamed and cached), within the budget. Default: what the
    /// budget leaves.
    #[must_use]
    pub fn weight_memory(mut self, bytes: u64) -> Self {
        self.weight_memory = Some(bytes);
        self
    }

    /// Compute threads. Default: one per big and mid core.
    #[must_use]
    pub fn threads(mut self, n: usize) -> Self {
        self.threads = Some(n);
        self
    }

    /// Positions of the KV cache. Default: 4096, or less under a small budget.
    #[must_use]
    pub fn context(mut self, n: usize) -> Self {
        self.context = Some(n);
        self
    }

    /// Positions that are certainly enough: the default context is no longer than this, which leaves more
    /// of the budget to weights.
    #[must_use]
    pub fn context_hint(mut self, n: usize) -> Self {
        self.context_hint = Some(n.max(1));
        self
    }

    /// Number format of the KV cache. Default: f16.
    #[must_use]
    pub fn kv_type(mut self, kind: KvType) -> Self {
        self.kv_type = kind;
        self
    }

    /// Most tokens per step of a prompt. Default: 128, or less under a small budget. The result does not
    /// depend on it.
    #[must_use]
    pub fn max_batch(mut self, n: usize) -> Self {
        self.max_batch = Some(n.max(1));
        self
    }

    /// Logit rows per step, for scoring text. Default: 1.
    #[must_use]
    pub fn max_logits(mut self, n: usize) -> Self {
        self.max_logits = n.max(1);
        self
    }

    /// Which FFN neurons are computed. Default: exact sparsity for ReLU models, dense for others.
    #[must_use]
    pub fn sparsity(mut self, sparsity: Sparsity) -> Self {
        self.sparsity = Some(sparsity);
        self
    }

    /// How the packed model is read.
    #[must_use]
    pub fn driver(mut self, driver: DriverChoice) -> Self {
        self.driver = driver;
        self
    }

    /// Instruction set of the kernels. Default: the best this CPU has.
    #[must_use]
    pub fn isa(mut self, isa: Isa) -> Self {
        self.isa = Some(isa);
        self
    }

    /// Records kept per trace lane; 0 (the default) switches tracing off.
    #[must_use]
    pub fn trace_records(mut self, n: usize) -> Self {
        self.trace_records = n;
        self
    }

    /// Called while the model is packed and loaded.
    #[must_use]
    pub fn on_preparation(mut self, report: impl FnMut(Preparation) + 'static) -> Self {
        self.report = Box::new(report);
        self
    }

    /// Opens the model, plans memory, loads resident weights and starts the actors.
    ///
    /// # Errors
    /// A model that cannot be read, an impossible budget (the error names the least possible one), or a
    /// resource the system refuses.
    pub fn build(mut self) -> Result<Engine, Error> {
        let kernels = self.kernels()?;
        let model = self.model_path()?;
        let name = self
            .model
            .as_ref()
            .map_or(demo::NAME.into(), |m| m.display().to_string());
        let bundle = packed::open(&model, self.cache.as_deref(), &self.pack, &mut self.report)?;
        let tokenizer =
            Tokenizer::from_spec(bundle.read_tokenizer()?).map_err(|e| e.within(bundle.path()))?;
        let config = bundle.meta.config.clone();
        let cores = Topology::read()?.compute_cores(self.threads)?;
        let threads = cores.len().min(config.n_heads);
        let sparsity = self.sparsity.unwrap_or(if config.activation.is_sparse() {
            Sparsity::Exact
        } else {
            Sparsity::Dense
        });
        let memory = plan(&bundle, &self.memory_request(threads, sparsity)?)?;
        let mut prepared = self.load(&bundle, &memory, threads)?;
        let facts = Arc::new(Facts {
            model: name,
            context: memory.context,
            plan: describe(
                &memory,
                &config,
                threads,
                sparsity,
                &prepared,
                (kernels.isa(), self.kv_type),
            ),
            cores: cores[..threads].to_vec(),
            isa: kernels.isa(),
            bundle_path: bundle.path().display().to_string(),
            bundle_bytes: std::fs::metadata(bundle.path()).map_or(0, |m| m.len()),
            weight_bytes: bundle.weight_bytes(),
            ceiling_bytes_per_second: prepared.ceiling,
            notes: std::mem::take(&mut prepared.notes),
            config,
            tokenizer,
            budget: memory.budget.clone(),
        });
        self.start(bundle, kernels, memory, prepared, facts, sparsity)
    }

    fn kernels(&self) -> Result<KernelTable, Error> {
        let Some(isa) = self.isa else {
            return Ok(KernelTable::best());
        };
        KernelTable::new(isa).ok_or_else(|| Error::no_isa(isa))
    }

    fn model_path(&self) -> Result<PathBuf, Error> {
        match &self.model {
            Some(path) => Ok(path.clone()),
            None => demo::unpack(&match &self.cache {
                Some(folder) => folder.clone(),
                None => cache_dir::prepare()?,
            }),
        }
    }

    fn memory_request(&self, threads: usize, sparsity: Sparsity) -> Result<MemoryRequest, Error> {
        let available = MemoryLimits::read()?.effective_available();
        let process = rss_now()?;
        let default = process + (available as f64 * DEFAULT_SHARE) as u64;
        // One lane per core and one per I/O slot.
        let records = self.trace_records * threads + self.trace_records / IO_LANE_SHARE * IO_DEPTH;
        Ok(MemoryRequest {
            total: self.memory.unwrap_or(default),
            weights: self.weight_memory,
            process,
            threads,
            context: self.context,
            context_hint: self.context_hint,
            kv_type: self.kv_type,
            max_batch: self.max_batch,
            max_logits: self.max_logits,
            sparsity,
            trace: (records * size_of::<Record>()) as u64,
        })
    }

    /// Carves the slab and reads resident weights.
    fn load(
        &mut self,
        bundle: &Bundle,
        memory: &MemoryPlan,
        threads: usize,
    ) -> Result<Prepared, Error> {
        let plan = &memory.residency;
        let programs: Vec<Program> = (0..threads)
            .map(|rank| Program::new(bundle, plan, rank))
            .collect();
        let ceiling = if plan.stream_slots > 0 || plan.neuron_cache.slots > 0 {
            self.disk_ceiling(bundle)
        } else {
            0.0
        };
        let mut weights = WeightMemory::carve(bundle, plan, &programs, memory.max_batch)
            .map_err(|e| Error::system("reserve memory", e))?;
        // Resident weights are read by a driver of their own: a ring belongs to the thread that uses it.
        let (mut driver, _) = open_driver(bundle.path(), self.driver, IO_DEPTH, &[])
            .map_err(|e| Error::system("open the packed model", e))?;
        let (report, total) = (&mut self.report, plan.pinned_bytes);
        load_resident(
            driver.as_mut(),
            bundle,
            plan,
            &mut weights.resident,
            &mut |done| {
                report(Preparation::Loading {
                    done: done.min(total),
                    total,
                });
            },
        )
        .map_err(|fault| Error::Fault {
            path: bundle.path().display().to_string(),
            fault,
        })?;
        drop(driver);
        let buffers: Vec<_> = weights
            .cores
            .iter()
            .flat_map(|m| m.stream.iter().chain(&m.neurons.buffers))
            .chain(&weights.rows)
            .map(Slot::span)
            .collect();
        let (driver, info) = open_driver(bundle.path(), self.driver, IO_DEPTH, &buffers)
            .map_err(|e| Error::system("open the packed model", e))?;
        let mut notes = vec![info.to_string()];
        if !weights.huge_pages {
            notes.push("no transparent huge pages: memory and reads are slower".into());
        }
        Ok(Prepared {
            programs,
            weights,
            driver,
            ceiling,
            notes,
        })
    }

    /// What the disk gives this file right now, in bytes per second; 0 if that cannot be told. The buffers
    /// are gone before anything else is allocated.
    fn disk_ceiling(&self, bundle: &Bundle) -> f64 {
        let load = ReadLoad {
            block_bytes: CHUNK_BYTES,
            depth: PROBE_DEPTH,
            bytes: u64::MAX,
            duration: PROBE_TIME,
            choice: self.driver,
        };
        measure_read(bundle.path(), &load).map_or(0.0, |rate| rate.bytes_per_second)
    }

    fn start(
        &self,
        bundle: Bundle,
        kernels: KernelTable,
        memory: MemoryPlan,
        prepared: Prepared,
        facts: Arc<Facts>,
        sparsity: Sparsity,
    ) -> Result<Engine, Error> {
        let threads = prepared.programs.len();
        let config = &bundle.meta.config;
        let boards = Boards::new(
            config,
            threads,
            memory.max_batch,
            self.max_logits.min(memory.max_batch),
        );
        let pred = Pred::new(sparsity, config.activation);
        let WeightMemory {
            resident,
            cores: core_memory,
            rows,
            ..
        } = prepared.weights;
        let shared = Arc::new(Shared {
            bundle,
            plan: memory.residency,
            pred,
            kernels,
            resident: Resident::new(resident),
            boards,
            faults: FaultCell::default(),
            threads,
            context: memory.context,
            kv_type: self.kv_type,
            max_batch: memory.max_batch,
        });
        let embedder = Embedder::new(&shared, rows);
        let options = GraphOptions {
            cores: facts.cores.clone(),
            trace_records: self.trace_records,
        };
        let graph = DecodeGraph::start(
            shared,
            prepared.programs,
            core_memory,
            prepared.driver,
            &options,
        )
        .map_err(|e| Error::system("start the compute threads", e))?;
        let stopping = Arc::new(AtomicBool::new(false));
        let runner = Runner::new(graph, Arc::clone(&facts), embedder, Arc::clone(&stopping));
        let (jobs, inbox) = flume::unbounded();
        let driver = std::thread::Builder::new()
            .name("forebay-driver".into())
            .spawn(move || runner.serve(&inbox))
            .map_err(|e| Error::system("start the driver thread", e))?;
        Ok(Engine {
            facts,
            jobs,
            driver: Some(driver),
            stopping,
        })
    }
}

/// Loaded weights and what was learned on the way.
struct Prepared {
    programs: Vec<Program>,
    weights: WeightMemory,
    driver: Box<dyn Driver>,
    ceiling: f64,
    notes: Vec<String>,
}

/// The plan as it appears in statistics.
fn describe(
    memory: &MemoryPlan,
    config: &forebay_models::config::ModelConfig,
    threads: usize,
    sparsity: Sparsity,
    prepared: &Prepared,
    (isa, kv_type): (Isa, KvType),
) -> serde_json::Value {
    let count = |r: Residency| {
        memory
            .residency
            .residency
            .iter()
            .filter(|&&x| x == r)
            .count()
    };
    serde_json::json!({
        "threads": threads,
        "isa": isa.to_string(),
        "context": memory.context,
        "kv": kv_type.name(),
        "max_batch": memory.max_batch,
        "sparsity": sparsity,
        "layers": config.n_layers,
        "clusters": {
            "pinned": count(Residency::Pinned),
            "gate_pinned": count(Residency::GatePinned),
            "streamed": count(Residency::Streamed),
        },
        "stream_window": {
            "buffers_per_core": memory.residency.stream_slots,
            "buffer_bytes": memory.residency.stream_slot_bytes,
        },
        "neuron_cache": memory.residency.neuron_cache,
        "notes": prepared.notes,
    })
}
