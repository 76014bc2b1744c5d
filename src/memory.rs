//! Divides the budget: everything is itemised before anything is allocated.

use forebay_actors::core::scratch_bytes;
use forebay_actors::device::upload_costs;
use forebay_actors::memory::{row_buffer_bytes, row_buffers};
use forebay_actors::runtime::predictor_rank;
use forebay_models::bundle::Bundle;
use forebay_models::kv_type::KvType;
use forebay_models::tensor::TensorId;
use forebay_models::tokenizer::EncodingMemory;
use forebay_plans::budget::Budget;
use forebay_plans::giving_way::GivingWay;
use forebay_plans::residency::{
    Pipeline, ResidencyPlan, ResidencyRequest, Sparsity, all_pinned_bytes, decide,
    least_weight_bytes,
};
use forebay_plans::size::format_size;
use forebay_plans::uploads::{UploadShare, UploadWindow, Uploads};
use forebay_stages::attention::KvRoom;
use forebay_stages::recurrent::Recurrent;

use crate::engine::{Copies, LiveBudget, chat_bytes, device_boards};
use crate::error::Error;
use crate::lent::{KV_CACHE, Lent};

/// Memory that start-up and steps take beyond what is itemised: thread stacks, the ring, message queues, the
/// allocator's slack, and the program's own pages when they are first run. Up to 4.5 MiB were measured.
const RUNTIME_BYTES: u64 = 6 << 20;
/// A huge page may be committed although only its first bytes are used.
const HUGE_PAGE_SLACK: u64 = 2 << 20;
/// Default context if memory is plentiful.
pub(crate) const DEFAULT_CONTEXT: usize = 4096;
/// Smallest default context.
const SMALL_CONTEXT: usize = 256;

/// Largest default batch.
const LARGE_BATCH: usize = 128;
/// The same of models with experts: each is read once per batch, and a token uses few of them.
const LARGE_EXPERT_BATCH: usize = 512;
/// Buffers of a default batch take at most this part of the budget; more of it where each batch reads most experts.
const BATCH_SHARE: u64 = 32;
const EXPERT_BATCH_SHARE: u64 = 6;
/// Copying streamed clusters to a device takes at most this part of the memory for weights: what is pinned is not read.
const UPLOADS_SHARE: u64 = 8;
/// Smallest default batch.
const SMALL_BATCH: usize = 8;
/// Logits of drafted tokens take at most this part of the budget.
const DRAFT_SHARE: u64 = 64;
/// How much larger the process may be in the next run: the minimum budget that an error names must suffice.
const PROCESS_SPREAD: u64 = 1 << 20;
/// How often less of the KV cache is lent than the last time, if that much cannot be given back.
const LENDING_TRIALS: usize = 3;

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
    /// Bytes of the stream window.
    pub stream_window: usize,
    /// Bytes that neurons get before attention.
    pub neuron_cache: u64,
    /// Bytes of counts for the default profile.
    pub counts: u64,
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

/// What a device takes of the process's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceRequest {
    /// Bytes of its driver; `process` does not have them.
    pub runtime: u64,
    /// Bytes in which its driver keeps what is on the way.
    pub staging: u64,
    /// Whether weights on it take the CPU's memory.
    pub shares_memory: bool,
    /// Largest piece of its memory.
    pub piece: u64,
    /// What of streamed clusters is copied to it, if any is.
    pub uploads: Option<UploadShare>,
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
    /// What each item has when nothing has been generated.
    pub budget: Budget,
    /// What weights have until the KV cache needs it.
    pub lent: Lent,
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
    loop {
        // Defaults shrink first: the minimum budget is that of the smallest defaults.
        match plan_for(bundle, request, context, (max_batch, drafts)) {
            Err(Error::Budget(_)) if drafts > 0 => drafts = 0,
            Err(Error::Budget(_)) if request.max_batch.is_none() && max_batch > SMALL_BATCH => {
                max_batch = (max_batch / 2).max(SMALL_BATCH);
            }
            Err(Error::Budget(_)) if request.context.is_none() && context > SMALL_CONTEXT => {
                context = (context / 2).max(SMALL_CONTEXT);
            }
            planned => return planned,
        }
    }
}

