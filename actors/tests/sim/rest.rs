//! At rest every buffer is at home, nothing is leased and no cluster is under way.

use forebay_actors::decode::Census;

use crate::world::World;

/// Compares each core's census with that of its start.
///
/// # Errors
/// What is missing or left over.
pub fn check_rest(world: &mut World) -> Result<(), String> {
    for (rank, (first, now)) in world.censuses().into_iter().enumerate() {
        if let Some(what) = leftover(&first, &now) {
            return Err(format!(
                "LEAK on core {rank}: {what}\nat the start: {first:?}\nat rest: {now:?}"
            ));
        }
    }
    Ok(())
}

fn leftover(first: &Census, now: &Census) -> Option<&'static str> {
    let (window, store) = (now.window, now.store);
    let preload = now.preload.unwrap_or_default();
    let complaints = [
        (now.clusters != 0, "a cluster is under way"),
        (
            window.coming + window.in_use != 0,
            "a window's buffer is in use",
        ),
        (
            window.free + window.here != first.window.free + now.borrowed,
            "the window's buffers are not all there",
        ),
        (
            preload.coming + preload.in_use != 0,
            "a preload buffer is in use",
        ),
        (
            !store.lends && preload.free + preload.here != 0,
            "a buffer was not given back to the cache",
        ),
        (
            store.lends && preload.free + preload.here < 2,
            "the lent buffers are not all there",
        ),
        (
            !store.lends && store.bytes != first.store.bytes,
            "the cache's memory is not whole",
        ),
        (
            store.buffers != first.store.buffers,
            "a read buffer is missing",
        ),
        (store.reads + store.due != 0, "a neuron read is under way"),
        (store.blocked != 0, "a cluster waits for slots"),
        (!store.lends && store.holds != 0, "a neuron is still leased"),
        (
            store.cached + store.vacant + store.holds != store.slots,
            "a slot of the cache is lost, or there twice",
        ),
    ];
    complaints.iter().find(|c| c.0).map(|c| c.1)
}
