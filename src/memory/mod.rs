//! Divides the budget: everything is itemised before anything is allocated.

mod attention;
mod conversation;
mod defaults;
mod items;
mod lending;
mod uploads;

use forebay_models::bundle::Bundle;
use forebay_models::kv_type::KvType;
use forebay_models::tokenizer::EncodingMemory;
use forebay_plans::budget::Budget;
use forebay_plans::on_device::OnDevice;
use forebay_plans::residency::{
    Pipeline, ResidencyPlan, ResidencyRequest, Sparsity, all_pinned_bytes, decide,
    least_weight_bytes, table_bytes,
};
use forebay_plans::uploads::UploadShare;

use crate::error::Error;
use crate::lent::Lent;

use attention::for_attention;
use defaults::{
    SMALL_BATCH, SMALL_CONTEXT, default_batch, default_context, longest_context, longest_drafts,
};
use items::{claim_page_tables, claim_weights, fixed_items, logits_bytes};
use lending::{claim_lent, lend};
use uploads::{choose_uploads, upload_window};

pub(crate) use conversation::longest_conversation;
pub(crate) use defaults::ample_context;
pub(crate) use items::{kv_bytes_read, state_bytes};

/// How much larger the process may be in the next run: the minimum budget that an error names must suffice, and a plan
/// must fit when it is carried out.
pub(crate) const PROCESS_SPREAD: u64 = 1 << 20;

/// What the caller fixed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryRequest {
    /// Budget of the process in bytes.
    pub total: u64,
    /// Bytes for weights; `None` takes the rest of the budget.
    pub weights: Option<u64>,
    /// Resident set size before any of this was allocated.
    pub process: u64,
    pub threads: usize,
    pub context: Option<usize>,
    /// Context that is certainly enough.
    pub context_hint: Option<usize>,
    /// Positions that are needed, if a default context can have them.
    pub context_needed: usize,
    /// Number format of the KV cache.
    pub kv_type: KvType,
    /// Tokens per step.
    pub max_batch: Option<usize>,
    /// Logit rows per step.
    pub max_logits: usize,
    /// Most tokens of a draft, if the model and the budget allow as many.
    pub drafts: usize,
    pub sparsity: Sparsity,
    pub pipeline: Pipeline,
    /// Whether tables stay in memory if there is room for everything. They do not give way.
    pub keeps_tables: bool,
    /// Bytes of the stream window.
    pub stream_window: usize,
    /// Bytes that neurons get before attention.
    pub neuron_cache: u64,
    /// Bytes of counts for the default profile.
    pub counts: u64,
    /// Bytes of what a caller's observer records.
    pub observer: u64,
    /// Bytes of a second model that drafts.
    pub draft_model: u64,
    /// The device that is used, if there is one.
    pub device: Option<DeviceRequest>,
    /// Bytes of trace lanes.
    pub trace: u64,
    /// Memory that the tokenizer takes for a prompt.
    pub encoding: EncodingMemory,
    /// Whether the model has a chat template.
    pub converses: bool,
}

impl MemoryRequest {
    /// The same without a window for clusters that are copied to a device.
    fn without_uploads(&self) -> Self {
        let device = self.device.map(|device| DeviceRequest {
            uploads: None,
            ..device
        });
        Self { device, ..*self }
    }
}

/// What a device takes of the process's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceRequest {
    /// Bytes of its driver; `process` does not have them.
    pub runtime: u64,
    /// Bytes in which its driver keeps what is on the way.
    pub staging: u64,
    /// Whether its memory is the CPU's.
    pub shares_memory: bool,
    /// Whether it computes with pinned weights where they are.
    pub imports: bool,
    /// Largest piece of its memory.
    pub piece: u64,
    /// Whether it is to attend in prompts.
    pub attends: bool,
    /// What of streamed clusters is copied to it, if any is.
    pub uploads: Option<UploadShare>,
}

