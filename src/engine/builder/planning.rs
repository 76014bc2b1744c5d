//! Where an engine's choices come from: a given plan, one made from what is known about the machine, or the defaults.

use std::path::{Path, PathBuf};

use forebay_models::bundle::{Bundle, ffn_identity};
use forebay_models::network::MOST_GUESSED_LAYERS;
use forebay_models::source::TensorSource;
use forebay_models::tokenizer::Tokenizer;
use forebay_plans::cache_dir;
use forebay_plans::limits::MemoryLimits;
use forebay_plans::machine::{KernelCase, MachineProfile};
use forebay_plans::plan::{PLAN_VERSION, Plan, PlannedModel};
use forebay_plans::process::rss_now;
use forebay_plans::residency::{Loading, Sparsity};
use forebay_plans::topology::Topology;
use forebay_stages::kernels::KernelTable;

use super::depths::PROBE_DEPTH;
use super::plan_goal::{PlanGoal, Planning};
use super::settings::EngineBuilder;
use crate::chat::ChatFormat;
use crate::error::Error;
use crate::memory::MemoryRequest;
use crate::packed::{self, Found, Preparation};
use crate::planner::{
    Decision, Fixed, Known, Measure, Outlook, Survey, Wish, disk_of, fastest, identity,
    kernel_cases, least_memory,
};
use crate::profiles::Profile;

/// `--memory auto` takes the minimum memory that gives this part of the best speed.
const ENOUGH: f64 = 0.97;

impl EngineBuilder {
    /// Of how many of the next layers, at most [`MOST_GUESSED_LAYERS`], the experts are guessed while a token is
    /// generated, and read ahead if they are not in memory, regardless of a plan. No token changes. Without effect
    /// where all experts are in memory, or are chosen before attention.
    #[must_use]
    pub fn guess_layers(mut self, n: usize) -> Self {
        self.fixed_guesses = Some(n.min(MOST_GUESSED_LAYERS));
        self
    }

    /// How neurons are read, regardless of a plan.
    #[must_use]
    pub fn loading(mut self, loading: Loading) -> Self {
        self.neurons.loading = loading;
        self.fixed_loading = Some(loading);
        self
    }

