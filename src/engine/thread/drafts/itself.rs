//! A model that is streamed drafts for itself: it runs without what would have to be read. Each token's own step reads
//! all of that, and checks what was drafted meanwhile: the disk reads on while it drafts. (Zhang et al., "Draft &
//! Verify", arXiv:2309.08168, leave out layers for the same reason.)

use std::time::Instant;

use forebay_models::sampler::argmax;

use super::record::Record;
use crate::engine::thread::evaluator::Evaluator;
use crate::error::Error;

/// Writes what the model would say after `text`, of which all but the last token were run, to `drafted`.
///
/// # Errors
/// A fault.
pub(super) fn draft(
    evaluator: &mut Evaluator,
    text: &[u32],
    drafted: &mut [u32],
    record: &mut Record,
) -> Result<(), Error> {
    let before = evaluator.position();
    let mut newest = text.last().copied().unwrap_or_default();
    let mut say = |to: &mut u32| {
        let start = Instant::now();
        evaluator.guess(newest)?;
        newest = argmax(&evaluator.logits);
        *to = newest;
        record.took(start.elapsed().as_nanos() as f64);
        Ok(())
    };
    let said = drafted.iter_mut().try_for_each(&mut say);
    // Also after a fault: what these tokens have left is not what the model would have.
    evaluator.take_back(before);
    said
}
