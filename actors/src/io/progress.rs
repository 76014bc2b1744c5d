//! What a system call's result means for a read: finished, or to be continued.

use super::op::{ALIGNMENT, FaultKind};

/// Interruptions (`EINTR`, `EAGAIN`) tolerated per read: usually the next attempt succeeds, so many in a row are a
/// fault of the system.
const MAX_INTERRUPTIONS: u8 = 100;

/// Progress of one read.
#[derive(Debug)]
pub(super) struct Progress {
    wanted: u32,
    got: u32,
    interruptions: u8,
}

/// What to do next with a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is over.
    Finished(Result<(), FaultKind>),
    /// Continue from [`Progress::resume_at`].
    Again,
}

impl Progress {
    /// A read that is complete with `wanted` bytes.
    pub(super) fn new(wanted: u32) -> Self {
        Self {
            wanted,
            got: 0,
            interruptions: 0,
        }
    }

    /// Where the next attempt starts, bytes from the read's start: aligned, since `O_DIRECT` demands it.
    pub(super) fn resume_at(&self) -> u32 {
        self.got - self.got % ALIGNMENT
    }

    /// Bytes of the read that the file contains.
    pub(super) fn wanted(&self) -> u32 {
        self.wanted
    }

    /// Takes the result of the attempt that started at [`resume_at`](Self::resume_at): bytes read,
    /// or `errno`. An attempt that reads nothing has reached the end of the file.
    pub(super) fn step(&mut self, result: Result<u32, i32>) -> Step {
        match result {
            Err(libc::EINTR | libc::EAGAIN) if self.interruptions < MAX_INTERRUPTIONS => {
                self.interruptions += 1;
                Step::Again
            }
            Err(errno) => Step::Finished(Err(FaultKind::Os(errno))),
            Ok(bytes) => {
                let reached = self.resume_at().saturating_add(bytes);
                let advanced = reached > self.got;
                self.got = self.got.max(reached);
                if self.got >= self.wanted {
                    Step::Finished(Ok(()))
                } else if advanced {
                    Step::Again
                } else {
                    Step::Finished(Err(FaultKind::ShortRead { got: self.got }))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_reads_are_continued_from_an_aligned_place() {
        let mut p = Progress::new(3 * ALIGNMENT);
        assert_eq!(p.step(Ok(ALIGNMENT + 5)), Step::Again);
        assert_eq!(p.resume_at(), ALIGNMENT);
        assert_eq!(p.step(Ok(ALIGNMENT)), Step::Again);
        assert_eq!(p.resume_at(), 2 * ALIGNMENT);
        assert_eq!(p.step(Ok(ALIGNMENT)), Step::Finished(Ok(())));
    }

    #[test]
    fn the_partial_last_page_is_enough() {
        let mut p = Progress::new(ALIGNMENT + 7);
        assert_eq!(p.step(Ok(ALIGNMENT + 7)), Step::Finished(Ok(())));
    }

    #[test]
    fn an_attempt_without_advance_is_the_end_of_the_file() {
        for first in [0, 5, ALIGNMENT] {
            let mut p = Progress::new(2 * ALIGNMENT);
            let mut step = p.step(Ok(first));
            if step == Step::Again {
                step = p.step(Ok(first % ALIGNMENT));
            }
            let fault = FaultKind::ShortRead { got: first };
            assert_eq!(step, Step::Finished(Err(fault)));
        }
    }

    #[test]
    fn interruptions_are_borne_but_not_for_ever() {
        let mut p = Progress::new(ALIGNMENT);
        for _ in 0..MAX_INTERRUPTIONS {
            assert_eq!(p.step(Err(libc::EINTR)), Step::Again);
        }
        let end = p.step(Err(libc::EINTR));
        assert_eq!(end, Step::Finished(Err(FaultKind::Os(libc::EINTR))));
        let eio = Progress::new(1).step(Err(libc::EIO));
        assert_eq!(eio, Step::Finished(Err(FaultKind::Os(libc::EIO))));
    }
}
