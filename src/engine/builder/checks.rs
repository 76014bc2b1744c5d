//! What is checked before a model is packed, which takes minutes and as much room as the model: options that no model
//! could have, and those that this one cannot have by its header.

use std::ffi::OsStr;
use std::path::Path;

use forebay_models::bundle::outline;
use forebay_models::chat_templates::{ChatTemplate, ChatTemplates};
use forebay_models::source::TensorSource;
use forebay_models::tokenizer::Tokenizer;
use forebay_plans::plan::Plan;
use forebay_plans::process::rss_now;
use forebay_plans::topology::Topology;

use super::fewer_experts::checked;
use super::plan_goal::{PlanGoal, Planning};
use super::settings::EngineBuilder;
use crate::chat::ChatFormat;
use crate::error::Error;
use crate::memory::{MemoryRequest, check_context, plan};
use crate::packed;

/// More than any context has.
const MOST_TOKENS: usize = 1 << 30;
/// Records of a trace that no memory holds.
const MOST_RECORDS: usize = 1 << 32;

impl EngineBuilder {
    /// Refuses a model without a chat template that can be used, before it is packed: conversations are to be held.
    #[must_use]
    pub fn for_chat(mut self) -> Self {
        self.for_chat = true;
        self
    }

    /// The KV cache has as many positions as the model was trained for.
    #[must_use]
    pub fn trained_context(mut self) -> Self {
        self.trained_context = true;
        self
    }

    /// Checks what needs no look into the model: that it is there, the threads, the instruction set, the device, and
    /// the files of a chat template and of a plan. [`Self::build`] does it first, too.
    ///
    /// # Errors
    /// One of these is missing, or impossible.
    pub fn check(&self) -> Result<(), Error> {
        self.check_numbers()?;
        self.kernels()?;
        Topology::read()?.compute_cores(self.threads)?;
        self.check_device()?;
        self.chat_format(ChatTemplates::default())?;
        if let Planning::File(path) = &self.planning {
            Plan::read(path)?;
        }
        let mut models = self.model.iter().chain(&self.draft_model);
        models.try_for_each(|model| packed::check_there(model))
    }

    fn check_numbers(&self) -> Result<(), Error> {
        if let Some(density) = self.density.filter(|d| !(0.0..=1.0).contains(d)) {
            let problem = format!("{density} is no part of the neurons; give 0 to 1");
            return Err(Error::parameter("density", problem));
        }
        for (name, n) in [
            ("max_batch", self.max_batch.unwrap_or(1)),
            ("max_logits", self.max_logits),
        ] {
            if n > MOST_TOKENS {
                let problem = format!("{n} are more tokens than any context has; give fewer");
                return Err(Error::parameter(name, problem));
            }
        }
        if self.trace_records > MOST_RECORDS {
            let problem = format!(
                "{} are more than any memory holds; give fewer",
                self.trace_records
            );
            return Err(Error::parameter("trace_records", problem));
        }
        if let PlanGoal::Speed(speed) = self.goal
            && !(speed > 0.0 && speed.is_finite())
        {
            let problem = format!("{speed} tokens per second are no speed; give more than 0");
            return Err(Error::parameter("goal", problem));
        }
        let folder = self.cache.as_deref().map(Path::as_os_str);
        match folder.is_some_and(OsStr::is_empty) {
            true => Err(Error::parameter(
                "cache_folder",
                "the path is empty; name a folder, or none",
            )),
            false => Ok(()),
        }
    }

    /// Checks the options by the header of a source that would have to be packed. `process` is what the process had in
    /// memory before the source was opened, bytes.
    pub(super) fn check_source(
        &self,
        source: &dyn TensorSource,
        process: u64,
    ) -> Result<(), Error> {
        let network = source.network();
        checked(self.fewer, network)?;
        if let Some(asked) = self.context {
            check_context(asked, network.context_length)?;
        }
        if self.for_chat {
            let own = source.chat_templates().clone();
            self.chat_format(own)?.template(false)?.check()?;
        }
        match self.memory {
            Some(_) => self.check_budget(source, process),
            None => Ok(()),
        }
    }

    /// Refuses a budget in which not even the model without its tokenizer fits.
    fn check_budget(&self, source: &dyn TensorSource, process: u64) -> Result<(), Error> {
        let mut bundle = outline(source, source.path(), &self.pack)?;
        checked(self.fewer, source.network())?.limit(&mut bundle.meta.network);
        let (_, sparsity, cores) = self.shape(&bundle)?;
        let request = MemoryRequest {
            process,
            ..self.memory_request(cores.len(), sparsity, None, None)?
        };
        let Err(Error::Budget(_)) = plan(&bundle, &request) else {
            // What else there is to say is said of the packed model.
            return Ok(());
        };
        // The minimum that is named has to be enough.
        let before = rss_now()?;
        let tokenizer = Tokenizer::from_spec(source.tokenizer().into_owned());
        let tokenizer = tokenizer.map_err(|e| e.within(source.path()))?;
        let chat = self.chat_format(source.chat_templates().clone())?;
        let texts = (tokenizer, chat);
        let request = self.memory_request(cores.len(), sparsity, Some(&texts), None)?;
        let process = process + request.process.saturating_sub(before);
        plan(&bundle, &MemoryRequest { process, ..request }).map(drop)
    }

    /// Takes the trained length as the context, if it is to be that.
    pub(super) fn settle_context(&mut self) -> Result<(), Error> {
        if self.trained_context {
            let model = self.model_path()?;
            let (outline, _) = packed::open_or_outline(&model, self.cache.as_deref(), &self.pack)?;
            self.context = Some(outline.meta.network.context_length);
        }
        Ok(())
    }

    /// How conversations are written: as the model does, or by the template that was given.
    pub(super) fn chat_format(&self, own: ChatTemplates) -> Result<ChatFormat, Error> {
        let given = self.chat_template.as_deref().map(ChatTemplate::read);
        ChatFormat::new(&self.name(), own, given.transpose()?.as_ref())
    }
}
