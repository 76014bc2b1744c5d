//! What a run takes beside its weights, item by item.

use forebay_actors::core::scratch_bytes_for;
use forebay_actors::device::boards_bytes;
use forebay_actors::memory::{row_buffer_bytes, row_buffers};
use forebay_actors::shared::predictor_rank;
use forebay_models::bundle::Bundle;
use forebay_models::tensor::TensorId;
use forebay_plans::budget::Budget;
use forebay_plans::residency::{ResidencyPlan, Sparsity};
use forebay_plans::size::format_size;
use forebay_stages::attention::KvRoom;
use forebay_stages::recurrent::Recurrent;

use super::MemoryRequest;
use super::conversation::chat_bytes;
use crate::lent::{KV_CACHE, SCRATCH};
use crate::token_rows::TokenRows;

/// Largest default batch.
pub(super) const LARGE_BATCH: usize = 128;

/// Memory that start-up and steps take beyond what is itemised: thread stacks, the ring, message queues, the
/// allocator's slack, and the program's own pages when they are first run. Up to 4.5 MiB were measured.
const RUNTIME_BYTES: u64 = 6 << 20;
/// What a cluster takes in programs, in lists of what is pinned or cached and where, and while those are made.
const CLUSTER_BYTES: u64 = 64;
/// Memory that one byte of page tables describes. Huge pages have tables, too, in case they are split.
const TABLE_REACH: u64 = 512;
/// A huge page may be committed although only its first bytes are used.
const HUGE_PAGE_SLACK: u64 = 2 << 20;

/// Bytes of one token's logits.
pub(super) fn logits_bytes(bundle: &Bundle) -> usize {
    bundle.meta.network.vocab_size * size_of::<f32>()
}

/// Bytes of the buffers of steps of up to `batch` tokens, as long as none has more than `tokens`.
pub(super) fn scratch(
    bundle: &Bundle,
    request: &MemoryRequest,
    (batch, tokens): (usize, usize),
) -> u64 {
    let sizes = (batch, request.max_logits.min(batch), tokens);
    let rank = predictor_rank(bundle, request.sparsity == Sparsity::Predicted);
    scratch_bytes_for(bundle, request.threads, sizes, rank) as u64
}

pub(super) fn fixed_items(
    bundle: &Bundle,
    request: &MemoryRequest,
    context: usize,
    max_batch: usize,
) -> Budget {
    let network = &bundle.meta.network;
    let mut budget = Budget::new(request.total);
    let clusters = bundle.clusters.len() as u64;
    budget.claim(
        "process",
        request.process + RUNTIME_BYTES + clusters * CLUSTER_BYTES,
        "program, tokenizer and directory as measured, plus threads, queues and lists of clusters",
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
    let bytes = scratch(bundle, request, (max_batch, max_batch));
    budget.claim(SCRATCH, bytes, why);
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
    claim_rows(&mut budget, bundle, max_batch);
    // One word per neuron: where it is in the cache.
    if request.sparsity != Sparsity::Dense {
        let neurons = network.n_neurons();
        let words = (neurons * size_of::<u32>()) as u64;
        budget.claim("neuron_index", words, format!("{neurons} neurons"));
    }
    claim_records(&mut budget, request);
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

/// Claims the page tables of all that has been claimed and of so many bytes of weights, as far as there is room for
/// more than the `least`: control groups count them.
pub(super) fn claim_page_tables(budget: &mut Budget, (least, weights): (u64, u64)) {
    let mapped = budget.claimed() + weights.min(budget.remaining()).max(least);
    let why = "8 bytes for each 4 KiB of memory";
    budget.claim("page_tables", mapped.div_ceil(TABLE_REACH), why);
}

/// Claims what is recorded of the text.
fn claim_records(budget: &mut Budget, request: &MemoryRequest) {
    if request.counts > 0 {
        let why = "how often each neuron is wanted";
        budget.claim("profile_counts", request.counts, why);
    }
    if request.observer > 0 {
        let why = "what an observer records";
        budget.claim("observer", request.observer, why);
    }
}

/// Claims what rows of tables take on their way to the cores.
fn claim_rows(budget: &mut Budget, bundle: &Bundle, max_batch: usize) {
    let tables = [TensorId::TokenEmbedding, TensorId::TokenInputs];
    let of_tables: usize = tables.map(|t| row_buffer_bytes(bundle, t)).iter().sum();
    let buffers = row_buffers(max_batch);
    let decoded = TokenRows::bytes(&bundle.meta.network, max_batch, buffers);
    let why = format!("{buffers} buffers for rows that are read on demand, and a batch's rows");
    budget.claim(
        "embedding_rows",
        (buffers * of_tables + decoded) as u64,
        why,
    );
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
    let steps = (max_batch, logits);
    let rank = predictor_rank(bundle, request.sparsity == Sparsity::Predicted);
    let boards = boards_bytes(bundle, steps, rank, device.shares_memory);
    budget.claim(
        "device_boards",
        boards,
        "input and results of a device's jobs",
    );
    budget.claim(
        "device_staging",
        device.staging,
        "what the device's driver has on the way",
    );
}

pub(super) fn claim_weights(budget: &mut Budget, whole: u64, plan: &ResidencyPlan, threads: usize) {
    // Tables may be pinned besides.
    let whole = whole.max(plan.pinned_bytes);
    let share = plan.pinned_bytes as f64 / whole.max(1) as f64 * 100.0;
    let why = format!("{share:.0}% of {}", format_size(whole));
    budget.claim("resident_weights", plan.pinned_bytes, why);
    let window = (threads * plan.stream_bytes_per_core()) as u64;
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

/// Bytes of keys and values of so many positions, in steps of so many tokens.
pub(super) fn kv_bytes(bundle: &Bundle, request: &MemoryRequest, sizes: (usize, usize)) -> u64 {
    let room = kv_room(bundle, request, sizes);
    room.bytes(&bundle.meta.network, request.threads) as u64
}

/// Bytes of keys and values that the last of `context` tokens goes through.
pub(crate) fn kv_bytes_read(bundle: &Bundle, request: &MemoryRequest, context: usize) -> u64 {
    let room = kv_room(bundle, request, (context, LARGE_BATCH));
    room.bytes_read(&bundle.meta.network, request.threads) as u64
}

pub(super) fn kv_room(
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
