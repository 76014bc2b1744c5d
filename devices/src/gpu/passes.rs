//! From a job to dispatches.

use forebay_numbers::activation::Activation;
use forebay_numbers::panel::{PANEL_ROWS, PLANE_LEN};

use crate::fault::DeviceFault;
use crate::job::{DeviceJob, FfnCluster, PanelRange, Routing, Work};
use crate::shaders::Sink;

use super::batches::{Batches, slots};
use super::buffers::{Buffers, MARK_BYTES, PARAMS_BYTES, RESULTS_AT, Use};
use super::context::Context;
use super::given::{Given, Vector};
use super::pipelines::Pipelines;
use super::tables::neurons;
use super::tokens::RECORD;
use super::{attention, extras, tables};

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
    batches_at: usize,
    slots_at: usize,
}

impl Numbers {
    fn words(&self) -> [u32; 11] {
        let known = [self.n_tokens, self.n_blocks, self.width, self.n_parts];
        let [a, b, c, d] = known.map(|number| number as u32);
        let (alpha, limit) = (self.alpha.to_bits(), self.limit.to_bits());
        let places = [self.extras_at, self.batches_at, self.slots_at];
        let [extras_at, batches_at, slots_at] = places.map(|place| place as u32);
        [
            a,
            b,
            c,
            d,
            0,
            self.extras,
            alpha,
            limit,
            extras_at,
            batches_at,
            slots_at,
        ]
    }
}

/// The dispatches of a job, in the order of the bindings that [`Kept`](super::kept::Kept) makes for it.
#[derive(Debug)]
pub(super) struct Passes<'a> {
    pipelines: &'a Pipelines,
    list: Vec<Pass<'a>>,
    n_tokens: usize,
    /// Whether Down's clusters are divided into parts, whose results are added.
    pub(super) has_parts: bool,
    /// Of a share: numbers of gates and ups, records of hidden values, results of parts.
    room: [usize; 3],
}

/// What a share's passes are made from.
struct Share<'a> {
    clusters: &'a [FfnCluster],
    routing: &'a Routing,
    d_model: usize,
    activation: Activation,
    /// Which extras there are, and where in the words behind the numbers.
    extras: (u32, usize),
}

/// A batch of a product's rows, as `rows.wgsl` reads it.
struct RowBatch {
    /// Of its first panel in the table.
    entry: usize,
    n_panels: usize,
    n_tokens: usize,
    /// Where its tokens are named.
    named: Option<usize>,
    results_at: usize,
    width: usize,
}

fn vector(words: [usize; 4]) -> Vector {
    words.map(|word| word as u32)
}

impl<'a> Passes<'a> {
    /// The passes of a job with these extras, which begin with so many words behind the numbers. What they need to know
    /// of batches is appended to what is given.
    pub(super) fn of(
        pipelines: &'a Pipelines,
        job: &DeviceJob,
        extras: (u32, usize),
        given: &mut Given<'_>,
    ) -> Result<Self, DeviceFault> {
        let mut passes = Self {
            pipelines,
            list: Vec::new(),
            n_tokens: job.tokens.n_tokens(),
            has_parts: false,
            room: [0; 3],
        };
        match &job.work {
            Work::Rows { panels, .. } => {
                if let Some(first) = panels.first() {
                    let batch = RowBatch {
                        entry: 0,
                        n_panels: tables::n_panels(panels.iter()),
                        n_tokens: passes.n_tokens,
                        named: None,
                        results_at: 0,
                        width: panels.iter().map(|range| range.n_rows).sum(),
                    };
                    passes.rows(first, passes.n_tokens, &[batch], given)?;
                }
            }
            Work::Share {
                clusters,
                routing,
                activation,
                ..
            } => {
                let share = Share {
                    clusters,
                    routing,
                    d_model: job.tokens.cols(),
                    activation: *activation,
                    extras,
                };
                passes.share(&share, given)?;
            }
            Work::Attention(work) if work.n_tokens > 0 => {
                let pipeline = pipelines.attention(work.kv.value_dim)?;
                let numbers = Numbers {
                    n_tokens: work.n_tokens,
                    batches_at: attention::write(work, given)?,
                    ..Numbers::default()
                };
                passes.push(pipeline, attention::groups(work), numbers);
            }
            // Only patches.
            Work::Attention(_) => {}
        }
        Ok(passes)
    }

