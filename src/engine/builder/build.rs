//! From settings to a running engine: reads the model's description, divides the memory, loads, starts.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_models::bundle::Bundle;
use forebay_models::network::Network;
use forebay_models::tokenizer::Tokenizer;
use forebay_plans::giving_way::GivingWay;
use forebay_plans::plan::Plan;
use forebay_plans::process::rss_now;
use forebay_plans::residency::Sparsity;
use forebay_stages::kernels::KernelTable;

use super::draft_model::Drafting;
use super::laid_out::{Described, LaidOut};
use super::settings::EngineBuilder;
use crate::engine::facts::Facts;
use crate::engine::handle::Engine;
use crate::engine::thread::evaluator::Evaluator;
use crate::error::Error;
use crate::in_force::{Parts, PlanInForce};
use crate::live_budget::{Copies, KV_COPIES, LiveBudget};
use crate::memory::{MemoryPlan, MemoryRequest, check_context, plan};

/// What a model's file says.
#[derive(Debug)]
pub struct ModelDescription {
    /// The packed file.
    pub bundle: PathBuf,
    /// What the model computes.
    pub network: Network,
    /// How texts become tokens.
    pub tokenizer: Tokenizer,
    /// Which neurons are computed.
    pub sparsity: Sparsity,
}

impl EngineBuilder {
    /// Packs the model if needed, divides the budget, loads the weights that stay in memory and starts the actors.
    /// Blocks for gigabytes, minutes if the model has to be packed first. In an async program, use the runtime's
    /// threads for blocking work (`tokio::task::spawn_blocking`).
    ///
    /// # Errors
    /// A model that cannot be read, an impossible budget (the error names the minimum), or a resource that the system
    /// refuses.
    pub fn build(mut self) -> Result<Engine, Error> {
        let _span = tracing::info_span!("build", model = self.name()).entered();
        self.check()?;
        self.settle_context()?;
        let drafting = self.drafting()?;
        let laid_out = self.lay_out(drafting.as_ref())?;
        let evaluator = self.evaluator(laid_out)?;
        let vocab_size = evaluator.facts.tokenizer.vocab_size();
        let draft = drafting.map(|d| d.start(vocab_size)).transpose()?;
        self.serve(evaluator, draft)
    }

    /// What the model's file says, without loading the model: it is packed first if it has not been.
    ///
    /// # Errors
    /// As [`Self::build`]'s about the model, and about a context that it was not trained for.
    pub fn read_model(mut self) -> Result<ModelDescription, Error> {
        self.check()?;
        let described = self.describe()?;
        if let Some(asked) = self.context {
            check_context(asked, described.network.context_length)?;
        }
        Ok(ModelDescription {
            bundle: described.bundle.path().to_path_buf(),
            network: described.network,
            tokenizer: described.texts.0,
            sparsity: described.sparsity,
        })
    }

    /// Reads the model's description.
    pub(super) fn describe(&mut self) -> Result<Described, Error> {
        let kernels = self.kernels()?;
        let bundle = self.open()?;
        let texts = self.texts(&bundle)?;
        let (network, sparsity, cores) = self.shape(&bundle)?;
        let rule = self.rule(&bundle, sparsity)?;
        Ok(Described {
            kernels,
            bundle,
            texts,
            network,
            sparsity,
            cores,
            rule,
        })
    }

