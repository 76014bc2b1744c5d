//! Numbers of jobs: who sent a job, and for which layer.

/// The number of the `sent`th job of core 0 for its phases, or of the streamed clusters of core `rank`; for a phase of
/// `layer`.
pub(super) fn number(rank: Option<usize>, layer: usize, sent: u64) -> u64 {
    let sender = rank.map_or(0, |rank| rank as u64 + 1);
    sender << 48 | (layer as u64) << 32 | sent & 0xffff_ffff
}

/// The layer of the job's phase.
pub(super) fn layer_of(id: u64) -> u16 {
    (id >> 32) as u16
}

/// The core whose streamed clusters the job has; `None` if it is that of a phase.
pub(super) fn uploader_of(id: u64) -> Option<usize> {
    (id >> 48).checked_sub(1).map(|rank| rank as usize)
}