    /// Rows in the format of `first`, for batches that usually have so many tokens.
    fn rows(
        &mut self,
        first: &PanelRange,
        usual_tokens: usize,
        batches: &[RowBatch],
        given: &mut Given<'_>,
    ) -> Result<(), DeviceFault> {
        let (pipeline, shape) = self
            .pipelines
            .product(first.block, Sink::Rows, usual_tokens)?;
        let most = |of: fn(&RowBatch) -> usize| batches.iter().map(of).max().unwrap_or(0);
        let groups = [
            most(|b| b.n_panels).div_ceil(shape.panels),
            most(|b| b.n_tokens).div_ceil(shape.tokens),
            batches.len(),
        ];
        let records = batches.iter().flat_map(|b| {
            let [entry, panels, tokens] = [b.entry, b.n_panels, b.n_tokens].map(|n| n as u32);
            let named = b.named.map_or(u32::MAX, |named| named as u32);
            let results = vector([b.results_at, b.width, 0, 0]);
            [[entry, panels, tokens, named], results]
        });
        let records: Vec<Vector> = records.collect();
        let numbers = Numbers {
            n_tokens: self.n_tokens,
            n_blocks: first.cols / PLANE_LEN,
            batches_at: given.vectors(&records),
            ..Numbers::default()
        };
        self.push(pipeline, groups, numbers);
        Ok(())
    }

    /// Gate, Up, what is between them and Down, Down, and the sum of its parts, if there are several.
    fn share(&mut self, share: &Share<'_>, given: &mut Given<'_>) -> Result<(), DeviceFault> {
        let batches = Batches::of(share.clusters, share.routing, self.n_tokens);
        if batches.list.is_empty() {
            return Ok(());
        }
        self.room = [batches.gate_ups, batches.hidden, 0];
        let is_routed = !share.routing.groups.is_empty();
        let named = is_routed.then(|| given.numbers(&share.routing.tokens));
        self.gates_and_ups(share.clusters, &batches, named, given)?;
        self.hidden(share, &batches, given)?;
        let first = share.clusters[0].down;
        let n_panels = share.d_model.div_ceil(PANEL_ROWS);
        let usual = batches.usual_tokens();
        let (pipeline, shape) = self.pipelines.product(first.block, Sink::Down, usual)?;
        let x = n_panels.div_ceil(shape.panels);
        let y = batches.most_tokens().div_ceil(shape.tokens);
        let n_results = self.n_tokens * share.d_model;
        let parts = match is_routed {
            true => routed_parts(&batches, given),
            false => {
                let n = tables::n_parts(x * y, share.clusters.len(), 8 * n_results);
                dense_parts(share.clusters, n, self.n_tokens)
            }
        };
        let n_parts = parts.len() / 2;
        self.has_parts = is_routed || n_parts > 1;
        let numbers = Numbers {
            n_tokens: self.n_tokens,
            width: share.d_model,
            n_parts,
            batches_at: given.vectors(&parts),
            ..Numbers::default()
        };
        self.push(pipeline, [x, y, n_parts], numbers);
        if self.has_parts {
            let tokens = &share.routing.tokens;
            let (results, slots_at) = match is_routed {
                true => {
                    let slots = slots(tokens, self.n_tokens, given.next_number());
                    (tokens.len(), given.numbers(&slots))
                }
                false => (n_parts * self.n_tokens, 0),
            };
            self.room[2] = results * share.d_model;
            // All results in one dimension could be more workgroups than devices allow.
            let groups = [share.d_model.div_ceil(PARTS_LANES), self.n_tokens, 1];
            let numbers = Numbers {
                slots_at,
                ..numbers
            };
            self.push(&self.pipelines.of_parts, groups, numbers);
        }
        Ok(())
    }

    /// Gate and Up of all batches, whose tokens are named from `named` on, if they are: then their tables are not kept.
    fn gates_and_ups(
        &mut self,
        clusters: &[FfnCluster],
        batches: &Batches<'_>,
        named: Option<usize>,
        given: &mut Given<'_>,
    ) -> Result<(), DeviceFault> {
        let first = &clusters[0];
        let firsts = [first.gate, first.up];
        let number = tables::of_gate_up_number(clusters);
        for (table, first) in firsts.iter().enumerate().take(number) {
            let mut rows = Vec::with_capacity(batches.list.len());
            for batch in &batches.list {
                // Up has as many as Gate, in the same table or in one of its own.
                let gates = batch.clusters.iter().map(|c| &c.gate);
                let n_panels = 2 / number * tables::n_panels(gates);
                let entry = match named {
                    Some(_) => given.vectors(&tables::of_gate_up(batch.clusters)[table]),
                    None => 0,
                };
                rows.push(RowBatch {
                    entry,
                    n_panels,
                    n_tokens: batch.n_tokens,
                    named: named.map(|named| named + batch.first_token),
                    results_at: batch.gate_ups_at,
                    width: 2 * batch.neurons,
                });
            }
            self.rows(first, batches.usual_tokens(), &rows, given)?;
        }
        Ok(())
    }

