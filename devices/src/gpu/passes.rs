//! From a job to dispatches.

use forebay_numbers::activation::Activation;
use forebay_numbers::panel::{PANEL_ROWS, PLANE_LEN};

use crate::fault::DeviceFault;
use crate::job::{Activated, DeviceJob, FfnCluster, PanelRange, Work};
use crate::shaders::{BIASES, Sink, TILE_PANELS, WEIGHTS};

use super::buffers::{Buffers, Use};
use super::context::Context;
use super::pipelines::Pipelines;
use super::tokens::{RECORD, is_in_range};

/// Bytes from one pass's numbers to the next's: no device wants more.
const PARAMS_STRIDE: usize = 256;
/// Bytes of a pass's numbers, padded.
const PARAMS_BYTES: u64 = 32;

/// A dispatch.
#[derive(Debug)]
pub(super) struct Pass {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
    /// In the order of the bindings, behind the numbers.
    buffers: Vec<wgpu::Buffer>,
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
    alpha: f32,
    limit: f32,
}

/// All that a job needs on the device.
#[derive(Debug)]
pub(super) struct Passes {
    passes: Vec<Pass>,
    params: wgpu::Buffer,
    mark: wgpu::Buffer,
    results: wgpu::Buffer,
    readback: wgpu::Buffer,
    /// Bytes of the results.
    result_bytes: u64,
}

/// Workgroups of Down that keep a large device busy. If panels and tokens are fewer, the clusters are divided.
const BUSY: usize = 1000;
/// Bytes that results of parts may take; with more, adding them would take longer than what it saves.
const PARTIAL_BYTES: usize = 4 << 20;

/// Lanes of a workgroup of `parts.wgsl`.
const PARTS_LANES: usize = 64;

/// Bytes of the mark, which comes back behind the results.
pub(super) const MARK_BYTES: u64 = 4;

/// What a share is made from.
struct Ffn<'a> {
    clusters: &'a [FfnCluster],
    activation: Activation,
    biases: &'a [Vec<f32>; 2],
    weights: &'a [f32],
}

impl Ffn<'_> {
    fn neurons(&self) -> usize {
        self.clusters
            .iter()
            .map(|cluster| cluster.gate.n_rows)
            .sum()
    }

    /// The shader's `extras`: their bytes, and which there are.
    fn extras(&self, n_tokens: usize) -> Result<(Vec<u8>, u32), DeviceFault> {
        let mut numbers: Vec<f32> = self.biases.concat();
        let mut which = if numbers.is_empty() { 0 } else { BIASES };
        if !self.weights.is_empty() {
            which |= WEIGHTS;
            // Of each block of a cluster.
            for (cluster, weights) in self.clusters.iter().zip(self.weights.chunks(n_tokens)) {
                numbers.extend(weights.repeat(cluster.gate.n_rows / 32));
            }
        }
        if !numbers.iter().all(|&number| is_in_range(number)) {
            return Err(DeviceFault::OutOfRange);
        }
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        Ok((bytes.collect(), which))
    }

    /// The activation's shader and its parameters.
    fn activated(&self) -> Result<(Activated, [f32; 2]), DeviceFault> {
        let parameters = match self.activation {
            Activation::ClampedSwiglu { alpha, limit } => [alpha, limit],
            _ => [0.0; 2],
        };
        match Activated::of(self.activation) {
            Some(kind) if parameters.iter().all(|&p| is_in_range(p)) => Ok((kind, parameters)),
            _ => {
                let problem = format!("{:?} is not computed on devices", self.activation);
                Err(DeviceFault::BadJob(problem))
            }
        }
    }
}

/// Collects the passes of a job.
struct Builder<'a> {
    context: &'a mut Context,
    pipelines: &'a Pipelines,
    buffers: &'a mut Buffers,
    weights: &'a wgpu::Buffer,
    mark: wgpu::Buffer,
    n_tokens: usize,
    passes: Vec<Pass>,
}

