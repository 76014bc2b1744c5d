//! What weights have of the KV cache's memory until it is written, and of a step's buffers until a prompt fills them.

use forebay_models::bundle::Bundle;
use forebay_plans::budget::Budget;
use forebay_plans::giving_way::GivingWay;
use forebay_plans::residency::{ResidencyPlan, ResidencyRequest, all_pinned_bytes, decide};
use forebay_plans::size::format_size;

use super::MemoryRequest;
use super::items::{claim_weights, kv_room, scratch};
use crate::lent::{InUse, KV_CACHE, Lent, Loan, PARTS};
use crate::live_budget::{Copies, LiveBudget};

/// How often less is lent than the last time, if that much cannot be given back.
const LENDING_TRIALS: usize = 3;

/// What is lent to weights, and the residency with it. That is of the same kind as `planned`, the one with nothing
/// lent, so that it can become that one step by step.
pub(super) fn lend(
    bundle: &Bundle,
    request: &MemoryRequest,
    (context, (max_batch, drafts), fixed): (usize, (usize, usize), &Budget),
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
    let window = request.threads * planned.stream_bytes_per_core();
    // A generated token and what is drafted after it never need a second part.
    let part = max_batch.div_ceil(PARTS).max(1 + drafts);
    let mut most = whole - wanted.weight_bytes - 1;
    for _ in 0..LENDING_TRIALS {
        let kv = Loan::new((context, context.div_ceil(PARTS)), most, written);
        let rest = most - kv.first();
        let of_step = |tokens| scratch(bundle, request, (max_batch, tokens));
        let lent = Lent {
            kv,
            scratch: Loan::new((max_batch, part), rest, of_step),
        };
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
            let claimed = drawn.claimed();
            let least = LiveBudget::new(drawn, &residency, giving_way, nothing).least();
            // What the loan has become can be given back.
            if least <= request.total && claimed - least >= lent.bytes() {
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

/// Takes from the claims what is `lent`.
pub(super) fn claim_lent(budget: &mut Budget, total: u64, lent: &Lent) {
    for (item, bytes) in lent.items(InUse::FIRST) {
        if bytes > 0 {
            *budget = budget.changed(total, item, bytes);
            let when = if item == KV_CACHE {
                "as they are written"
            } else {
                "in prompts"
            };
            let later = format_size(bytes);
            let why = format!("{later} more {when}, which weights have until then");
            budget.claim(item, 0, why);
        }
    }
}
