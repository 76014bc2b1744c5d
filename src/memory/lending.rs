//! What of the KV cache's memory weights have until it is written.

use forebay_models::bundle::Bundle;
use forebay_plans::budget::Budget;
use forebay_plans::giving_way::GivingWay;
use forebay_plans::residency::{ResidencyPlan, ResidencyRequest, all_pinned_bytes, decide};
use forebay_plans::size::format_size;

use super::MemoryRequest;
use super::items::{claim_weights, kv_room};
use crate::engine::{Copies, LiveBudget};
use crate::lent::{KV_CACHE, Lent};

/// How often less of the KV cache is lent than the last time, if that much cannot be given back.
const LENDING_TRIALS: usize = 3;

/// What weights have of the KV cache until its positions are written, and the residency with it. That is of the same kind
/// as `planned`, the one with a whole KV cache, so that it can become that one step by step.
pub(super) fn lend(
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

/// Takes from the KV cache's claim what is `lent`.
pub(super) fn claim_lent(budget: &mut Budget, total: u64, lent: &Lent) {
    if lent.bytes() > 0 {
        *budget = budget.changed(total, KV_CACHE, lent.bytes());
        let later = format_size(lent.bytes());
        let why = format!("{later} more as they are written, which weights have until then");
        budget.claim(KV_CACHE, 0, why);
    }
}