impl Passes {
    /// The passes of a job whose tokens' words are `words`.
    pub(super) fn of(
        context: &mut Context,
        pipelines: &Pipelines,
        buffers: &mut Buffers,
        weights: &wgpu::Buffer,
        (job, words): (&DeviceJob, &[u8]),
    ) -> Result<Self, DeviceFault> {
        let mark = buffers.get(context, Use::Mark, MARK_BYTES)?;
        let tokens = buffers.filled(context, Use::Tokens, words)?;
        let result_bytes = match &job.work {
            Work::Rows { out, .. } => size_of_val(&out[..]),
            Work::Share { out, .. } => size_of_val(&out[..]),
        } as u64;
        let results = buffers.get(context, Use::Results, result_bytes)?;
        let readback = buffers.get(context, Use::Readback, result_bytes + MARK_BYTES)?;
        let mut builder = Builder {
            context,
            pipelines,
            buffers,
            weights,
            mark: mark.clone(),
            n_tokens: job.tokens.n_tokens(),
            passes: Vec::new(),
        };
        match &job.work {
            Work::Rows { panels, .. } => {
                let (table, width) = builder.panels(Use::Panels, panels)?;
                builder.rows(panels, &table, width, (&tokens, &results))?;
            }
            Work::Share {
                clusters,
                activation,
                biases,
                weights,
                ..
            } => {
                let ffn = Ffn {
                    clusters,
                    activation: *activation,
                    biases,
                    weights,
                };
                let hidden = builder.hidden(&ffn, &tokens)?;
                builder.down(clusters, job.tokens.cols(), &hidden, &results)?;
            }
        }
        let passes = builder.passes;
        let numbers: Vec<u8> = passes
            .iter()
            .flat_map(|pass| pass.numbers.bytes())
            .collect();
        let params = buffers.filled(context, Use::Params, &numbers)?;
        Ok(Self {
            passes,
            params,
            mark,
            results,
            readback,
            result_bytes,
        })
    }

    /// Submits them, and has the results brought back.
    pub(super) fn submit(
        &self,
        context: &Context,
        done: impl FnOnce(bool) + Send + 'static,
    ) -> Result<(), DeviceFault> {
        context.guarded(0, |device| {
            let mut encoder = device.create_command_encoder(&Default::default());
            encoder.clear_buffer(&self.mark, 0, Some(MARK_BYTES));
            if self.passes.is_empty() {
                // The sum over no clusters.
                encoder.clear_buffer(&self.results, 0, None);
            }
            for (i, pass) in self.passes.iter().enumerate() {
                let numbers = wgpu::BufferBinding {
                    buffer: &self.params,
                    offset: (i * PARAMS_STRIDE) as u64,
                    size: std::num::NonZeroU64::new(PARAMS_BYTES),
                };
                let buffers = pass.buffers.iter().map(wgpu::Buffer::as_entire_binding);
                let numbers = std::iter::once(wgpu::BindingResource::Buffer(numbers));
                let group = bind(device, &pass.layout, numbers.chain(buffers));
                dispatch(&mut encoder, &pass.pipeline, &group, pass.groups);
            }
            let (results, readback, bytes) = (&self.results, &self.readback, self.result_bytes);
            encoder.copy_buffer_to_buffer(results, 0, readback, 0, bytes);
            encoder.copy_buffer_to_buffer(&self.mark, 0, readback, bytes, MARK_BYTES);
            context.queue.submit([encoder.finish()]);
            let slice = readback.slice(..bytes + MARK_BYTES);
            slice.map_async(wgpu::MapMode::Read, move |result| done(result.is_ok()));
        })
    }
}

impl Numbers {
    fn bytes(&self) -> [u8; PARAMS_STRIDE] {
        let mut bytes = [0; PARAMS_STRIDE];
        let known = [self.n_tokens, self.n_blocks, self.width, self.n_parts];
        let [a, b, c, d] = known.map(|number| number as u32);
        let (alpha, limit) = (self.alpha.to_bits(), self.limit.to_bits());
        let words = [a, b, c, d, 0, self.extras, alpha, limit];
        for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }
}

/// A table of four words per entry.
fn table(entries: &[[usize; 4]]) -> Vec<u8> {
    let words = entries.as_flattened().iter();
    words
        .flat_map(|&word| (word as u32).to_le_bytes())
        .collect()
}

