//! Numbers of jobs: who sent a job, and for which layer.

/// Who sends a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// Core 0, for a phase.
    Phases,
    /// The core of this rank, with its streamed clusters.
    Clusters(usize),
    /// The core of this rank, for its attention.
    Attention(usize),
}

/// The number of the `sent`th job of a sender, for a phase of `layer`.
pub(super) fn number(sender: Sender, layer: usize, sent: u64) -> u64 {
    let sender = match sender {
        Sender::Phases => 0,
        Sender::Clusters(rank) => 1 + 2 * rank as u64,
        Sender::Attention(rank) => 2 + 2 * rank as u64,
    };
    sender << 48 | (layer as u64) << 32 | sent & 0xffff_ffff
}

/// The layer of the job's phase.
pub(super) fn layer_of(id: u64) -> u16 {
    (id >> 32) as u16
}

/// Who sent it.
pub(super) fn sender_of(id: u64) -> Sender {
    let sender = (id >> 48) as usize;
    match sender {
        0 => Sender::Phases,
        _ if sender % 2 == 1 => Sender::Clusters(sender / 2),
        _ => Sender::Attention(sender / 2 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_tells_its_sender_and_layer() {
        let ranks = [0, 1, 15, 200];
        let of_ranks = ranks.map(|rank| [Sender::Clusters(rank), Sender::Attention(rank)]);
        let senders = of_ranks.into_iter().flatten().chain([Sender::Phases]);
        for (sender, layer) in senders.zip(0..) {
            let id = number(sender, layer, u64::from(u32::MAX) + 7);
            assert_eq!((sender_of(id), layer_of(id)), (sender, layer as u16));
        }
    }
}
