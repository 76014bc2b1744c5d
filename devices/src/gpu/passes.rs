//! From a job to dispatches.

use forebay_numbers::activation::Activation;
use forebay_numbers::panel::{PANEL_ROWS, PLANE_LEN};

use crate::fault::DeviceFault;
use crate::job::{DeviceJob, FfnCluster, PanelRange, Work};
use crate::shaders::Sink;

use super::buffers::{Buffers, MARK_BYTES, PARAMS_BYTES, RESULTS_AT, Use};
use super::context::Context;
use super::pipelines::Pipelines;
use super::tables::neurons;
use super::tokens::RECORD;
use super::{extras, tables};

/// Lanes of a workgroup of `parts.wgsl`.
const PARTS_LANES: usize = 64;

/// A dispatch.
#[derive(Debug)]
struct Pass<'a> {
    pipeline: &'a wgpu::ComputePipeline,
    groups: [usize; 3],
    numbers: Numbers,
}

/// The shaders' `Params`, but for the zero.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    n_tokens: usize,
    n_blocks: usize,
    width: usize,
    n_parts: usize,
    extras: u32,
    extras_at: usize,
    alpha: f32,
    limit: f32,
}

impl Numbers {
    fn words(&self) -> [u32; 9] {
        let known = [self.n_tokens, self.n_blocks, self.width, self.n_parts];
        let [a, b, c, d] = known.map(|number| number as u32);
        let (alpha, limit) = (self.alpha.to_bits(), self.limit.to_bits());
        let extras_at = self.extras_at as u32;
        [a, b, c, d, 0, self.extras, alpha, limit, extras_at]
    }
}

/// The dispatches of a job, in the order of the bindings that [`Kept`](super::kept::Kept) makes for it.
#[derive(Debug)]
pub(super) struct Passes<'a> {
    pipelines: &'a Pipelines,
    list: Vec<Pass<'a>>,
    n_tokens: usize,
    /// Into which Down's clusters are divided; 0 without Down.
    pub(super) n_parts: usize,
}

/// What a share's passes are made from.
struct Share<'a> {
    clusters: &'a [FfnCluster],
    d_model: usize,
    activation: Activation,
    /// Which extras there are, and where in the words behind the numbers.
    extras: (u32, usize),
}

impl<'a> Passes<'a> {
    /// The passes of a job with these extras, which begin with so many words behind the numbers.
    pub(super) fn of(
        pipelines: &'a Pipelines,
        job: &DeviceJob,
        extras: (u32, usize),
    ) -> Result<Self, DeviceFault> {
        let mut passes = Self {
            pipelines,
            list: Vec::new(),
            n_tokens: job.tokens.n_tokens(),
            n_parts: 0,
        };
        match &job.work {
            Work::Rows { panels, .. } => {
                let width = panels.iter().map(|range| range.n_rows).sum();
                passes.rows(panels.iter(), width)?;
            }
            Work::Share {
                clusters,
                activation,
                ..
            } => {
                let share = Share {
                    clusters,
                    d_model: job.tokens.cols(),
                    activation: *activation,
                    extras,
                };
                passes.share(&share)?;
            }
        }
        Ok(passes)
    }