    /// Divides the budget, `drafting` being a part of it.
    fn lay_out(&mut self, drafting: Option<&Drafting>) -> Result<LaidOut, Error> {
        let described = self.describe()?;
        let Described {
            kernels,
            bundle,
            texts,
            sparsity,
            cores,
            ..
        } = &described;
        let (mut device, mut no_device) = self.open_device(bundle, kernels)?;
        if let Some(device) = &mut device {
            self.place_uploads(device, (bundle, kernels), *sparsity);
        }
        let mut request =
            self.memory_request(cores.len(), *sparsity, Some(texts), device.as_ref())?;
        if let Some(drafting) = drafting {
            drafting.check(&described.network, &texts.0, request.drafts)?;
            request.draft_model = drafting.bytes();
        }
        self.count_wants(bundle, &mut request);
        let mut divided = self.divide(bundle, *kernels, request);
        if let (true, Err(Error::Budget(_))) = (self.may_do_without(device.as_ref()), &divided) {
            (device, request.device) = (None, None);
            request.process = rss_now()?;
            no_device = Some("no device: the budget has no room for its driver".to_owned());
            divided = self.divide(bundle, *kernels, request);
        }
        let (request, made, mut memory) = divided?;
        if let Some(device) = &device {
            let predicted = *sparsity == Sparsity::Predicted;
            let programs = self.programs(bundle, &memory.residency, request.threads, predicted);
            no_device =
                self.place_on_device(device, bundle, (&programs, *sparsity), &mut memory)?;
        }
        device = device.filter(|_| no_device.is_none());
        if drafting.is_some() && memory.drafts == 0 {
            let problem = "this budget has no room for tokens that are run ahead; raise it or omit the model that drafts";
            return Err(Error::parameter("draft", problem));
        }
        Ok(LaidOut {
            memory,
            threads: request.threads,
            process: request.process,
            made,
            described,
            device,
            no_device,
        })
    }

    /// The choices, and the memory that follows from them.
    fn divide(
        &mut self,
        bundle: &Bundle,
        kernels: KernelTable,
        request: MemoryRequest,
    ) -> Result<(MemoryRequest, Option<Plan>, MemoryPlan), Error> {
        let (request, made) = self.planned(bundle, kernels, request)?;
        let memory = plan(bundle, &request)?;
        Ok((request, made, memory))
    }

    /// Loads the weights and starts the actors.
    pub(super) fn evaluator(&mut self, laid_out: LaidOut) -> Result<Evaluator, Error> {
        let LaidOut {
            described,
            memory,
            threads,
            process,
            made,
            device,
            no_device,
        } = laid_out;
        let Described {
            kernels,
            bundle,
            texts: (tokenizer, chat),
            network,
            sparsity,
            cores,
            rule,
        } = described;
        let coming = memory.budget.claimed().saturating_sub(process);
        self.check_address_space(coming, threads + usize::from(device.is_some()))?;
        let shares = device.as_ref().filter(|d| d.request.shares_memory);
        let copies = shares.map_or_else(Copies::default, |device| {
            let items = memory.budget.items().iter();
            let kv = items.filter(|item| item.name == KV_COPIES);
            let kv = kv.map(|item| item.bytes).sum();
            Copies::of(&bundle, (&memory.on_device, kv), device.request.imports)
        });
        let mut prepared = self.load(&bundle, &memory, threads, sparsity, device)?;
        prepared.notes.extend(no_device);
        let facts = Arc::new(Facts {
            model: self.name(),
            plan: PlanInForce::of(&Parts {
                bundle: &bundle,
                memory: &memory,
                layers: network.n_layers(),
                threads,
                isa: kernels.isa(),
                kv: self.kv_type,
                sparsity,
                neurons: self.neurons,
                fewer: self.fewer,
                notes: &prepared.notes,
                made: made.as_ref(),
            }),
            cores: cores[..threads].to_vec(),
            bundle_path: bundle.path().to_path_buf(),
            bundle_bytes: std::fs::metadata(bundle.path()).map_or(0, |m| m.len()),
            weight_bytes: bundle.weight_bytes(),
            ceiling: prepared.ceiling,
            network,
            tokenizer,
            chat,
            device: prepared.device.as_ref().map(|device| device.facts.clone()),
            budget: LiveBudget::new(
                memory.budget.clone(),
                &memory.residency,
                (copies, GivingWay::new(&bundle, &memory.residency)),
                (threads, memory.lent.clone()),
            ),
        });
        self.start((bundle, kernels, rule), memory, prepared, facts)
    }
}