impl DeviceRequest {
    /// Whether pinned weights on it take the CPU's memory again.
    pub fn copies(&self) -> bool {
        self.shares_memory && !self.imports
    }
}

/// The decision: sizes, residency and the itemised budget.
#[derive(Debug)]
pub(crate) struct MemoryPlan {
    pub context: usize,
    pub max_batch: usize,
    /// Logit rows per step.
    pub max_logits: usize,
    /// Most tokens of a draft.
    pub drafts: usize,
    pub residency: ResidencyPlan,
    /// What of it a device computes: until that is chosen, only what is copied to it.
    pub on_device: OnDevice,
    /// What each item has when nothing has been generated.
    pub budget: Budget,
    /// What weights have until something else needs it.
    pub lent: Lent,
    /// Bytes that weights leave for a device's attention.
    pub for_attention: u64,
}

/// Plans the memory of a run.
///
/// # Errors
/// The budget is impossible; the error names the minimum.
pub(crate) fn plan(bundle: &Bundle, request: &MemoryRequest) -> Result<MemoryPlan, Error> {
    let context = context(bundle, request)?;
    let max_batch = request
        .max_batch
        .unwrap_or_else(|| default_batch(bundle, request, context));
    let (mut context, mut max_batch, mut drafts) = (context, max_batch, request.drafts);
    // A model that drafts has no other use.
    let least_drafts = usize::from(request.draft_model > 0);
    loop {
        // Defaults shrink first: the minimum budget is that of the smallest defaults.
        match plan_for(bundle, request, context, (max_batch, drafts)) {
            Err(Error::Budget(_)) if drafts > least_drafts => drafts = least_drafts,
            Err(Error::Budget(_)) if request.max_batch.is_none() && max_batch > SMALL_BATCH => {
                max_batch = (max_batch / 2).max(SMALL_BATCH);
            }
            Err(Error::Budget(_)) if request.context.is_none() && context > SMALL_CONTEXT => {
                context = (context / 2).max(SMALL_CONTEXT);
                if request.max_batch.is_none() {
                    // It had become small beside a longer one.
                    max_batch = default_batch(bundle, request, context);
                }
            }
            // It is no use to name a budget under which the known prompt is too long.
            Err(Error::Budget(least)) if request.context.is_none() => {
                let needed = self::context(bundle, request)?;
                let sizes = (max_batch.min(needed), drafts);
                plan_for(bundle, request, needed, sizes)?;
                return Err(Error::Budget(least));
            }
            planned => {
                return planned.map(|usual| with_longer_context(bundle, request, usual));
            }
        }
    }
}

/// `usual` with the longest default context that leaves in memory what is there now, if that is everything: the rest of
/// the budget is of no other use, unless a device or what is yielded needs it.
fn with_longer_context(bundle: &Bundle, request: &MemoryRequest, usual: MemoryPlan) -> MemoryPlan {
    let is_whole = usual.residency.is_all_in_memory();
    if request.context.is_some() || !request.keeps_tables || !is_whole {
        return usual;
    }
    let sizes = (usual.max_batch, usual.drafts);
    let mut context = longest_context(request, bundle.meta.network.context_length);
    while context > usual.context {
        if let Ok(longer) = plan_for(bundle, request, context, sizes)
            && longer.residency.pinned_bytes == usual.residency.pinned_bytes
        {
            return longer;
        }
        context /= 2;
    }
    usual
}

/// Positions of the KV cache: those requested, or what the budget allows.
///
/// # Errors
/// More than the model was trained for, or none.
fn context(bundle: &Bundle, request: &MemoryRequest) -> Result<usize, Error> {
    let trained = bundle.meta.network.context_length;
    match request.context {
        Some(asked) => check_context(asked, trained).map(|()| asked),
        None => Ok(default_context(bundle, request, trained)),
    }
}