    fn rows<'r>(
        &mut self,
        ranges: impl Iterator<Item = &'r PanelRange> + Clone,
        width: usize,
    ) -> Result<(), DeviceFault> {
        let Some(first) = ranges.clone().next() else {
            return Ok(());
        };
        let numbers = Numbers {
            n_tokens: self.n_tokens,
            n_blocks: first.cols / PLANE_LEN,
            width,
            ..Numbers::default()
        };
        let n_panels = tables::n_panels(ranges);
        let (pipeline, [x, y]) = self.product(first, Sink::Rows, n_panels)?;
        self.push(pipeline, [x, y, 1], numbers);
        Ok(())
    }

    /// The product of so many panels, and its workgroups.
    fn product(
        &self,
        first: &PanelRange,
        sink: Sink,
        n_panels: usize,
    ) -> Result<(&'a wgpu::ComputePipeline, [usize; 2]), DeviceFault> {
        let (pipeline, shape) = self.pipelines.product(first.block, sink, self.n_tokens)?;
        let groups = [
            n_panels.div_ceil(shape.panels),
            self.n_tokens.div_ceil(shape.tokens),
        ];
        Ok((pipeline, groups))
    }

    /// Gate, Up, what is between them and Down, Down, and the sum of its parts, if there are several.
    fn share(&mut self, share: &Share<'_>) -> Result<(), DeviceFault> {
        let Some(first) = share.clusters.first() else {
            return Ok(());
        };
        let width = neurons(share.clusters);
        let gates = share.clusters.iter().map(|cluster| &cluster.gate);
        let ups = share.clusters.iter().map(|cluster| &cluster.up);
        if tables::are_alike(share.clusters) {
            self.rows(gates.chain(ups), 2 * width)?;
        } else {
            self.rows(gates, 2 * width)?;
            self.rows(ups, 2 * width)?;
        }
        let (kind, [alpha, limit]) = extras::activated(share.activation)?;
        let (extras, extras_at) = share.extras;
        let numbers = Numbers {
            n_tokens: self.n_tokens,
            width,
            extras,
            extras_at,
            alpha,
            limit,
            ..Numbers::default()
        };
        let groups = [width / PLANE_LEN, self.n_tokens, 1];
        self.push(self.pipelines.hidden(kind)?, groups, numbers);
        let n_results = self.n_tokens * share.d_model;
        let n_panels = share.d_model.div_ceil(PANEL_ROWS);
        let (pipeline, [x, y]) = self.product(&first.down, Sink::Down, n_panels)?;
        self.n_parts = tables::n_parts(x * y, share.clusters.len(), 8 * n_results);
        let numbers = Numbers {
            n_tokens: self.n_tokens,
            width: share.d_model,
            n_parts: self.n_parts,
            ..Numbers::default()
        };
        self.push(pipeline, [x, y, self.n_parts], numbers);
        if self.n_parts > 1 {
            let groups = [n_results.div_ceil(PARTS_LANES), 1, 1];
            self.push(&self.pipelines.of_parts, groups, numbers);
        }
        Ok(())
    }

    fn push(&mut self, pipeline: &'a wgpu::ComputePipeline, groups: [usize; 3], numbers: Numbers) {
        self.list.push(Pass {
            pipeline,
            groups,
            numbers,
        });
    }

    /// Whether there is nothing to compute.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Writes the numbers of all passes to the beginning of what the device is given.
    pub(super) fn write(&self, out: &mut [u8]) {
        for (pass, out) in self.list.iter().zip(out.chunks_exact_mut(PARAMS_BYTES)) {
            let words = pass.numbers.words();
            let bytes: &[u8] = bytemuck::cast_slice(&words);
            out[..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Makes the buffers of a job large enough.
    pub(super) fn reserve(
        &self,
        context: &mut Context,
        buffers: &mut Buffers,
        job: &DeviceJob,
        given_bytes: usize,
    ) -> Result<(), DeviceFault> {
        let limit = context.limits.max_compute_workgroups_per_dimension as usize;
        for Pass { groups, .. } in &self.list {
            if groups.iter().any(|&n| n > limit) {
                let problem = format!("{groups:?} are too many workgroups for the device");
                return Err(DeviceFault::BadJob(problem));
            }
        }
        let n = self.n_tokens;
        let mut wanted = vec![(Use::Given, given_bytes)];
        if let Work::Share { clusters, .. } = &job.work {
            let width = neurons(clusters);
            let partials = if self.n_parts > 1 { self.n_parts } else { 0 };
            wanted.extend([
                (Use::GateUps, 4 * n * 2 * width),
                (Use::Hidden, 4 * n * width / PLANE_LEN * RECORD),
                (Use::Partials, 8 * n * partials * job.tokens.cols()),
            ]);
        }
        let result_bytes = RESULTS_AT + result_bytes(&job.work);
        wanted.extend([(Use::Results, result_bytes), (Use::Readback, result_bytes)]);
        for (what, bytes) in wanted {
            buffers.reserve(context, what, bytes as u64)?;
        }
        Ok(())
    }

    /// Submits them, and has the results brought back.
    pub(super) fn submit(
        &self,
        context: &Context,
        buffers: &Buffers,
        (groups, given): (&[wgpu::BindGroup], &[u8]),
        result_bytes: usize,
        done: impl FnOnce(bool) + Send + 'static,
    ) -> Result<(), DeviceFault> {
        let (results, readback) = (buffers.of(Use::Results)?, buffers.of(Use::Readback)?);
        let to_device = buffers.of(Use::Given)?;
        let bytes = (RESULTS_AT + result_bytes) as u64;
        context.guarded(0, |device| {
            context.queue.write_buffer(to_device, 0, given);
            let mut encoder = device.create_command_encoder(&Default::default());
            encoder.clear_buffer(results, 0, Some(MARK_BYTES as u64));
            if self.list.is_empty() {
                // The sum over no clusters.
                encoder.clear_buffer(results, 0, None);
            }
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for (each, group) in self.list.iter().zip(groups) {
                if !each.groups.contains(&0) {
                    dispatch(&mut pass, each.pipeline, group, each.groups);
                }
            }
            drop(pass);
            encoder.copy_buffer_to_buffer(results, 0, readback, 0, bytes);
            context.queue.submit([encoder.finish()]);
            let slice = readback.slice(..bytes);
            slice.map_async(wgpu::MapMode::Read, move |result| done(result.is_ok()));
        })
    }
}

/// Bytes of a job's results.
pub(super) fn result_bytes(work: &Work) -> usize {
    match work {
        Work::Rows { out, .. } => size_of_val(&out[..]),
        Work::Share { out, .. } => size_of_val(&out[..]),
    }
}

/// The resources of a shader's bindings, in their order.
pub(super) fn bind<'a>(
    device: &wgpu::Device,
    layout: &wgpu::BindGroupLayout,
    resources: impl IntoIterator<Item = wgpu::BindingResource<'a>>,
) -> wgpu::BindGroup {
    let entry = |(binding, resource)| wgpu::BindGroupEntry { binding, resource };
    let entries: Vec<_> = (0..).zip(resources).map(entry).collect();
    device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout,
        entries: &entries,
    })
}

/// Records one dispatch.
pub(super) fn dispatch(
    pass: &mut wgpu::ComputePass<'_>,
    pipeline: &wgpu::ComputePipeline,
    group: &wgpu::BindGroup,
    [x, y, z]: [usize; 3],
) {
    pass.set_pipeline(pipeline);
    pass.set_bind_group(0, group, &[]);
    pass.dispatch_workgroups(x as u32, y as u32, z as u32);
}
