//! A model that drafts, beside the one that it drafts for: both are in one budget.

use forebay_models::network::Network;
use forebay_models::tokenizer::Tokenizer;

use super::laid_out::LaidOut;
use super::plan_goal::Planning;
use super::settings::EngineBuilder;
use crate::engine::thread::drafts::model::{BATCH, DraftModel, shared_ids};
use crate::error::Error;
use crate::memory::{ample_context, plan};

/// No budget of its own: all of it is to be in memory, and the budget of both is checked as one.
const UNLIMITED: u64 = u64::MAX >> 8;

/// The model that drafts, before it is loaded.
pub(in crate::engine) struct Drafting {
    builder: EngineBuilder,
    laid_out: LaidOut,
}

impl EngineBuilder {
    /// The model that drafts, if there is to be one, with the settings of the one that is built.
    pub(in crate::engine) fn drafting(&mut self) -> Result<Option<Drafting>, Error> {
        let Some(model) = self.draft_model.take() else {
            return Ok(None);
        };
        let mut builder = EngineBuilder {
            model: Some(model),
            cache: self.cache.clone(),
            threads: self.threads,
            kv_type: self.kv_type,
            driver: self.driver,
            isa: self.isa,
            max_batch: Some(BATCH),
            drafts: false,
            hot_set: false,
            planning: Planning::Off,
            ..EngineBuilder::default()
        };
        // Packing it is reported as well.
        std::mem::swap(&mut builder.report, &mut self.report);
        let described = builder.describe();
        std::mem::swap(&mut builder.report, &mut self.report);
        let described = described?;
        let (cores, sparsity) = (described.cores.len(), described.sparsity);
        let mut request = builder.memory_request(cores, sparsity, Some(&described.texts), None)?;
        let ample = || ample_context(self.context_needed, self.context_hint);
        let trained = described.network.context_length;
        request.context = Some(self.context.unwrap_or_else(ample).min(trained));
        request.total = UNLIMITED;
        request.keeps_tables = false;
        // Counted with the other model, which reads and writes the text, too.
        (request.process, request.converses) = (0, false);
        let (request, made) = builder.planned(&described.bundle, described.kernels, request)?;
        let memory = plan(&described.bundle, &request)?;
        let laid_out = LaidOut {
            memory,
            threads: request.threads,
            process: 0,
            made,
            device: None,
            no_device: None,
            described,
        };
        Ok(Some(Drafting { builder, laid_out }))
    }
}

impl Drafting {
    /// Memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.laid_out.memory.budget.claimed()
    }

    /// Whether it can draft for this model, of which `drafts` tokens may be run ahead.
    ///
    /// # Errors
    /// It cannot; the error says why.
    pub fn check(
        &self,
        network: &Network,
        tokenizer: &Tokenizer,
        drafts: usize,
    ) -> Result<(), Error> {
        let own = &self.laid_out.described;
        let problem = if drafts == 0 {
            "no tokens are run ahead, since drafts are switched off or tokens depend on what is in memory"
        } else if network.is_recurrent() {
            "the model has recurrent layers, whose states cannot be taken back"
        } else if own.network.is_recurrent() {
            "this model has recurrent layers, whose states cannot be taken back; give another one"
        } else if shared_ids(tokenizer, &own.texts.0).is_none() {
            "this model's tokens are not those of the model that it would draft for; give one of the same family"
        } else {
            return Ok(());
        };
        Err(Error::parameter(
            "draft",
            format!("{}: {problem}", self.builder.name()),
        ))
    }

    /// Loads and starts it; [`Self::check`] has passed for a model with so many tokens.
    ///
    /// # Errors
    /// The system refuses memory or threads, or its file cannot be read.
    pub fn start(mut self, vocab_size: usize) -> Result<DraftModel, Error> {
        let shared = self.laid_out.described.texts.0.vocab_size().min(vocab_size);
        let evaluator = self.builder.evaluator(self.laid_out)?;
        Ok(DraftModel::new(evaluator, shared))
    }
}