/// Down's table: the parts, then all blocks; see `fixed.wgsl`.
fn down_table(clusters: &[FfnCluster], n_parts: usize) -> Vec<u8> {
    let (mut ends, mut blocks) = (vec![0], Vec::new());
    for FfnCluster { down, .. } in clusters {
        let n = down.cols / PLANE_LEN;
        let per_tile = down.block.block_len() / PLANE_LEN;
        let tile_words = PANEL_ROWS * down.block.block_bytes() / 4;
        blocks.extend((0..n).map(|i| {
            let tile = down.at / 4 + i / per_tile * tile_words;
            [
                tile,
                panel_words(down),
                i % per_tile,
                usize::from(i + 1 == n),
            ]
        }));
        ends.push(blocks.len());
    }
    let first_of = |part: usize| ends[part * clusters.len() / n_parts];
    let parts = (0..n_parts).map(|part| [first_of(part), first_of(part + 1), 0, 0]);
    table(&parts.chain(blocks).collect::<Vec<_>>())
}

impl Builder<'_> {
    /// A table of all panels of some ranges, whose rows are columns of the results, and how many.
    fn panels(
        &mut self,
        what: Use,
        ranges: &[PanelRange],
    ) -> Result<(wgpu::Buffer, usize), DeviceFault> {
        let (mut entries, mut column) = (Vec::new(), 0);
        for range in ranges {
            let panel = panel_words(range);
            for (i, first) in (0..range.n_rows).step_by(PANEL_ROWS).enumerate() {
                let rows = PANEL_ROWS.min(range.n_rows - first);
                entries.push([range.at / 4 + i * panel, column + first, rows, 0]);
            }
            column += range.n_rows;
        }
        if let Some(&[panel, ..]) = entries.last() {
            let whole = entries.len().next_multiple_of(TILE_PANELS);
            entries.resize(whole, [panel, 0, 0, 0]);
        }
        let table = self.buffers.filled(self.context, what, &table(&entries))?;
        Ok((table, column))
    }

    fn rows(
        &mut self,
        ranges: &[PanelRange],
        table: &wgpu::Buffer,
        width: usize,
        (tokens, results): (&wgpu::Buffer, &wgpu::Buffer),
    ) -> Result<(), DeviceFault> {
        let Some(first) = ranges.first() else {
            return Ok(());
        };
        let panels = ranges
            .iter()
            .map(|range| range.n_rows.div_ceil(PANEL_ROWS))
            .sum();
        let numbers = Numbers {
            n_tokens: self.n_tokens,
            n_blocks: first.cols / 32,
            width,
            ..Numbers::default()
        };
        self.product(first, Sink::Rows, (tokens, results, table), panels, numbers)
    }

    fn product(
        &mut self,
        first: &PanelRange,
        sink: Sink,
        (tokens, results, table): (&wgpu::Buffer, &wgpu::Buffer, &wgpu::Buffer),
        panels: usize,
        numbers: Numbers,
    ) -> Result<(), DeviceFault> {
        let (pipeline, shape) = self.pipelines.product(first.block, sink, self.n_tokens)?;
        let (pipeline, layout) = (pipeline.clone(), self.pipelines.products.clone());
        let buffers = [self.weights, tokens, results, table, &self.mark];
        let pass = Pass {
            pipeline,
            layout,
            buffers: buffers.map(Clone::clone).to_vec(),
            groups: [
                panels.div_ceil(shape.panels),
                self.n_tokens.div_ceil(shape.tokens),
                numbers.n_parts.max(1),
            ],
            numbers,
        };
        self.push(pass)
    }

    fn push(&mut self, pass: Pass) -> Result<(), DeviceFault> {
        let limit = self.context.limits.max_compute_workgroups_per_dimension as usize;
        if pass.groups.iter().any(|&n| n > limit) {
            let problem = format!("{:?} are too many workgroups for the device", pass.groups);
            return Err(DeviceFault::BadJob(problem));
        }
        if !pass.groups.contains(&0) {
            self.passes.push(pass);
        }
        Ok(())
    }

    /// Gate, Up and what is between them and Down; returns Down's input.
    fn hidden(
        &mut self,
        ffn: &Ffn<'_>,
        tokens: &wgpu::Buffer,
    ) -> Result<wgpu::Buffer, DeviceFault> {
        let width = ffn.neurons();
        let bytes = 4 * (self.n_tokens * width) as u64;
        let records = (width / 32 * self.n_tokens * RECORD * 4) as u64;
        let gates = self.buffers.get(self.context, Use::Gates, bytes)?;
        let ups = self.buffers.get(self.context, Use::Ups, bytes)?;
        let hidden = self.buffers.get(self.context, Use::Hidden, records)?;
        let of_gate: Vec<_> = ffn.clusters.iter().map(|cluster| cluster.gate).collect();
        let of_up: Vec<_> = ffn.clusters.iter().map(|cluster| cluster.up).collect();
        for (what, ranges, results) in
            [(Use::Panels, of_gate, &gates), (Use::UpPanels, of_up, &ups)]
        {
            let (table, _) = self.panels(what, &ranges)?;
            self.rows(&ranges, &table, width, (tokens, results))?;
        }
        let (extras, which) = ffn.extras(self.n_tokens.max(1))?;
        let extras = self.buffers.filled(self.context, Use::Extras, &extras)?;
        let (kind, [alpha, limit]) = ffn.activated()?;
        let pass = Pass {
            pipeline: self.pipelines.hidden(kind)?.clone(),
            layout: self.pipelines.hidden.clone(),
            buffers: vec![gates, ups, hidden.clone(), self.mark.clone(), extras],
            groups: [width / 32, self.n_tokens, 1],
            numbers: Numbers {
                n_tokens: self.n_tokens,
                width,
                extras: which,
                alpha,
                limit,
                ..Numbers::default()
            },
        };
        self.push(pass)?;
        Ok(hidden)
    }

    fn down(
        &mut self,
        clusters: &[FfnCluster],
        d_model: usize,
        hidden: &wgpu::Buffer,
        results: &wgpu::Buffer,
    ) -> Result<(), DeviceFault> {
        let Some(first) = clusters.first() else {
            return Ok(());
        };
        let panels = d_model.div_ceil(PANEL_ROWS);
        let bytes = 8 * self.n_tokens * d_model;
        let (_, shape) = self
            .pipelines
            .product(first.down.block, Sink::Down, self.n_tokens)?;
        let groups = panels.div_ceil(shape.panels) * self.n_tokens.div_ceil(shape.tokens);
        let n_parts = n_parts(groups, clusters.len(), bytes);
        let table = down_table(clusters, n_parts);
        let table = self.buffers.filled(self.context, Use::DownPanels, &table)?;
        let numbers = Numbers {
            n_tokens: self.n_tokens,
            width: d_model,
            n_parts,
            ..Numbers::default()
        };
        if n_parts == 1 {
            let buffers = (hidden, results, &table);
            return self.product(&first.down, Sink::Down, buffers, panels, numbers);
        }
        let bytes = (n_parts * bytes) as u64;
        let partials = self.buffers.get(self.context, Use::Partials, bytes)?;
        let buffers = (hidden, &partials, &table);
        self.product(&first.down, Sink::Down, buffers, panels, numbers)?;
        self.push(Pass {
            pipeline: self.pipelines.of_parts.clone(),
            layout: self.pipelines.parts.clone(),
            buffers: vec![partials, results.clone()],
            groups: [(self.n_tokens * d_model).div_ceil(PARTS_LANES), 1, 1],
            numbers,
        })
    }
}

/// Into how many parts clusters are divided, if each part takes so many workgroups and its results so many bytes.
fn n_parts(groups: usize, n_clusters: usize, bytes: usize) -> usize {
    let room = PARTIAL_BYTES / bytes.max(1);
    let wanted = BUSY / groups.max(1);
    wanted.min(room).min(n_clusters).max(1)
}

/// Words of a panel.
fn panel_words(range: &PanelRange) -> usize {
    let bytes = range.block.row_bytes(range.cols).unwrap_or_default();
    PANEL_ROWS * bytes / 4
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
    encoder: &mut wgpu::CommandEncoder,
    pipeline: &wgpu::ComputePipeline,
    group: &wgpu::BindGroup,
    [x, y, z]: [usize; 3],
) {
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(pipeline);
    pass.set_bind_group(0, group, &[]);
    pass.dispatch_workgroups(x as u32, y as u32, z as u32);
}
