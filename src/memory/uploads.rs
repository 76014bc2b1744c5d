//! The window for streamed clusters that are copied to a device.

use forebay_actors::device::upload_costs;
use forebay_models::bundle::Bundle;
use forebay_plans::budget::Budget;
use forebay_plans::residency::ResidencyPlan;
use forebay_plans::uploads::{UploadShare, UploadWindow, Uploads};

use super::{DeviceRequest, MemoryRequest};

/// Copying streamed clusters to a device takes at most this part of the memory for weights: what is pinned is not read.
const UPLOADS_SHARE: u64 = 8;

/// The window for streamed clusters on a device, if weights are streamed and copied to one, and its bytes; `left` is
/// what is left for it and the weights, of which at least `least` are needed, and `whole` are all.
pub(super) fn upload_window(
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

/// Streamed clusters that are copied through the `window`; `None` if that pays for nothing that is streamed: then the
/// window's memory is for weights.
pub(super) fn choose_uploads(
    budget: &mut Budget,
    bundle: &Bundle,
    (device, max_batch, window): (&DeviceRequest, usize, UploadWindow),
    residency: &ResidencyPlan,
) -> Option<Uploads> {
    let share = device.uploads.unwrap_or_default();
    let uploads = Uploads::choose(bundle, residency, window, share)?;
    claim_uploads(budget, bundle, (device, max_batch), uploads.window);
    Some(uploads)
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
