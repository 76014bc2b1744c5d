//! Configuring and building an engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_actors::io::DriverChoice;
use forebay_actors::runtime::IO_LANE_SHARE;
use forebay_actors::shared::NeuronOptions;
use forebay_devices::DeviceDriver;
use forebay_models::bundle::{Bundle, PackOptions};
use forebay_models::kv_type::KvType;
use forebay_models::network::Network;
use forebay_models::tokenizer::{EncodingMemory, Tokenizer};
use forebay_plans::cache_dir;
use forebay_plans::fewer_experts::FewerExperts;
use forebay_plans::limits::MemoryLimits;
use forebay_plans::preload::MOST_DRAFTED;
use forebay_plans::process::rss_now;
use forebay_plans::residency::{Loading, STREAM_WINDOW, Sparsity};
use forebay_plans::topology::Topology;
use forebay_queues::pages::give_back_freed;
use forebay_stages::frame::Observer;
use forebay_stages::kernels::{Isa, KernelTable};
use forebay_stages::rule::Rule;
use forebay_traces::record::Record;

use super::depths::IO_DEPTH;
use super::device_choice::{DeviceChoice, DevicePlacing, OpenDevice, PATIENCE};
use super::plan_goal::{PlanGoal, Planning};
use crate::chat::ChatFormat;
use crate::demo;
use crate::engine::handle::Engine;
use crate::error::Error;
use crate::memory::MemoryRequest;
use crate::packed::Preparation;
use crate::profiles::{Profile, Tally};

/// Share of the available memory that is used if no budget is given.
const DEFAULT_SHARE: f64 = 0.8;
/// Part of a SwiGLU model's neurons that is computed if thresholds are requested without a density.
const DEFAULT_DENSITY: f64 = 0.5;

type Report = Box<dyn FnMut(Preparation) + Send>;

/// Configures an [`Engine`].
pub struct EngineBuilder {
    pub(super) model: Option<PathBuf>,
    pub(super) cache: Option<PathBuf>,
    pub(super) chat_template: Option<PathBuf>,
    pub(super) for_chat: bool,
    pub(super) pack: PackOptions,
    pub(super) memory: Option<u64>,
    pub(super) weight_memory: Option<u64>,
    pub(super) threads: Option<usize>,
    pub(super) context: Option<usize>,
    pub(super) trained_context: bool,
    pub(super) context_hint: Option<usize>,
    pub(super) context_needed: usize,
    pub(super) kv_type: KvType,
    pub(super) max_batch: Option<usize>,
    pub(super) max_logits: usize,
    pub(super) drafts: bool,
    pub(super) draft_model: Option<PathBuf>,
    pub(super) sparsity: Option<Sparsity>,
    pub(super) density: Option<f64>,
    pub(super) neurons: NeuronOptions,
    pub(super) fewer: FewerExperts,
    pub(super) hot_set: bool,
    pub(super) yields_memory: bool,
    pub(super) observer: Option<Arc<dyn Observer>>,
    pub(super) tally: Option<Arc<Tally>>,
    pub(super) driver: DriverChoice,
    pub(super) isa: Option<Isa>,
    pub(super) trace_records: usize,
    pub(super) device: DeviceChoice,
    pub(super) own_device: Option<Box<dyn DeviceDriver>>,
    pub(super) device_placing: Option<DevicePlacing>,
    pub(super) device_patience: Duration,
    pub(super) planning: Planning,
    pub(super) goal: PlanGoal,
    pub(super) fixed_loading: Option<Loading>,
    pub(super) fixed_guesses: Option<usize>,
    pub(super) report: Report,
}

