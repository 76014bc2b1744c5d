//! One job in flight: its buffers, which are kept from job to job, and what became of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::fault::DeviceFault;
use crate::job::{DeviceDone, DeviceJob};

use super::context::{Context, Piece};
use super::pipelines::Pipelines;
use super::tokens;

/// Bytes before the results, for the mark of numbers out of range.
const MARK: u64 = 4;

/// Words of the product's `Params`, padded.
const PARAMS: usize = 8;

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
    tokens: Option<Piece>,
    results: Option<Piece>,
    readback: Option<Piece>,
    params: Option<Piece>,
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
        let at = job.check(segment_bytes)?.start;
        let (panels, n_tokens) = (&job.panels, job.tokens.n_tokens());
        let Some((pipeline, width)) = pipelines.product(panels.block, n_tokens) else {
            let problem = format!("the device was opened without {}", panels.block);
            return Err(DeviceFault::BadJob(problem));
        };
        let groups = [panels.n_rows.div_ceil(16), n_tokens.div_ceil(width)];
        let limit = context.limits.max_compute_workgroups_per_dimension as usize;
        if groups.iter().any(|&n| n > limit) {
            let problem = format!("{} rows and {n_tokens} tokens are too many", panels.n_rows);
            return Err(DeviceFault::BadJob(problem));
        }
        tokens::write(&job.tokens, &mut self.words)?;
        use wgpu::BufferUsages as Usage;
        let result_bytes = MARK + 4 * job.out.len() as u64;
        let (words, input) = (self.words.len() as u64, Usage::COPY_DST | Usage::STORAGE);
        let output = input | Usage::COPY_SRC;
        let tokens = context.grow(&mut self.tokens, words, input)?;
        let results = context.grow(&mut self.results, result_bytes, output)?;
        let back = Usage::COPY_DST | Usage::MAP_READ;
        let readback = context.grow(&mut self.readback, result_bytes, back)?;
        let uniform = Usage::COPY_DST | Usage::UNIFORM;
        let params = context.grow(&mut self.params, 4 * PARAMS as u64, uniform)?;
        let mut numbers = [0; PARAMS];
        let known = [at / 4, panels.n_rows, panels.cols / 32, n_tokens];
        for (to, number) in numbers.iter_mut().zip(known) {
            *to = number as u32;
        }
        let words = &self.words;
        let mapped = Mapped::default();
        context.guarded(0, |device| {
            let queue = &context.queue;
            queue.write_buffer(&params, 0, numbers.map(u32::to_le_bytes).as_flattened());
            queue.write_buffer(&tokens, 0, words);
            let buffers = [weights, &tokens, &results, &params];
            let group = bind(device, &pipelines.layout, &buffers);
            let mut encoder = device.create_command_encoder(&Default::default());
            encoder.clear_buffer(&results, 0, Some(MARK));
            dispatch(&mut encoder, pipeline, &group, groups);
            encoder.copy_buffer_to_buffer(&results, 0, &readback, 0, result_bytes);
            queue.submit([encoder.finish()]);
            let done = mapped.clone();
            let slice = readback.slice(..result_bytes);
            slice.map_async(wgpu::MapMode::Read, move |result| done.set(result.is_ok()));
        })?;
        Ok(mapped)
    }

    /// The job, if it is over.
    pub(super) fn finish(&mut self, context: &Context, now_ns: u64) -> Option<DeviceDone> {
        let running = self.running.as_ref()?;
        let result = match (&running.given, context.loss()) {
            (Err(fault), _) => Err(fault.clone()),
            (Ok(_), Some(lost)) => Err(lost),
            (Ok(mapped), None) => match mapped.get() {
                Mapped::DONE => Ok(()),
                Mapped::FAILED => Err(DeviceFault::Lost {
                    reason: "results could not be read".into(),
                }),
                _ => return None,
            },
        };
        let Running {
            mut job,
            submitted_ns,
            ..
        } = self.running.take()?;
        let result = result.and_then(|()| self.read(&mut job.out));
        Some(DeviceDone {
            job,
            result,
            elapsed_ns: now_ns.saturating_sub(submitted_ns),
        })
    }

    /// Reads the results, which are mapped.
    fn read(&self, out: &mut [f32]) -> Result<(), DeviceFault> {
        let lost = |reason: String| DeviceFault::Lost { reason };
        let Some(readback) = &self.readback else {
            return Err(lost("results have no buffer".into()));
        };
        let bytes = MARK + 4 * out.len() as u64;
        let view = readback.buffer.slice(..bytes).get_mapped_range();
        let view = view.map_err(|error| lost(error.to_string()))?;
        let (mark, values) = view.split_at(MARK as usize);
        let in_range = mark.iter().all(|byte| *byte == 0);
        for (to, from) in out.iter_mut().zip(values.as_chunks::<4>().0) {
            *to = f32::from_le_bytes(*from);
        }
        drop(view);
        readback.buffer.unmap();
        match in_range {
            true => Ok(()),
            false => Err(DeviceFault::OutOfRange),
        }
    }
}

/// The buffers of a shader's bindings, in their order.
pub(super) fn bind(
    device: &wgpu::Device,
    layout: &wgpu::BindGroupLayout,
    buffers: &[&wgpu::Buffer],
) -> wgpu::BindGroup {
    let entries: Vec<_> = (0..)
        .zip(buffers)
        .map(|(binding, buffer)| wgpu::BindGroupEntry {
            binding,
            resource: buffer.as_entire_binding(),
        })
        .collect();
    device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout,
        entries: &entries,
    })
}

/// Records one dispatch.
pub(super) fn dispatch(
    encoder: &mut wgpu::CommandEncoder,
    pipeline: &wgpu::ComputePipeline,
    group: &wgpu::BindGroup,
    [x, y]: [usize; 2],
) {
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(pipeline);
    pass.set_bind_group(0, group, &[]);
    pass.dispatch_workgroups(x as u32, y as u32, 1);
}
