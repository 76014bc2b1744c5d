//! Commits memory beside the thread that has reads fill it.
//!
//! The system clears each page when it is first touched. For a read that touches them first, the thread that submits it
//! does so: at 8 GB/s where all is well, and at less than one where a hypervisor has yet to find the memory. A fast
//! disk would wait for that.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Builder};

use forebay_queues::slab::Span;

/// For fewer bytes, threads are not worth starting.
const WORTH: usize = 64 << 20;

/// Stack of a thread that only makes system calls.
const STACK: usize = 64 << 10;

/// Does `work`, which fills `spans` in about their order, while `threads` threads commit them. What they have not
/// reached when it is done is left alone.
pub fn beside<R>(spans: &[Span], threads: usize, work: impl FnOnce() -> R) -> R {
    let bytes: usize = spans.iter().map(Span::len).sum();
    if bytes < WORTH {
        return work();
    }
    let next = AtomicUsize::new(0);
    let commit = || {
        while let Some(span) = spans.get(next.fetch_add(1, Ordering::Relaxed)) {
            span.commit();
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            let thread = Builder::new().name("forebay-commit".into());
            // Without the thread, the reads do all of it.
            let _ = thread.stack_size(STACK).spawn_scoped(scope, commit);
        }
        let done = work();
        next.store(spans.len(), Ordering::Relaxed);
        done
    })
}

#[cfg(test)]
mod tests {
    use forebay_queues::slab::{PAGE, Slab};

    use super::*;

    #[test]
    fn what_is_written_meanwhile_stays() {
        let mut slab = Slab::new(2 * WORTH).expect("memory");
        let pieces = 2 * WORTH / (64 * PAGE);
        let mut slots: Vec<_> = (0..pieces)
            .map(|_| slab.carve(64 * PAGE).expect("room"))
            .collect();
        let spans: Vec<Span> = slots.iter().map(|slot| slot.span()).collect();
        let filled = beside(&spans, 2, || {
            for (i, slot) in slots.iter_mut().enumerate().rev() {
                slot.fill(i as u8);
            }
            slots.len()
        });
        assert_eq!(filled, pieces);
        for (i, slot) in slots.iter().enumerate() {
            assert!(slot.iter().all(|&byte| byte == i as u8), "piece {i}");
        }
    }
}
