//! Sizes that nobody asked for: context, batch and drafts by budget.

use forebay_models::bundle::Bundle;

use super::MemoryRequest;
use super::items::{kv_bytes, logits_bytes, scratch};

/// Default context if memory is plentiful.
pub(crate) const DEFAULT_CONTEXT: usize = 4096;
/// Smallest default context.
pub(super) const SMALL_CONTEXT: usize = 256;

/// Largest default batch.
pub(super) const LARGE_BATCH: usize = 128;
/// The same of models with experts: each is read once per batch, and a token uses few of them.
const LARGE_EXPERT_BATCH: usize = 512;
/// Buffers of a default batch take at most this part of the budget, most of it only while a prompt is read; more where
/// each batch reads most experts.
const BATCH_SHARE: u64 = 16;
const EXPERT_BATCH_SHARE: u64 = 6;
/// Smallest default batch.
pub(super) const SMALL_BATCH: usize = 8;
/// Logits of drafted tokens take at most this part of the budget.
const DRAFT_SHARE: u64 = 64;

/// The largest default context whose KV cache takes at most an eighth of the budget; more if more are needed.
pub(super) fn default_context(bundle: &Bundle, request: &MemoryRequest, trained: usize) -> usize {
    let needed = request.context_needed.min(trained);
    let least = needed.next_multiple_of(SMALL_CONTEXT).max(SMALL_CONTEXT);
    let mut context = DEFAULT_CONTEXT.max(least);
    let batch = request.max_batch.unwrap_or(LARGE_BATCH);
    while context > least && kv_bytes(bundle, request, (context, batch)) > request.total / 8 {
        context = (context / 2).max(least);
    }
    let enough = request
        .context_hint
        .and_then(|n| n.checked_next_multiple_of(SMALL_CONTEXT));
    let enough = enough.unwrap_or(usize::MAX);
    context.min(trained).min(enough)
}

/// The largest default batch whose buffers take at most their share of the budget: large batches read streamed weights
/// less often per prompt token.
pub(super) fn default_batch(bundle: &Bundle, request: &MemoryRequest, context: usize) -> usize {
    let (mut batch, share) = match bundle.meta.has_experts() {
        true => (LARGE_EXPERT_BATCH, EXPERT_BATCH_SHARE),
        false => (LARGE_BATCH, BATCH_SHARE),
    };
    while batch > SMALL_BATCH && scratch(bundle, request, (batch, batch)) > request.total / share {
        batch /= 2;
    }
    batch.min(context)
}

/// Most tokens of a draft, at most `wanted`: with the last token they are a batch, and their logits are to be few beside
/// the budget. None if a token cannot be taken back: a recurrent state is the only one of its kind.
pub(super) fn longest_drafts(
    bundle: &Bundle,
    request: &MemoryRequest,
    wanted: usize,
    batch: usize,
) -> usize {
    if bundle.meta.network.is_recurrent() {
        return 0;
    }
    let fit = request.total / DRAFT_SHARE / logits_bytes(bundle).max(1) as u64;
    // A model that drafts has no other use.
    let fit = fit.max(u64::from(request.draft_model > 0));
    wanted.min(batch.saturating_sub(1)).min(fit as usize)
}