    /// What makes Down's input.
    fn hidden(
        &mut self,
        share: &Share<'_>,
        batches: &Batches<'_>,
        given: &mut Given<'_>,
    ) -> Result<(), DeviceFault> {
        let (kind, [alpha, limit]) = extras::activated(share.activation)?;
        let (extras, extras_at) = share.extras;
        let records = batches.list.iter().flat_map(|b| {
            [
                vector([b.gate_ups_at, b.neurons, b.n_tokens, b.hidden_at]),
                vector([b.first_neuron, b.first_token, 0, 0]),
            ]
        });
        let records: Vec<Vector> = records.collect();
        let numbers = Numbers {
            n_tokens: self.n_tokens,
            width: neurons(share.clusters),
            extras,
            extras_at,
            alpha,
            limit,
            batches_at: given.vectors(&records),
            ..Numbers::default()
        };
        let groups = [
            batches.most_neurons() / PLANE_LEN,
            batches.most_tokens(),
            batches.list.len(),
        ];
        self.push(self.pipelines.hidden(kind)?, groups, numbers);
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

    /// Bytes of the buffers that a job needs.
    pub(super) fn wanted(
        &self,
        context: &Context,
        job: &DeviceJob,
        given_bytes: usize,
    ) -> Result<Vec<(Use, u64)>, DeviceFault> {
        let limit = context.limits.max_compute_workgroups_per_dimension as usize;
        for Pass { groups, .. } in &self.list {
            if groups.iter().any(|&n| n > limit) {
                let problem = format!("{groups:?} are too many workgroups for the device");
                return Err(DeviceFault::BadJob(problem));
            }
        }
        let mut wanted = vec![(Use::Given, given_bytes)];
        if matches!(job.work, Work::Share { .. }) {
            let [gate_ups, hidden, partials] = self.room;
            wanted.extend([
                (Use::GateUps, 4 * gate_ups),
                (Use::Hidden, 4 * RECORD * hidden),
                (Use::Partials, 8 * partials),
            ]);
        }
        let result_bytes = RESULTS_AT + result_bytes(&job.work);
        wanted.extend([(Use::Results, result_bytes), (Use::Readback, result_bytes)]);
        let wanted = wanted.into_iter().map(|(what, bytes)| (what, bytes as u64));
        Ok(wanted.collect())
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

/// Parts of clusters that all have the same tokens, as `fixed.wgsl` reads them.
fn dense_parts(clusters: &[FfnCluster], n: usize, n_tokens: usize) -> Vec<Vector> {
    let parts = tables::parts_of_down(clusters, n).into_iter().enumerate();
    let parts = parts.flat_map(|(i, blocks)| {
        let part = vector([blocks.start, blocks.end, n_tokens, i * n_tokens]);
        [part, [0; 4]]
    });
    parts.collect()
}

/// The batches as parts, with a table of Down's blocks that is appended to what is given.
fn routed_parts(batches: &Batches<'_>, given: &mut Given<'_>) -> Vec<Vector> {
    let parts = batches.list.iter().flat_map(|batch| {
        let blocks = tables::of_down(batch.clusters);
        let first = given.vectors(&blocks);
        let part = [
            first,
            first + blocks.len(),
            batch.n_tokens,
            batch.first_token,
        ];
        // The table's number of a block is more than the batch's by `first`.
        let before = (first * batch.n_tokens) as u32;
        let origin = (batch.hidden_at as u32).wrapping_sub(before);
        [vector(part), [origin, 0, 0, 0]]
    });
    parts.collect()
}

/// Bytes of a job's results.
pub(super) fn result_bytes(work: &Work) -> usize {
    match work {
        Work::Rows { out, .. } => size_of_val(&out[..]),
        Work::Share { out, .. } => size_of_val(&out[..]),
        Work::Attention(work) => size_of_val(&work.out[..]),
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
