//! One job in flight: its buffers, which are kept from job to job, and what became of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::attention::AttentionWork;
use crate::fault::DeviceFault;
use crate::job::{DeviceDone, DeviceJob, Work};

use super::buffers::{Buffers, MARK_BYTES, RESULTS_AT, TOKENS_AT, Use};
use super::context::Context;
use super::given::Given;
use super::kept::{Kept, Place};
use super::passes::{Passes, result_bytes};
use super::pipelines::Pipelines;
use super::{extras, tokens};

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
    /// What the job brings, on its way to the device.
    given: Vec<u8>,
    running: Option<Running>,
}

/// What the slots of a device share.
pub(super) struct Shared<'a> {
    pub(super) context: &'a mut Context,
    pub(super) pipelines: &'a Pipelines,
    pub(super) kept: &'a mut Kept,
    /// The number of the slot that is used.
    pub(super) slot: usize,
}

impl Slot {
    pub(super) fn is_free(&self) -> bool {
        self.running.is_none()
    }

    /// Starts a job; whatever prevents that is its result.
    pub(super) fn start(
        &mut self,
        mut shared: Shared<'_>,
        segment: Option<(&wgpu::Buffer, usize)>,
        job: DeviceJob,
        now_ns: u64,
    ) {
        let given = match (shared.context.loss(), segment) {
            (Some(lost), _) => Err(lost),
            (None, None) => Err(DeviceFault::BadJob("there is no such segment".into())),
            (None, Some(segment)) => self.give(&mut shared, segment, &job),
        };
        self.running = Some(Running {
            job,
            submitted_ns: now_ns,
            given,
        });
    }

    fn give(
        &mut self,
        shared: &mut Shared<'_>,
        (weights, segment_bytes): (&wgpu::Buffer, usize),
        job: &DeviceJob,
    ) -> Result<Mapped, DeviceFault> {
        job.check(segment_bytes)?;
        let end = match &job.work {
            Work::Attention(work) => {
                patch(shared.context, weights, work)?;
                TOKENS_AT
            }
            _ => TOKENS_AT + tokens::bytes(&job.tokens),
        };
        self.given.resize(end, 0);
        if end > TOKENS_AT {
            tokens::write(&job.tokens, &mut self.given[TOKENS_AT..])?;
        }
        let which = extras::write(&job.work, &mut self.given)?;
        let extras = (which, (end - TOKENS_AT) / 4);
        let passes = Passes::of(shared.pipelines, job, extras, &mut Given(&mut self.given))?;
        passes.write(&mut self.given[..TOKENS_AT]);
        let wanted = passes.wanted(shared.context, job, self.given.len())?;
        let (kept, slot) = (&mut *shared.kept, shared.slot);
        // Bindings keep the buffers that they are of.
        self.buffers
            .reserve(shared.context, &wanted, || kept.forget(slot))?;
        let mapped = Mapped::default();
        let started = self.submit(shared, weights, &passes, job, mapped.clone());
        if started.is_err() {
            self.buffers.discard(shared.context);
            shared.kept.unload(shared.context, job.segment.number());
        }
        started.map(|()| mapped)
    }

    fn submit(
        &self,
        shared: &mut Shared<'_>,
        weights: &wgpu::Buffer,
        passes: &Passes<'_>,
        job: &DeviceJob,
        mapped: Mapped,
    ) -> Result<(), DeviceFault> {
        let place = Place {
            slot: shared.slot,
            buffers: &self.buffers,
            segment: job.segment.number(),
            weights,
        };
        let work = (&job.work, passes.has_parts);
        let (context, pipelines) = (&mut *shared.context, shared.pipelines);
        let groups = match passes.is_empty() {
            true => &[],
            false => shared.kept.bindings(context, pipelines, place, work)?,
        };
        let given = (groups, &self.given[..]);
        let done = move |worked| mapped.set(worked);
        passes.submit(context, &self.buffers, given, result_bytes(&job.work), done)
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
        let readback = self.buffers.of(Use::Readback)?;
        let bytes = (RESULTS_AT + result_bytes(work)) as u64;
        let view = readback.slice(..bytes).get_mapped_range();
        let view = view.map_err(|error| DeviceFault::Lost {
            reason: error.to_string(),
        })?;
        let (mark, values) = view.split_at(RESULTS_AT);
        let in_range = mark[..MARK_BYTES].iter().all(|byte| *byte == 0);
        // Devices have the order of bytes of little endian; so has every CPU that this runs on.
        let out: &mut [u8] = match work {
            Work::Rows { out, .. } => bytemuck::cast_slice_mut(out),
            Work::Share { out, .. } => bytemuck::cast_slice_mut(out),
            Work::Attention(work) => bytemuck::cast_slice_mut(&mut work.out),
        };
        out.copy_from_slice(values);
        drop(view);
        readback.unmap();
        match in_range {
            true => Ok(()),
            false => Err(DeviceFault::OutOfRange),
        }
    }
}

/// Writes what a job of attention brings to its segment: on the device, that comes behind the jobs before it, with what
/// is submitted next. So later jobs find it there even if nothing comes of this one.
fn patch(
    context: &Context,
    segment: &wgpu::Buffer,
    work: &AttentionWork,
) -> Result<(), DeviceFault> {
    if work.patches.is_empty() {
        return Ok(());
    }
    context.guarded(work.patched.len() as u64, |_| {
        for (at, bytes) in work.patches() {
            context.queue.write_buffer(segment, at as u64, bytes);
        }
    })
}
