//! What a device takes that attends in prompts.

use forebay_actors::device::AttentionCosts;
use forebay_models::bundle::Bundle;

use super::items::kv_room;
use super::{DeviceRequest, MemoryRequest};

/// Attention on a device takes at most this part of the memory for weights: what is pinned is not read.
const ATTENTION_SHARE: u64 = 8;

impl DeviceRequest {
    /// Bytes of the process's memory: copies of keys and values, and all else that attention takes.
    pub fn attention_bytes(&self, costs: &AttentionCosts) -> (u64, u64) {
        match self.shares_memory {
            true => (costs.copies, costs.jobs + costs.buffers),
            false => (0, costs.jobs),
        }
    }
}

/// Bytes that are left for a device's attention; `left` is what is left for it and the weights, of which at least
/// `least` are needed, and `whole` are all. None if it takes more than its part, or only because of it not all weights
/// would be in memory.
pub(super) fn for_attention(
    bundle: &Bundle,
    request: &MemoryRequest,
    (context, max_batch): (usize, usize),
    (left, least, whole): (u64, u64, u64),
) -> u64 {
    let Some(device) = request.device.filter(|device| device.attends) else {
        return 0;
    };
    let weights = match request.weights {
        Some(weights) => weights,
        None if left >= whole => whole,
        None => least,
    };
    let room = left.saturating_sub(weights).min(left / ATTENTION_SHARE);
    let kv = kv_room(bundle, request, (context, max_batch));
    let costs = AttentionCosts::of((&bundle.meta.network, &kv), request.threads, max_batch);
    let (copies, others) = costs.map_or((0, 0), |costs| device.attention_bytes(&costs));
    match copies + others <= room {
        true => copies + others,
        false => 0,
    }
}
