//! At rest every buffer is free, nothing is leased and no cluster is in flight. If the I/O actor has died, nobody
//! waits, and what it did not have is all there, once.

use forebay_actors::core::Census;
use forebay_stages::gio::WindowTally;

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
    let shared = world.steps.shared();
    let gone = shared.device.as_ref().is_some_and(|d| d.account.is_gone());
    match gone {
        // What it had has been given back.
        true => world.check_device(0),
        false => Ok(()),
    }
}

fn leftover(first: &Census, now: &Census) -> Option<&'static str> {
    let (window, store) = (now.window, now.store);
    let preload = now.preload.unwrap_or_default();
    let complaints = [
        (now.clusters != 0, "a cluster is in flight"),
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
            store.lends && !now.prompts,
            "what a prompt borrowed has not come back",
        ),
        (
            store.lends && preload.free + preload.here < 2,
            "some borrowed buffers are missing",
        ),
        (
            !store.lends && store.bytes != first.store.bytes,
            "the cache's memory is not whole",
        ),
        (
            store.buffers != first.store.buffers,
            "a read buffer is missing",
        ),
        (store.reads + store.due != 0, "a neuron read is in flight"),
        (store.blocked != 0, "a cluster waits for slots"),
        (!store.lends && store.holds != 0, "a neuron is still leased"),
        (
            now.cells != first.cells,
            "a cell of the expert cache is not back",
        ),
        (now.jobs != first.jobs, "a job for the device is not back"),
        (
            now.cells_held != 0,
            "a cell of the expert cache is still held",
        ),
        (
            store.cached + store.vacant + store.holds != store.slots,
            "a slot of the cache is lost, or there twice",
        ),
    ];
    complaints.iter().find(|c| c.0).map(|c| c.1)
}

/// What is left when the I/O actor has died: every core has ended, and has each of its buffers once, or gave it to a
/// read that never came back.
///
/// # Errors
/// Somebody waits for ever, or has lost or doubled something.
pub fn check_wreck(world: &mut World) -> Result<(), String> {
    if !world.all_finished() {
        let dump = world.dump();
        return Err(format!("a core waits for the dead I/O actor\n{dump}"));
    }
    for (rank, (first, now)) in world.censuses().into_iter().enumerate() {
        let all = |w: WindowTally| w.free + w.here + w.coming + w.in_use;
        let complaints = [
            (
                !now.changing && all(now.window) != all(first.window) + now.borrowed,
                "a buffer of the window is lost, or there twice",
            ),
            (
                now.store.buffers + now.store.reads != first.store.buffers,
                "a read buffer is lost, or there twice",
            ),
            (
                now.store.cached + now.store.vacant > now.store.slots,
                "a slot of the cache is there twice",
            ),
        ];
        if let Some((_, what)) = complaints.iter().find(|c| c.0) {
            return Err(format!(
                "WRECK of core {rank}: {what}\nat the start: {first:?}\nat its end: {now:?}"
            ));
        }
    }
    Ok(())
}