/// Positions of the KV cache: those requested, or what the budget allows.
///
/// # Errors
/// More than the model was trained for, or none.
fn context(bundle: &Bundle, request: &MemoryRequest) -> Result<usize, Error> {
    let trained = bundle.meta.network.context_length;
    match request.context {
        Some(asked) if asked > trained => Err(Error::ContextTooLarge { asked, trained }),
        Some(0) => {
            let problem = "0 leaves no room for a token; give at least 2";
            Err(Error::parameter("context", problem))
        }
        Some(asked) => Ok(asked),
        None => Ok(default_context(bundle, request, trained)),
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
    let scored = request.max_logits.min(max_batch);
    let max_logits = scored.max(1 + drafts);
    let more = ((max_logits - scored) * logits_bytes(bundle)) as u64;
    if more > 0 {
        let why = format!("logits of up to {drafts} tokens that are run ahead");
        budget.claim("drafts", more, why);
    }
    let threads = request.threads;
    let least = least_weight_bytes(bundle, threads, request.sparsity);
    let whole = all_pinned_bytes(bundle, request.sparsity);
    let left = budget.remaining();
    let (window, reserved) = upload_window(bundle, request, max_batch, (left, least, whole));
    let weights = request.weights.unwrap_or(left - reserved).min(whole);
    let too_small = Error::WeightMemory {
        asked: weights,
        least,
        threads,
    };
    if weights < least {
        budget.claim("weights", least, "two clusters per core in transit");
        if request.weights.is_none() {
            budget.claim(
                "process",
                PROCESS_SPREAD,
                "margin: it varies from run to run",
            );
        }
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
    let Some(mut residency) = decide(bundle, &wanted) else {
        return Err(too_small);
    };
    if let (Some(window), Some(device)) = (window, request.device) {
        let share = device.uploads.unwrap_or_default();
        let Some(uploads) = Uploads::choose(bundle, &residency, window, share) else {
            // What a device could compute is not streamed: the window's memory is for weights.
            let device = DeviceRequest {
                uploads: None,
                ..device
            };
            let without = MemoryRequest {
                device: Some(device),
                ..*request
            };
            return plan_for(bundle, &without, context, (max_batch, drafts));
        };
        claim_uploads(&mut budget, bundle, (&device, max_batch), uploads.window);
        residency.on_device.uploads = Some(uploads);
    }
    let (lent, residency) = lend(
        bundle,
        request,
        (context, max_batch, &budget),
        (&wanted, residency),
    );
    if lent.bytes() > 0 {
        budget = budget.changed(request.total, KV_CACHE, lent.bytes());
        let later = format_size(lent.bytes());
        let why = format!("{later} more as they are written, which weights have until then");
        budget.claim(KV_CACHE, 0, why);
    }
    claim_weights(&mut budget, whole, &residency, threads);
    budget.check()?;
    Ok(MemoryPlan {
        lent,
        context,
        max_batch,
        max_logits,
        drafts,
        residency,
        budget,
    })
}

/// What weights have of the KV cache until its positions are written, and the residency with it. That is of the same kind
/// as `planned`, the one with a whole KV cache, so that it can become that one step by step.
fn lend(
    bundle: &Bundle,
    request: &MemoryRequest,
    (context, max_batch, fixed): (usize, usize, &Budget),
    (wanted, planned): (&ResidencyRequest, ResidencyPlan),
) -> (Lent, ResidencyPlan) {
    let whole = all_pinned_bytes(bundle, request.sparsity);
    // On a device, copies of the weights would have to give way, too.
    if wanted.weight_bytes >= whole || request.weights.is_some() || request.device.is_some() {
        return (Lent::default(), planned);
    }
    let room = kv_room(bundle, request, (context, max_batch));
    let network = &bundle.meta.network;
    let written = |positions| room.bytes_written(network, request.threads, positions) as u64;
    let window = request.threads * planned.stream_slots * planned.stream_slot_bytes;
    let mut most = whole - wanted.weight_bytes - 1;
    for _ in 0..LENDING_TRIALS {
        let lent = Lent::new(context, most, written);
        let more = ResidencyRequest {
            weight_bytes: wanted.weight_bytes + lent.bytes(),
            stream_window: window,
            ..*wanted
        };
        let decided = decide(bundle, &more).filter(|plan| is_of_the_same_kind(plan, &planned));
        if let Some(residency) = decided {
            let mut drawn = fixed.clone();
            claim_weights(&mut drawn, whole, &residency, request.threads);
            let giving_way = (Copies::default(), GivingWay::new(bundle, &residency));
            let nothing = (request.threads, Lent::default());
            if LiveBudget::new(drawn, &residency, giving_way, nothing).least() <= request.total {
                return (lent, residency);
            }
        }
        most = lent.bytes() / 2;
    }
    (Lent::default(), planned)
}

/// Whether the same things give way in both plans, through the same stream window.
fn is_of_the_same_kind(a: &ResidencyPlan, b: &ResidencyPlan) -> bool {
    let kind = |plan: &ResidencyPlan| {
        let caches = (plan.neuron_cache.slots > 0, plan.expert_cache.cells > 0);
        (plan.stream_slots, plan.stream_slot_bytes, caches)
    };
    kind(a) == kind(b)
}

/// Bytes of keys and values of so many positions, in steps of so many tokens.
fn kv_bytes(bundle: &Bundle, request: &MemoryRequest, sizes: (usize, usize)) -> u64 {
    let room = kv_room(bundle, request, sizes);
    room.bytes(&bundle.meta.network, request.threads) as u64
}

/// Bytes of keys and values that the last of `context` tokens goes through.
pub(crate) fn kv_bytes_read(bundle: &Bundle, request: &MemoryRequest, context: usize) -> u64 {
    let room = kv_room(bundle, request, (context, LARGE_BATCH));
    room.bytes_read(&bundle.meta.network, request.threads) as u64
}

fn kv_room(
    bundle: &Bundle,
    request: &MemoryRequest,
    (context, max_batch): (usize, usize),
) -> KvRoom {
    let network = &bundle.meta.network;
    KvRoom::new(network, request.kv_type, context, max_batch, 1)
}

/// Bytes of recurrent states: of a sequence, and a snapshot.
pub(crate) fn state_bytes(bundle: &Bundle, request: &MemoryRequest) -> u64 {
    let network = &bundle.meta.network;
    let room = KvRoom::new(network, request.kv_type, 1, 1, 1);
    Recurrent::bytes(network, request.threads, &room) as u64
}

/// The largest default context whose KV cache takes at most an eighth of the budget.
fn default_context(bundle: &Bundle, request: &MemoryRequest, trained: usize) -> usize {
    let mut context = DEFAULT_CONTEXT;
    let batch = request.max_batch.unwrap_or(LARGE_BATCH);
    while context > SMALL_CONTEXT && kv_bytes(bundle, request, (context, batch)) > request.total / 8
    {
        context /= 2;
    }
    let enough = request
        .context_hint
        .and_then(|n| n.checked_next_multiple_of(SMALL_CONTEXT));
    let enough = enough.unwrap_or(usize::MAX);
    context.min(trained).min(enough)
}

/// The largest default batch whose buffers take at most their share of the budget: large batches read streamed weights
/// less often per prompt token.
fn default_batch(bundle: &Bundle, request: &MemoryRequest, context: usize) -> usize {
    let (mut batch, share) = match bundle.meta.has_experts() {
        true => (LARGE_EXPERT_BATCH, EXPERT_BATCH_SHARE),
        false => (LARGE_BATCH, BATCH_SHARE),
    };
    while batch > SMALL_BATCH && scratch(bundle, request, batch) > request.total / share {
        batch /= 2;
    }
    batch.min(context)
}

/// Most tokens of a draft, at most `wanted`: with the last token they are a batch, and their logits are to be few beside
/// the budget. None if a token cannot be taken back: a recurrent state is the only one of its kind.
fn longest_drafts(bundle: &Bundle, request: &MemoryRequest, wanted: usize, batch: usize) -> usize {
    if bundle.meta.network.is_recurrent() {
        return 0;
    }
    let fit = request.total / DRAFT_SHARE / logits_bytes(bundle).max(1) as u64;
    wanted.min(batch.saturating_sub(1)).min(fit as usize)
}

/// Bytes of one token's logits.
fn logits_bytes(bundle: &Bundle) -> usize {
    bundle.meta.network.vocab_size * size_of::<f32>()
}

fn scratch(bundle: &Bundle, request: &MemoryRequest, batch: usize) -> u64 {
    let logits = request.max_logits.min(batch);
    let rank = predictor_rank(bundle, request.sparsity == Sparsity::Predicted);
    scratch_bytes(bundle, request.threads, (batch, logits), rank) as u64
}

fn fixed_items(
    bundle: &Bundle,
    request: &MemoryRequest,
    context: usize,
    max_batch: usize,
) -> Budget {
    let network = &bundle.meta.network;
    let mut budget = Budget::new(request.total);
    budget.claim(
        "process",
        request.process + RUNTIME_BYTES,
        "program, tokenizer and directory as measured, plus threads and queues",
    );
    let kv = kv_bytes(bundle, request, (context, max_batch));
    budget.claim(
        KV_CACHE,
        kv,
        format!("{context} positions in {}", request.kv_type),
    );
    let states = state_bytes(bundle, request);
    if states > 0 {
        let why = "of one sequence, and a snapshot of an earlier position";
        budget.claim("recurrent_states", states, why);
    }
    let why = format!("batches of {max_batch} tokens on {} cores", request.threads);
    budget.claim("scratch", scratch(bundle, request, max_batch), why);
    let sampling = (network.vocab_size * 16) as u64;
    budget.claim(
        "sampling",
        sampling,
        format!("candidates out of {} tokens", network.vocab_size),
    );
    budget.claim(
        "prompt_text",
        request.encoding.bytes(context),
        format!("encoding up to {context} tokens piece by piece"),
    );
    if request.converses {
        budget.claim(
            "conversation",
            chat_bytes(context),
            "messages, and what the chat template makes of them",
        );
    }
    let tables = [TensorId::TokenEmbedding, TensorId::TokenInputs];
    let of_tables: usize = tables.map(|t| row_buffer_bytes(bundle, t)).iter().sum();
    // Token inputs are decoded between the buffers and their board.
    let each = of_tables + network.inputs_width() * size_of::<f32>();
    let buffers = row_buffers(max_batch);
    let why = format!("{buffers} buffers for rows that are read on demand");
    budget.claim("embedding_rows", (buffers * each) as u64, why);
    // One word per neuron: where it is in the cache.
    if request.sparsity != Sparsity::Dense {
        let neurons = network.n_neurons();
        let words = (neurons * size_of::<u32>()) as u64;
        budget.claim("neuron_index", words, format!("{neurons} neurons"));
    }
    if request.counts > 0 {
        budget.claim(
            "profile_counts",
            request.counts,
            "how often each neuron is wanted",
        );
    }
    if request.draft_model > 0 {
        let why = "the whole model that drafts, with its own KV cache and buffers";
        budget.claim("draft_model", request.draft_model, why);
    }
    claim_device(&mut budget, bundle, request, max_batch);
    if request.trace > 0 {
        budget.claim("trace", request.trace, "records of all trace lanes");
    }
    budget.claim(
        "huge_page_slack",
        HUGE_PAGE_SLACK,
        "one page that may be committed unused",
    );
    budget
}

/// What a device, if there is one, takes whatever it computes.
fn claim_device(budget: &mut Budget, bundle: &Bundle, request: &MemoryRequest, max_batch: usize) {
    let Some(device) = &request.device else {
        return;
    };
    budget.claim(
        "device_runtime",
        device.runtime,
        "the device's driver, as measured",
    );
    let logits = request.max_logits.min(max_batch).max(1 + request.drafts);
    let boards = device_boards(bundle, (max_batch, logits), request.sparsity);
    // Where memory is shared, the driver's own copies are in it.
    let copies = 1 + u64::from(device.shares_memory);
    budget.claim(
        "device_boards",
        copies * boards,
        "input and results of a device's jobs",
    );
    budget.claim(
        "device_staging",
        device.staging,
        "what the device's driver has on the way",
    );
}

/// The window for streamed clusters on a device, if weights are streamed and copied to one, and its bytes; `left` is what
/// is left for it and the weights, of which at least `least` are needed, and `whole` are all.
fn upload_window(
    bundle: &Bundle,
    request: &MemoryRequest,
    max_batch: usize,
    (left, least, whole): (u64, u64, u64),
) -> (Option<UploadWindow>, u64) {
    // Smaller batches would copy nothing.
    let pays = |share: UploadShare| share.part > 0.0 && max_batch >= share.from_tokens;
    let uploads = |device: &DeviceRequest| device.uploads.is_some_and(pays);
    let Some(device) = request.device.filter(uploads) else {
        return (None, 0);
    };
    if request.weights.unwrap_or(left) >= whole {
        return (None, 0);
    }
    let room = match request.weights {
        Some(weights) => left.saturating_sub(weights),
        None => left.saturating_sub(least).min(left / UPLOADS_SHARE),
    };
    let costs = upload_costs(bundle, max_batch, device.shares_memory);
    let window = UploadWindow::largest(bundle, request.threads, room, (device.piece, costs));
    (window, window.map_or(0, |window| window.bytes(costs)))
}

fn claim_uploads(
    budget: &mut Budget,
    bundle: &Bundle,
    (device, max_batch): (&DeviceRequest, usize),
    window: UploadWindow,
) {
    let costs = upload_costs(bundle, max_batch, device.shares_memory);
    let places = match device.shares_memory {
        true => window.device_bytes(),
        false => 0,
    };
    let why = format!(
        "{} places on each of {} cores for streamed clusters, in memory that the device shares",
        window.places, window.threads
    );
    budget.claim("device_window", places, why);
    let way = "jobs of streamed clusters, and clusters on their way to the device";
    budget.claim("device_staging", window.bytes(costs) - places, way);
}

fn claim_weights(budget: &mut Budget, whole: u64, plan: &ResidencyPlan, threads: usize) {
    let share = plan.pinned_bytes as f64 / whole.max(1) as f64 * 100.0;
    let why = format!("{share:.0}% of {}", format_size(whole));
    budget.claim("resident_weights", plan.pinned_bytes, why);
    let window = (threads * plan.stream_slots * plan.stream_slot_bytes) as u64;
    if window > 0 {
        let why = format!("{} buffers on each of {threads} cores", plan.stream_slots);
        budget.claim("stream_window", window, why);
    }
    let experts = plan.expert_cache;
    if experts.cells > 0 {
        let why = format!("{} clusters on each of {threads} cores", experts.cells);
        let bytes = (threads * experts.bytes_per_core()) as u64;
        budget.claim("expert_cache", bytes, why);
    }
    let cache = plan.neuron_cache;
    if cache.slots > 0 {
        let why = format!("{} neurons on each of {threads} cores", cache.slots);
        budget.claim(
            "neuron_cache",
            (threads * cache.bytes_per_core()) as u64,
            why,
        );
    }
}
