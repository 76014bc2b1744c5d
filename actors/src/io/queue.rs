//! Waiting requests of one priority: first in, first out per client, with clients in turn.

use std::collections::VecDeque;

use super::op::ReadOp;

/// Requests of one priority. Clients take turns, so that one with many requests does not starve others.
#[derive(Debug)]
pub(super) struct FairQueue {
    clients: Vec<VecDeque<ReadOp>>,
    next: usize,
    len: usize,
    capacity: usize,
}

impl FairQueue {
    /// A queue of at most `capacity` requests of all clients together; allocates once.
    pub(super) fn new(clients: usize, capacity: usize) -> Self {
        Self {
            clients: (0..clients)
                .map(|_| VecDeque::with_capacity(capacity))
                .collect(),
            next: 0,
            len: 0,
            capacity,
        }
    }

    /// Whether another request fits.
    pub(super) fn has_room(&self) -> bool {
        self.len < self.capacity
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a request to its client's queue.
    ///
    /// # Errors
    /// Gives the request of an unknown client back.
    pub(super) fn push(&mut self, op: ReadOp) -> Result<(), ReadOp> {
        match self.clients.get_mut(usize::from(op.client)) {
            Some(row) => row.push_back(op),
            None => return Err(op),
        }
        self.len += 1;
        Ok(())
    }

    /// The oldest request of the client whose turn it is.
    pub(super) fn pop(&mut self) -> Option<ReadOp> {
        if self.len == 0 {
            return None;
        }
        let count = self.clients.len();
        for step in 0..count {
            let client = (self.next + step) % count;
            if let Some(op) = self.clients[client].pop_front() {
                self.next = (client + 1) % count;
                self.len -= 1;
                return Some(op);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_queues::slab::{PAGE, Slab};

    #[test]
    fn clients_take_turns_and_keep_their_order() {
        let mut slab = Slab::new(8 * PAGE).expect("small mapping");
        let mut queue = FairQueue::new(3, 7);
        let mut request = |client, tag| ReadOp {
            client,
            tag,
            offset: 0,
            len: 4096,
            slot: slab.carve(PAGE).expect("a page"),
            slot_offset: 0,
        };
        for (client, tag) in [(0, 1), (0, 2), (0, 3), (2, 4), (2, 5), (1, 6)] {
            queue.push(request(client, tag)).expect("known client");
        }
        assert!(queue.has_room());
        queue.push(request(1, 7)).expect("known client");
        assert!(!queue.has_room());
        assert!(queue.push(request(3, 8)).is_err());
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop())
            .map(|op| op.tag)
            .collect();
        assert_eq!(order, [1, 6, 4, 2, 7, 5, 3]);
        assert!(queue.is_empty());
    }
}
