//! The driver's part in reading: embedding rows that are on flash, as the engine looks them up
//! before a step. As many as there are buffers are in flight, and all of them are finished before
//! anything else happens.

use forebay_actors::fault::Fault;
use forebay_models::bundle::{ALIGN, Bundle};
use forebay_models::network::Content;
use forebay_models::panel::PANEL_ROWS;
use forebay_models::tensor::TensorId;
use forebay_plans::residency::Residency;

use crate::generation::{Batch, Ended};
use crate::models::Model;
use crate::world::{Moved, World};

/// Where the rows that are read together with a token's are.
struct Unit {
    start: u64,
    len: usize,
}

/// `None` where the token's row is in memory.
fn unit_of(bundle: &Bundle, residency: &[Residency], token: u32) -> Option<Unit> {
    let (content, rows) = match bundle.meta.network.head.tied {
        true => (Content::Rows(TensorId::TokenEmbedding), PANEL_ROWS),
        false => (Content::Table(TensorId::TokenEmbedding), 1),
    };
    let mut table = bundle.clusters.iter().zip(residency);
    let (entry, kept) = table
        .find(|(e, _)| e.content == content && (e.first..e.first + e.count).contains(&token))
        .expect("every token has a row");
    let table = bundle
        .meta
        .matrix(TensorId::TokenEmbedding)
        .expect("an embedding");
    let len = rows * table.block.row_bytes(table.cols).expect("whole blocks");
    let at = (token - entry.first) as usize / rows * len;
    let start = entry.offset + at as u64;
    (*kept != Residency::Pinned).then_some(Unit { start, len })
}

/// Reads the rows of a step's tokens, and compares them with the file's unless the disk is known to lie.
///
/// # Errors
/// A read failed, or the I/O actor has ended; or a row is wrong, or does not come.
pub fn read_rows(world: &mut World, model: &Model, step: &Batch) -> Result<(), Ended> {
    let shared = std::sync::Arc::clone(world.steps.shared());
    let tokens = &model.tokens[step.position..][..step.n_tokens];
    for wave in tokens.chunks(world.row_buffers.len().max(1)) {
        let mut pending = 0;
        for (id, &token) in wave.iter().enumerate() {
            let Some(unit) = unit_of(&shared.bundle, &shared.plan.residency, token) else {
                continue;
            };
            let Some(slot) = world.row_buffers.pop() else {
                return Err(gone(world));
            };
            let page = unit.start / ALIGN as u64 * ALIGN as u64;
            let len = ((unit.start - page) as usize + unit.len).next_multiple_of(ALIGN);
            world.rows.read(id, page, len, slot);
            pending += 1;
        }
        world.rows.flush();
        while pending > 0 {
            match world.rows.try_done() {
                Some((id, done)) => {
                    pending -= 1;
                    let unit = unit_of(&shared.bundle, &shared.plan.residency, wave[id]);
                    let unit = unit.expect("only those on flash are read");
                    let read = &done.slot[(unit.start - done.offset) as usize..][..unit.len];
                    let right = &model.file[unit.start as usize..][..unit.len];
                    if done.result.is_ok() && !world.disk_lies && read != right {
                        let token = wave[id];
                        return Err(Ended::Wrong(format!("WRONG: row of token {token}")));
                    }
                    if let Err(fault) = done.result {
                        shared.faults.report(Fault::Read {
                            what: "an embedding row".to_string(),
                            offset: done.offset,
                            fault,
                        });
                    }
                    world.row_buffers.push(done.slot);
                }
                None if world.io_is_dead() => return Err(gone(world)),
                None if world.advance()? == Moved::Still => {
                    let dump = world.dump();
                    let what = format!("STALLED: {pending} embedding rows do not come\n{dump}");
                    return Err(Ended::Wrong(what));
                }
                None => {}
            }
        }
    }
    match shared.faults.take() {
        Some(fault) => {
            world.steps.distrust();
            Err(Ended::Failed(fault))
        }
        None => Ok(()),
    }
}

/// What is said where the I/O actor has ended: its cause, once.
fn gone(world: &World) -> Ended {
    let cause = "it has ended".to_string();
    let first = world.steps.shared().faults.take();
    Ended::Failed(first.unwrap_or(Fault::IoStopped { cause }))
}
