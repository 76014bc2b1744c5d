//! Sizes that nobody asked for: context, batch and drafts by budget.

use forebay_models::bundle::Bundle;

use super::MemoryRequest;
use super::items::{LARGE_BATCH, kv_bytes, logits_bytes, scratch};

/// Default context if memory is plentiful and no more are needed.
const DEFAULT_CONTEXT: usize = 4096;
/// Smallest default context.
pub(super) const SMALL_CONTEXT: usize = 256;

/// The largest default batch of models with experts: each is read once per batch, and a token uses few of them.
const LARGE_EXPERT_BATCH: usize = 512;
/// Buffers of a default batch take at most this part of the budget, most of it only while a prompt is read; more where
/// each batch reads most experts.
const BATCH_SHARE: u64 = 16;
const EXPERT_BATCH_SHARE: u64 = 6;
/// Smallest default batch.
pub(super) const SMALL_BATCH: usize = 8;
/// Logits of drafted tokens take at most this part of the budget.
const DRAFT_SHARE: u64 = 64;

/// The default context if memory is plentiful: as many positions as are `needed`, and no more than are `enough`.
pub(crate) fn ample_context(needed: usize, enough: Option<usize>) -> usize {
    let rounded = |n: usize| n.checked_next_multiple_of(SMALL_CONTEXT);
    let needed = rounded(needed).unwrap_or(usize::MAX);
    let enough = enough.and_then(rounded).unwrap_or(usize::MAX);
    DEFAULT_CONTEXT.max(needed).min(enough)
}

/// The longest default context, however much memory there is.
pub(super) fn longest_context(request: &MemoryRequest, trained: usize) -> usize {
    let needed = request.context_needed.min(trained);
    ample_context(needed, request.context_hint).min(trained)
}

/// The largest default context whose KV cache takes at most an eighth of the budget; more if more are needed.
pub(super) fn default_context(bundle: &Bundle, request: &MemoryRequest, trained: usize) -> usize {
    let needed = request.context_needed.min(trained);
    let least = needed.next_multiple_of(SMALL_CONTEXT).max(SMALL_CONTEXT);
    let mut context = ample_context(needed, None);
    let batch = request.max_batch.unwrap_or(LARGE_BATCH);
    while context > least && kv_bytes(bundle, request, (context, batch)) > request.total / 8 {
        context = (context / 2).max(least);
    }
    context.min(longest_context(request, trained))
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

/// Most tokens of a draft, at most `wanted`: with the last token they are a batch, and their logits are to be few
/// beside the budget. None if a token cannot be taken back: a recurrent state is the only one of its kind.
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

#[cfg(test)]
mod tests {
    use super::ample_context;

    #[test]
    fn a_context_is_as_long_as_is_needed_and_no_longer_than_is_enough() {
        let cases = [
            (0, None, 4096),
            (5000, None, 5120),
            (5000, Some(6000), 5120),
            (0, Some(10), 256),
            (usize::MAX, None, usize::MAX),
            (0, Some(usize::MAX), 4096),
        ];
        for (needed, enough, context) in cases {
            assert_eq!(
                ample_context(needed, enough),
                context,
                "{needed} {enough:?}"
            );
        }
    }
}
