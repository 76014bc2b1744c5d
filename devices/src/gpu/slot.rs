//! One job in flight: its buffers, which are kept from job to job, and what became of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::fault::DeviceFault;
use crate::job::{DeviceDone, DeviceJob, Work};

use super::buffers::Buffers;
use super::context::Context;
use super::passes::{MARK_BYTES, Passes};
use super::pipelines::Pipelines;
use super::tokens;

/// How far the results' way back is, as the driver's callback says.
#[derive(Clone, Debug, Default)]
struct Mapped(Arc<AtomicU8>);

impl Mapped {
    const DONE: u8 = 1;
    const FAILED: u8 = 2;

    fn set(&self, worked: bool) {
        let state = if worked { Self::DONE } else { Self::FAILED };
        self.0.store(state, Ordering::Release);
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct Running {
    job: DeviceJob,
    submitted_ns: u64,
    /// What the device was given, or why it was not.
    given: Result<Mapped, DeviceFault>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Slot {
    buffers: Buffers,
    /// The tokens' words on their way to the device.
    words: Vec<u8>,
    running: Option<Running>,
}

impl Slot {
    pub(super) fn is_free(&self) -> bool {
        self.running.is_none()
    }

    /// Starts a job; whatever prevents that is its result.
    pub(super) fn start(
        &mut self,
        context: &mut Context,
        pipelines: &Pipelines,
        segment: Option<(&wgpu::Buffer, usize)>,
        job: DeviceJob,
        now_ns: u64,
    ) {
        let given = match (context.loss(), segment) {
            (Some(lost), _) => Err(lost),
            (None, None) => Err(DeviceFault::BadJob("there is no such segment".into())),
            (None, Some(segment)) => self.give(context, pipelines, segment, &job),
        };
        self.running = Some(Running {
            job,
            submitted_ns: now_ns,
            given,
        });
    }

    fn give(
        &mut self,
        context: &mut Context,
        pipelines: &Pipelines,
        (weights, segment_bytes): (&wgpu::Buffer, usize),
        job: &DeviceJob,
    ) -> Result<Mapped, DeviceFault> {
        job.check(segment_bytes)?;
        tokens::write(&job.tokens, &mut self.words)?;
        let work = (job, &self.words[..]);
        let passes = Passes::of(context, pipelines, &mut self.buffers, weights, work)?;
        let mapped = Mapped::default();
        let done = mapped.clone();
        match passes.submit(context, move |worked| done.set(worked)) {
            Ok(()) => Ok(mapped),
            Err(fault) => {
                self.buffers.discard(context);
                Err(fault)
            }
        }
    }

    /// The job, if it is over.
    pub(super) fn finish(&mut self, context: &mut Context, now_ns: u64) -> Option<DeviceDone> {
        let running = self.running.as_ref()?;
        let result = match (&running.given, context.loss()) {
            (Err(fault), _) => Err(fault.clone()),
            (Ok(_), Some(lost)) => Err(lost),
            (Ok(mapped), None) => match mapped.get() {
                Mapped::DONE => Ok(()),
                Mapped::FAILED => {
                    self.buffers.discard(context);
                    Err(DeviceFault::Lost {
                        reason: "results could not be read".into(),
                    })
                }
                _ => return None,
            },
        };
        let Running {
            mut job,
            submitted_ns,
            ..
        } = self.running.take()?;
        let result = result.and_then(|()| self.read(&mut job.work));
        Some(DeviceDone {
            job,
            result,
            elapsed_ns: now_ns.saturating_sub(submitted_ns),
        })
    }

    /// Reads the results, which are mapped.
    fn read(&self, work: &mut Work) -> Result<(), DeviceFault> {
        let lost = |reason: String| DeviceFault::Lost { reason };
        let Some(readback) = self.buffers.readback() else {
            return Err(lost("results have no buffer".into()));
        };
        let bytes = match work {
            Work::Rows { out, .. } => size_of_val(&out[..]),
            Work::Share { out, .. } => size_of_val(&out[..]),
        };
        let view = readback
            .slice(..bytes as u64 + MARK_BYTES)
            .get_mapped_range();
        let view = view.map_err(|error| lost(error.to_string()))?;
        let (values, mark) = view.split_at(bytes);
        let in_range = mark.iter().all(|byte| *byte == 0);
        match work {
            Work::Rows { out, .. } => {
                for (to, from) in out.iter_mut().zip(values.as_chunks().0) {
                    *to = f32::from_le_bytes(*from);
                }
            }
            Work::Share { out, .. } => {
                for (to, from) in out.iter_mut().zip(values.as_chunks().0) {
                    *to = i64::from_le_bytes(*from);
                }
            }
        }
        drop(view);
        readback.unmap();
        match in_range {
            true => Ok(()),
            false => Err(DeviceFault::OutOfRange),
        }
    }
}