/// Whether a model that was trained for `trained` positions can have `asked`.
///
/// # Errors
/// They are more, or none.
pub(crate) fn check_context(asked: usize, trained: usize) -> Result<(), Error> {
    match asked {
        0 => {
            let problem = "0 leaves no room for a token; give at least 2";
            Err(Error::parameter("context", problem))
        }
        asked if asked > trained => Err(Error::ContextTooLarge { asked, trained }),
        _ => Ok(()),
    }
}

/// Plans the memory of a run with `context` positions, batches of `max_batch` tokens and drafts of at most `drafts`.
fn plan_for(
    bundle: &Bundle,
    request: &MemoryRequest,
    context: usize,
    (max_batch, drafts): (usize, usize),
) -> Result<MemoryPlan, Error> {
    let mut budget = fixed_items(bundle, request, context, max_batch);
    let drafts = longest_drafts(bundle, request, drafts, max_batch);
    let max_logits = claim_logits(&mut budget, bundle, request, (max_batch, drafts));
    let threads = request.threads;
    let least = least_weight_bytes(bundle, threads, request.sparsity);
    let whole = all_pinned_bytes(bundle, request.sparsity);
    let tables = match request.keeps_tables {
        true => table_bytes(bundle),
        false => 0,
    };
    let most = request.weights.unwrap_or(u64::MAX).min(whole + tables);
    claim_page_tables(&mut budget, (least, most));
    let left = budget.remaining();
    let for_attention = for_attention(bundle, request, (context, max_batch), (left, least, whole));
    let left = left - for_attention;
    let (window, reserved) = upload_window(bundle, request, max_batch, (left, least, whole));
    let weights = request.weights.unwrap_or(left - reserved).min(most);
    let too_small = Error::WeightMemory {
        asked: weights,
        least,
        threads,
    };
    if weights < least {
        claim_least(&mut budget, request, least);
        budget.check()?;
        return Err(too_small);
    }
    let wanted = ResidencyRequest {
        weight_bytes: weights,
        threads,
        sparsity: request.sparsity,
        pipeline: request.pipeline,
        stream_window: request.stream_window,
        neuron_cache: request.neuron_cache,
    };
    let Some(residency) = decide(bundle, &wanted) else {
        return Err(too_small);
    };
    let mut on_device = OnDevice::default();
    if let (Some(window), Some(device)) = (window, request.device) {
        let through = (&device, max_batch, window);
        on_device.uploads = choose_uploads(&mut budget, bundle, through, &residency);
        if on_device.uploads.is_none() {
            let without = request.without_uploads();
            return plan_for(bundle, &without, context, (max_batch, drafts));
        }
    }
    let (lent, residency) = lend(
        bundle,
        request,
        (context, (max_batch, drafts), &budget),
        (&wanted, residency),
    );
    claim_lent(&mut budget, request.total, &lent);
    claim_weights(&mut budget, whole, &residency, threads);
    budget.check()?;
    Ok(MemoryPlan {
        lent,
        for_attention,
        context,
        max_batch,
        max_logits,
        drafts,
        residency,
        on_device,
        budget,
    })
}

/// Claims what `drafts` need beside the logits that are asked for, and returns how many rows a step may have.
fn claim_logits(
    budget: &mut Budget,
    bundle: &Bundle,
    request: &MemoryRequest,
    (max_batch, drafts): (usize, usize),
) -> usize {
    let scored = request.max_logits.min(max_batch);
    let rows = scored.max(1 + drafts);
    let more = ((rows - scored) * logits_bytes(bundle)) as u64;
    if more > 0 {
        let why = format!("logits of up to {drafts} tokens that are run ahead");
        budget.claim("drafts", more, why);
    }
    rows
}

/// Claims the minimum of weights, for an error that names what is needed.
fn claim_least(budget: &mut Budget, request: &MemoryRequest, least: u64) {
    budget.claim("weights", least, "two clusters per core in transit");
    if request.weights.is_none() {
        let why = "margin: it varies from run to run";
        budget.claim("process", PROCESS_SPREAD, why);
    }
}