    /// Makes a plan without starting an engine. What is not yet known about the machine is measured, and saved beside
    /// the packed models; `progress` receives the share done.
    ///
    /// # Errors
    /// A model that cannot be read, an impossible budget or speed, or a machine that cannot be measured.
    pub fn plan_only(
        mut self,
        measure: Measure,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Plan, Error> {
        self.check()?;
        self.settle_context()?;
        let bundle = self.open()?;
        self.plan_for(&bundle, true, measure, progress)
    }

    /// The same for a model that may not have been packed, without packing it: from its header. Such a plan is to be
    /// read; it fits no packed model.
    ///
    /// # Errors
    /// As [`Self::plan_only`]'s.
    pub fn plan_unpacked(
        mut self,
        measure: Measure,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Plan, Error> {
        self.check()?;
        self.settle_context()?;
        let model = self.model_path()?;
        self.choose_layout();
        let (mut bundle, found) =
            packed::open_or_outline(&model, self.cache.as_deref(), &self.pack)?;
        self.use_fewer_experts(&mut bundle.meta.network)?;
        let mut plan = self.plan_for(&bundle, found == Found::Packed, measure, progress)?;
        if found != Found::Packed {
            let note = "the model has not been packed yet, which takes about as much room on the disk as it has";
            plan.notes.push(note.into());
        }
        if found == Found::Beginning {
            let note = "only the beginning of the file is there: the plan is made from its header, and nothing else can be done with it";
            plan.notes.push(note.into());
        }
        Ok(plan)
    }

    fn plan_for(
        &mut self,
        bundle: &Bundle,
        is_packed: bool,
        measure: Measure,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Plan, Error> {
        let kernels = self.kernels()?;
        let (_, sparsity, cores) = self.shape(bundle)?;
        self.rule(bundle, sparsity)?;
        // A running engine has it in memory as well.
        let texts = self.texts(bundle)?;
        let (device, _) = self.open_device(bundle, &kernels)?;
        let mut request =
            self.memory_request(cores.len(), sparsity, Some(&texts), device.as_ref())?;
        let does_without = self.may_do_without(device.as_ref());
        drop(device);
        if let Some(drafting) = self.drafting()? {
            drafting.check(&bundle.meta.network, &texts.0, request.drafts)?;
            request.draft_model = drafting.bytes();
        }
        self.count_wants(bundle, &mut request);
        drop(texts);
        // There is nothing to read in an outline.
        let file = is_packed.then(|| bundle.path());
        let cases = kernel_cases(bundle, sparsity);
        let known = self.measured((kernels, &cases), file, measure, progress)?;
        let name = self.name();
        match self.made(bundle, &name, request, &known) {
            Err(Error::Budget(_)) if does_without => {
                request.device = None;
                self.made(bundle, &name, request, &known)
            }
            made => made,
        }
    }

    /// The request with the choices of a plan, and the plan.
    pub(super) fn planned(
        &mut self,
        bundle: &Bundle,
        kernels: KernelTable,
        mut request: MemoryRequest,
    ) -> Result<(MemoryRequest, Option<Plan>), Error> {
        let _span = tracing::info_span!("plan").entered();
        let plan = match self.planning.clone() {
            Planning::Off => None,
            Planning::File(path) => {
                let mut plan = Plan::read(&path)?;
                plan.fits_machine(&path, &this_machine(&kernels)?)?;
                // It may have been made when more memory was left, or outside this control group.
                let limits = MemoryLimits::read()?;
                let most = request.process + limits.effective_available();
                let most = most.min(limits.effective_total());
                plan.memory_bytes = plan.memory_bytes.min(most);
                Some(plan)
            }
            Planning::Automatic => match self.known_or_needed(bundle, kernels, &request)? {
                Some(known) => Some(self.made(bundle, &self.name(), request, &known)?),
                None => None,
            },
        };
        if let Some(plan) = &plan {
            let c = plan.choices;
            request.threads = self.threads.unwrap_or(c.threads).min(request.threads);
            request.context = request.context.or(Some(c.context));
            request.max_batch = request.max_batch.or(Some(c.max_batch));
            request.stream_window = c.stream_window_bytes;
            request.neuron_cache = c.neuron_cache_bytes;
            if self.memory.is_none() {
                request.total = plan.memory_bytes;
            }
            self.neurons.loading = self.fixed_loading.unwrap_or(c.loading);
        }
        let planned = plan.as_ref().map(|plan| plan.choices.guessed_layers);
        // Unmeasured, the disk may be slow: then what is wrong costs more than it gains.
        self.neurons.guesses = self.fixed_guesses.or(planned).unwrap_or(1);
        Ok((request, plan))
    }

    /// The packed model, packed now if its header allows what was asked for.
    pub(super) fn open(&mut self) -> Result<Bundle, Error> {
        let model = self.model_path()?;
        // A plan's neurons are computed, unless others were chosen.
        let given = match &self.planning {
            Planning::File(path) => Some((path.clone(), Plan::read(path)?)),
            Planning::Automatic | Planning::Off => None,
        };
        let planned = given.as_ref().map(|(_, plan)| plan.choices.sparsity);
        self.sparsity = self.sparsity.or(planned);
        self.choose_layout();
        let mut report = std::mem::replace(&mut self.report, Box::new(|_| {}));
        let process = rss_now()?;
        let fits = |source: &dyn TensorSource| self.check_source(source, process);
        let cache = self.cache.as_deref();
        let opened = packed::open_if(&model, cache, &self.pack, &fits, &mut report);
        self.report = report;
        let mut bundle = opened?;
        if let Some((path, plan)) = &given {
            // First: choices for another model may not suit this one.
            plan.fits(path, &planned_model(&bundle, self.name()))?;
        }
        self.use_fewer_experts(&mut bundle.meta.network)?;
        Ok(bundle)
    }

    /// Thresholds skip single neurons, so neurons have to be stored one by one.
    fn choose_layout(&mut self) {
        self.pack.neurons |= self.sparsity == Some(Sparsity::Threshold);
    }

    /// How texts and conversations become tokens.
    pub(super) fn texts(&mut self, bundle: &Bundle) -> Result<(Tokenizer, ChatFormat), Error> {
        let (spec, templates) = bundle.read_tokenizer()?;
        if let Some(doubt) = spec.doubt() {
            (self.report)(Preparation::Doubt(doubt));
        }
        let chat = self.chat_format(templates)?;
        if self.for_chat {
            chat.template(false)?.check()?;
        }
        let tokenizer = Tokenizer::from_spec(spec).map_err(|e| e.within(bundle.path()))?;
        Ok((tokenizer, chat))
    }

    fn made(
        &self,
        bundle: &Bundle,
        name: &str,
        request: MemoryRequest,
        known: &Known,
    ) -> Result<Plan, Error> {
        let profile = Profile::load(bundle).filter(|p| fits_mode(p, &request));
        let measured = (&known.machine, &known.disk);
        let outlook = Outlook::new(bundle, measured, profile.as_ref(), request);
        let fixed = Fixed {
            threads: self.threads.map(|n| n.min(request.threads)),
            max_batch: self.max_batch,
            loading: self.fixed_loading,
            guessed_layers: self.fixed_guesses,
        };
        let decision = match self.goal {
            PlanGoal::Fastest => fastest(&outlook, fixed)?,
            PlanGoal::Speed(speed) => least_memory(&outlook, fixed, Wish::Speed(speed))?,
            PlanGoal::Enough => {
                let best = fastest(&outlook, fixed)?.seen.cost();
                least_memory(&outlook, fixed, Wish::Cost(best / ENOUGH))?
            }
        };
        let Decision {
            memory_bytes,
            seen,
            reasons,
        } = decision;
        let mut notes = Vec::new();
        if profile.is_none() && request.sparsity != Sparsity::Dense {
            notes.push(
                "this model has not been profiled in this mode: half of its neurons are assumed to be wanted, all \
                 equally often; `forebay profile MODEL -f TEXT` measures that"
                    .into(),
            );
        }
        let experts = profile.as_ref().and_then(|p| p.experts.as_ref());
        if experts.is_none() && seen.expected.memory_items.contains_key("expert_cache") {
            notes.push(
                "which experts this model's tokens use has not been measured: as much locality as in published models \
                 is assumed; `forebay profile MODEL -f TEXT` measures it"
                    .into(),
            );
        }
        if let Some(why) = &known.unsaved {
            notes.push(format!(
                "what was measured of the machine could not be saved, and is measured again the next time ({why})"
            ));
        }
        Ok(Plan {
            version: PLAN_VERSION,
            model: planned_model(bundle, name.into()),
            machine: known.machine.identity.clone(),
            memory_bytes,
            choices: seen.choices,
            expected: seen.expected,
            reasons,
            notes,
        })
    }

    /// What is known of the machine. If that is not enough for this model, it is measured now where only a plan tells
    /// how much memory is enough; else there is none.
    fn known_or_needed(
        &mut self,
        bundle: &Bundle,
        kernels: KernelTable,
        request: &MemoryRequest,
    ) -> Result<Option<Known>, Error> {
        let known = self.known(bundle, kernels, request.sparsity);
        if known.is_some() || self.goal == PlanGoal::Fastest {
            return Ok(known);
        }
        (self.report)(Preparation::Measuring);
        let cases = kernel_cases(bundle, request.sparsity);
        let (file, measure) = (Some(bundle.path()), Measure::Missing);
        let known = self.measured((kernels, &cases), file, measure, &mut |_| {})?;
        Ok(Some(known))
    }

    /// Measures what is not known of the machine, and the disk with `file` if there is one, and saves it.
    fn measured(
        &self,
        (kernels, cases): (KernelTable, &[KernelCase]),
        file: Option<&Path>,
        measure: Measure,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Known, Error> {
        let survey = Survey {
            kernels,
            folder: &self.machine_folder()?,
            file,
            driver: self.driver,
            measure,
        };
        survey.take(cases, progress)
    }

    /// The machine's saved profile, if it is enough for this model.
    fn known(&self, bundle: &Bundle, kernels: KernelTable, sparsity: Sparsity) -> Option<Known> {
        let folder = self.machine_folder().ok()?;
        let machine = MachineProfile::load(&folder, &this_machine(&kernels).ok()?)?;
        let disk = machine.disks.get(&disk_of(bundle.path()))?.clone();
        let measured = |c: &KernelCase| machine.measured(c).is_some();
        let whole = kernel_cases(bundle, sparsity).iter().all(measured);
        whole.then_some(Known {
            machine,
            disk,
            unsaved: None,
        })
    }

    /// How fast the disk reads streamed clusters of the model, bytes per second; infinite if it has not been measured.
    pub(super) fn known_disk_rate(
        &self,
        bundle: &Bundle,
        kernels: KernelTable,
        sparsity: Sparsity,
    ) -> f64 {
        let known = self.known(bundle, kernels, sparsity);
        let longest = bundle.clusters.iter().map(|e| e.padded_len()).max();
        let bytes = longest.unwrap_or(0) as f64;
        known.map_or(f64::INFINITY, |known| {
            bytes / known.disk.seconds_per_read(bytes, PROBE_DEPTH)
        })
    }

    /// The folder of the machine's profile.
    fn machine_folder(&self) -> Result<PathBuf, Error> {
        Ok(cache_dir::prepare(self.cache.as_deref())?)
    }
}

/// Whether a profile counts the neurons that this mode wants.
fn fits_mode(profile: &Profile, request: &MemoryRequest) -> bool {
    profile.sparsity == request.sparsity
}

/// The identity that a profile of this machine has.
fn this_machine(kernels: &KernelTable) -> Result<String, Error> {
    Ok(identity(kernels, &Topology::read()?.compute_cores(None)?))
}

fn planned_model(bundle: &Bundle, name: String) -> PlannedModel {
    PlannedModel {
        name,
        identity: ffn_identity(bundle),
        weight_bytes: bundle.weight_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use forebay_plans::plan::{Choices, Expected};

    use super::*;
    use crate::engine::builder::laid_out::Described;

    fn builder(folder: &Path) -> EngineBuilder {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/hf");
        EngineBuilder::default().model(demo).cache_folder(folder)
    }

    /// What a builder makes of its plan.
    fn followed(mut builder: EngineBuilder) -> (EngineBuilder, Sparsity, MemoryRequest) {
        let Described {
            kernels,
            bundle,
            texts,
            sparsity,
            ..
        } = builder.describe().unwrap();
        let request = builder
            .memory_request(1, sparsity, Some(&texts), None)
            .unwrap();
        let (request, plan) = builder.planned(&bundle, kernels, request).unwrap();
        assert!(plan.is_some());
        (builder, sparsity, request)
    }

    #[test]
    fn a_plan_s_choices_are_followed_where_nothing_else_is_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let described = builder(folder.path()).describe().unwrap();
        assert_eq!(described.sparsity, Sparsity::Predicted);
        let plan = Plan {
            version: PLAN_VERSION,
            model: planned_model(&described.bundle, "demo".into()),
            machine: this_machine(&described.kernels).unwrap(),
            memory_bytes: 1 << 50,
            choices: Choices {
                threads: 1,
                context: 64,
                max_batch: 8,
                sparsity: Sparsity::Exact,
                loading: Loading::Split,
                guessed_layers: 0,
                stream_window_bytes: 1 << 20,
                neuron_cache_bytes: 0,
                sequential_gain: 5.0,
            },
            expected: Expected::default(),
            reasons: Vec::new(),
            notes: Vec::new(),
        };
        let file = folder.path().join("plan.json");
        std::fs::write(&file, serde_json::to_vec(&plan).unwrap()).unwrap();
        let planned = || builder(folder.path()).plan_file(&file);
        let (made, sparsity, request) = followed(planned());
        assert_eq!(made.neurons.loading, Loading::Split);
        assert_eq!(sparsity, Sparsity::Exact);
        // No machine has as much.
        assert!(request.total < 1 << 50);
        assert_eq!(request.stream_window, 1 << 20);
        let chosen = planned()
            .loading(Loading::Rows)
            .sparsity(Sparsity::Dense)
            .memory(64 << 20);
        let (made, sparsity, request) = followed(chosen);
        assert_eq!(made.neurons.loading, Loading::Rows);
        assert_eq!(sparsity, Sparsity::Dense);
        assert_eq!(request.total, 64 << 20);
    }
}