impl Default for EngineBuilder {
    fn default() -> Self {
        Self {
            model: None,
            cache: None,
            chat_template: None,
            for_chat: false,
            pack: PackOptions::default(),
            memory: None,
            weight_memory: None,
            threads: None,
            context: None,
            trained_context: false,
            context_hint: None,
            context_needed: 0,
            kv_type: KvType::default(),
            max_batch: None,
            max_logits: 1,
            drafts: true,
            draft_model: None,
            sparsity: None,
            density: None,
            neurons: NeuronOptions::default(),
            fewer: FewerExperts::default(),
            hot_set: true,
            yields_memory: false,
            observer: None,
            tally: None,
            driver: DriverChoice::Auto,
            isa: None,
            trace_records: 0,
            device: DeviceChoice::default(),
            own_device: None,
            device_placing: None,
            device_patience: PATIENCE,
            planning: Planning::default(),
            goal: PlanGoal::default(),
            fixed_loading: None,
            fixed_guesses: None,
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

impl Engine {
    /// Starts configuring an engine.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
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

    /// How the source is packed, if it has to be packed.
    #[must_use]
    pub fn pack_options(mut self, options: PackOptions) -> Self {
        self.pack = options;
        self
    }

    /// A file with a chat template in Jinja to use instead of the model's own.
    #[must_use]
    pub fn chat_template_file(mut self, path: impl AsRef<Path>) -> Self {
        self.chat_template = Some(path.as_ref().to_path_buf());
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

    /// Positions of the KV cache. Default: 4096, or more if more are needed, or less under a small budget.
    #[must_use]
    pub fn context(mut self, n: usize) -> Self {
        self.context = Some(n);
        self
    }

    /// Positions that are certainly enough: the default context is at most this long, which leaves more of the budget
    /// for weights.
    #[must_use]
    pub fn context_hint(mut self, n: usize) -> Self {
        self.context_hint = Some(n.max(1));
        self
    }

    /// Positions that are needed: the default context is at least this long, if the budget has room for it.
    #[must_use]
    pub fn context_needed(mut self, n: usize) -> Self {
        self.context_needed = n;
        self
    }

    /// Number format of the KV cache. Default: f16.
    #[must_use]
    pub fn kv_type(mut self, kind: KvType) -> Self {
        self.kv_type = kind;
        self
    }

    /// Maximum number of tokens per step of a prompt. Default: 128, or less under a small budget. The result does not
    /// depend on it.
    #[must_use]
    pub fn max_batch(mut self, n: usize) -> Self {
        self.max_batch = Some(n.max(1));
        self
    }

    /// Logit rows per step, for scoring text. Default: 1, or as many as drafts have.
    #[must_use]
    pub fn max_logits(mut self, n: usize) -> Self {
        self.max_logits = n.max(1);
        self
    }

    /// Whether tokens that followed the last ones earlier in the text are run in the same step as the last one, where
    /// that is faster, and kept if the sampler chooses them too. Default: yes, but not with an observer, which sees
    /// each token once, nor with recurrent layers. No token depends on it.
    #[must_use]
    pub fn drafts(mut self, made: bool) -> Self {
        self.drafts = made;
        self
    }

    /// A smaller model with the same tokens: what it would say next is run ahead where that is faster, and no token
    /// changes. It is all in memory, as a part of the budget, and reads the prompt, too.
    #[must_use]
    pub fn draft_model(mut self, path: impl AsRef<Path>) -> Self {
        self.draft_model = Some(path.as_ref().to_path_buf());
        self
    }

    /// Which FFN neurons are computed. Default: those that the model's predictors name, if it has any; else exact
    /// sparsity for ReLU models, and all neurons for others.
    #[must_use]
    pub fn sparsity(mut self, sparsity: Sparsity) -> Self {
        self.sparsity = Some(sparsity);
        self
    }

    /// Packs the model neuron by neuron even if Down has to be quantised again for it, as
    /// [`Sparsity::Threshold`] does.
    #[must_use]
    pub fn by_neuron(mut self) -> Self {
        self.pack.neurons = true;
        self
    }

    /// Part of each layer's neurons that is computed with [`Sparsity::Threshold`], 0 to 1. Default: what the
    /// model was calibrated to, or half.
    #[must_use]
    pub fn density(mut self, density: f64) -> Self {
        self.density = Some(density);
        self
    }

    /// Which single neurons stay in memory, how they are read, and what overlaps: PowerInfer-2's way by
    /// default, others to compare with.
    #[must_use]
    pub fn neurons(mut self, options: NeuronOptions) -> Self {
        self.neurons = options;
        self
    }

    /// Whether the neuron cache begins with the hot set of the last run, and saves its own for the next. Default: yes.
    /// It affects speed only.
    #[must_use]
    pub fn hot_set(mut self, kept: bool) -> Self {
        self.hot_set = kept;
        self
    }

    /// Whether the engine releases memory, as under a smaller budget, while the machine or one of its control groups is
    /// short of memory, and takes it back afterwards. It checks every few milliseconds, between two tokens, what is
    /// left of limits, and the kernel's pressure figures if there are any. Default: no.
    #[must_use]
    pub fn yields_memory(mut self, yields: bool) -> Self {
        self.yields_memory = yields;
        self
    }

    /// Registers an observer of what the model computes.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
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

    /// Takes the choices of a plan that `forebay plan --json` wrote; choices made here override it.
    #[must_use]
    pub fn plan_file(mut self, path: impl AsRef<Path>) -> Self {
        self.planning = Planning::File(path.as_ref().to_path_buf());
        self
    }

    /// Whether the planner decides what is not given here. Default: yes, if the machine has been measured (`forebay
    /// plan`, `forebay doctor`).
    #[must_use]
    pub fn planned_choices(mut self, planned: bool) -> Self {
        self.planning = match planned {
            true => Planning::Automatic,
            false => Planning::Off,
        };
        self
    }

    /// What the planner optimises for.
    #[must_use]
    pub fn goal(mut self, goal: PlanGoal) -> Self {
        self.goal = goal;
        self
    }

    /// Called while the model is packed and loaded.
    #[must_use]
    pub fn on_preparation(mut self, report: impl FnMut(Preparation) + Send + 'static) -> Self {
        self.report = Box::new(report);
        self
    }

    /// Registers a counter for the default profile, unless another observer is registered, the run is to save nothing,
    /// every neuron is wanted anyway, or the model has been profiled explicitly. The counts' memory is added to the
    /// request.
    pub(super) fn count_wants(&mut self, bundle: &Bundle, request: &mut MemoryRequest) {
        let unwatched = self.observer.is_none() && self.hot_set;
        let made = || Profile::load(bundle).is_some_and(|p| !p.is_default());
        if !unwatched || request.sparsity == Sparsity::Dense || made() {
            return;
        }
        let network = &bundle.meta.network;
        request.counts = Tally::bytes(network.n_neurons());
        let tally = Tally::new(bundle, request.sparsity);
        self.observer = Some(tally.clone());
        self.tally = Some(tally);
    }

    /// The model as the caller named it.
    pub(super) fn name(&self) -> String {
        let model = self.model.as_ref();
        model.map_or(demo::NAME.into(), |m| m.display().to_string())
    }

    /// Architecture, mode and the cores that may compute: at most as many as heads of a layer.
    pub(super) fn shape(&self, bundle: &Bundle) -> Result<(Network, Sparsity, Vec<usize>), Error> {
        let network = bundle.meta.network.clone();
        let mut cores = Topology::read()?.compute_cores(self.threads)?;
        cores.truncate(network.most_cores());
        let sparsity = self.sparsity.unwrap_or_else(|| default_sparsity(bundle));
        Ok((network, sparsity, cores))
    }

    /// How neurons are selected.
    pub(super) fn rule(&self, bundle: &Bundle, sparsity: Sparsity) -> Result<Rule, Error> {
        let meta = &bundle.meta;
        let model = || bundle.path().to_path_buf();
        let thresholds = match (sparsity, &meta.gates) {
            (Sparsity::Threshold, Some(gates)) => {
                let density = self.density.or(gates.density);
                gates.thresholds(density.unwrap_or(DEFAULT_DENSITY))
            }
            (Sparsity::Threshold, None) => {
                return Err(Error::NotCalibrated { model: model() });
            }
            _ => Vec::new(),
        };
        if sparsity == Sparsity::Predicted && meta.predictors.is_none() {
            return Err(Error::NoPredictors { model: model() });
        }
        let activation = meta.network.ffn(0).activation;
        Ok(Rule::new(sparsity, activation, thresholds))
    }

    pub(super) fn kernels(&self) -> Result<KernelTable, Error> {
        let Some(isa) = self.isa else {
            return Ok(KernelTable::best());
        };
        KernelTable::new(isa).ok_or_else(|| Error::no_isa(isa))
    }

    pub(super) fn model_path(&mut self) -> Result<PathBuf, Error> {
        match &self.model {
            Some(path) => Ok(path.clone()),
            None => {
                let folder = cache_dir::prepare(self.cache.as_deref())?;
                demo::unpack(&folder, &mut self.report)
            }
        }
    }

    pub(super) fn memory_request(
        &self,
        threads: usize,
        sparsity: Sparsity,
        texts: Option<&(Tokenizer, ChatFormat)>,
        device: Option<&OpenDevice>,
    ) -> Result<MemoryRequest, Error> {
        let limits = MemoryLimits::read()?;
        let available = limits.effective_available();
        let device = device.map(|device| device.request);
        if device.is_none() {
            // What opening a device has freed, its driver takes again when it compiles for the first jobs.
            give_back_freed();
        }
        let process = rss_now()?.saturating_sub(device.map_or(0, |device| device.runtime));
        let default = process + (available as f64 * DEFAULT_SHARE) as u64;
        // Pages of the program may be counted for others than this control group.
        let default = default.min(limits.effective_total());
        // What happens to be in memory must not depend on drafts where the result depends on it.
        let fixed = !self.fewer.depends_on_memory();
        let drafts = self.drafts && self.observer.is_none() && fixed;
        // One trace lane per core, one of a device, and shorter ones per place in the I/O queue.
        let long = threads + usize::from(device.is_some());
        let records = self.trace_records * long + self.trace_records / IO_LANE_SHARE * IO_DEPTH;
        Ok(MemoryRequest {
            total: self.memory.unwrap_or(default),
            weights: self.weight_memory,
            process,
            threads,
            context: self.context,
            context_hint: self.context_hint,
            context_needed: self.context_needed,
            kv_type: self.kv_type,
            max_batch: self.max_batch,
            max_logits: self.max_logits,
            drafts: if drafts { MOST_DRAFTED } else { 0 },
            sparsity,
            pipeline: self.neurons.pipeline,
            // A device's copies and what is yielded need the room more.
            keeps_tables: device.is_none() && !self.yields_memory,
            stream_window: STREAM_WINDOW,
            neuron_cache: 0,
            counts: 0,
            observer: self.observer.as_ref().map_or(0, |seen| seen.bytes()),
            draft_model: 0,
            device,
            trace: (records * size_of::<Record>()) as u64,
            encoding: texts.map_or_else(EncodingMemory::default, |(t, _)| t.encoding_memory()),
            converses: texts.is_some_and(|(_, chat)| chat.has_templates()),
        })
    }
}

fn default_sparsity(bundle: &Bundle) -> Sparsity {
    let is_sparse = bundle.meta.network.is_sparse();
    match bundle.meta.predictors {
        Some(_) if is_sparse => Sparsity::Predicted,
        _ if is_sparse => Sparsity::Exact,
        _ => Sparsity::Dense,
    }
}
