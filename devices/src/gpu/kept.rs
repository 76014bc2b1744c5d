//! What jobs over the same weights share: tables of their panels, and the shaders' bindings. A phase's job comes again
//! with every token, so that only its numbers and tokens are new.

use std::collections::BTreeMap;

use crate::fault::DeviceFault;
use crate::job::{FfnCluster, PanelRange, Work};

use super::buffers::{Buffers, Use};
use super::context::{Context, Piece};
use super::passes::bind;
use super::pipelines::Pipelines;
use super::tables;

/// Jobs in flight: while one is computed, the next one waits behind it.
pub(super) const SLOTS: usize = 2;

/// Kept of one segment. A phase needs few: rows or a share, with the clusters of a token and of a prompt, and Down's
/// parts by the size of the batch. The window of streamed clusters has some for every core.
const PER_SEGMENT: usize = 16;

/// The weights of a job.
#[derive(Debug)]
enum Weights {
    Rows(Vec<PanelRange>),
    Share(Vec<FfnCluster>),
}

impl Weights {
    fn of(work: &Work) -> Self {
        match work {
            Work::Rows { panels, .. } => Self::Rows(panels.clone()),
            Work::Share { clusters, .. } => Self::Share(clusters.clone()),
        }
    }

    fn are_of(&self, work: &Work) -> bool {
        match (self, work) {
            (Self::Rows(held), Work::Rows { panels, .. }) => held == panels,
            (Self::Share(held), Work::Share { clusters, .. }) => held == clusters,
            _ => false,
        }
    }

    /// Of rows, or of Gate and Up and of Down.
    fn tables(&self, n_parts: usize) -> Vec<Vec<[u32; 4]>> {
        match self {
            Self::Rows(panels) => vec![tables::of_rows(panels.iter(), 0)],
            Self::Share(clusters) => {
                let mut tables = tables::of_gate_up(clusters);
                tables.push(tables::of_down(clusters, n_parts));
                tables
            }
        }
    }
}

#[derive(Debug)]
struct Entry {
    weights: Weights,
    n_parts: usize,
    tables: Vec<Piece>,
    /// With the buffers of each slot, in the order of the passes.
    groups: [Option<Vec<wgpu::BindGroup>>; SLOTS],
}

impl Entry {
    fn new(context: &mut Context, work: &Work, n_parts: usize) -> Result<Self, DeviceFault> {
        let weights = Weights::of(work);
        let mut tables = Vec::new();
        for table in weights.tables(n_parts) {
            match context.filled(bytemuck::cast_slice(&table)) {
                Ok(piece) => tables.push(piece),
                Err(fault) => {
                    tables.into_iter().for_each(|piece| context.free(piece));
                    return Err(fault);
                }
            }
        }
        Ok(Self {
            weights,
            n_parts,
            tables,
            groups: Default::default(),
        })
    }

    /// The bindings of all passes.
    fn bind(
        &self,
        device: &wgpu::Device,
        pipelines: &Pipelines,
        weights: &wgpu::Buffer,
        buffers: &Buffers,
    ) -> Result<Vec<wgpu::BindGroup>, DeviceFault> {
        // Of pass `i`, whose panels are in `table`.
        let product = |i, table: &Piece, x, out| {
            let (numbers, mark) = (buffers.numbers(i)?, buffers.mark()?);
            let [weights, table] = [weights, &table.buffer].map(wgpu::Buffer::as_entire_binding);
            let bindings = [numbers, weights, x, out, table, mark];
            Ok(bind(device, &pipelines.products, bindings))
        };
        let (down, of_rows) = match (&self.weights, self.tables.split_last()) {
            (Weights::Share(_), Some((down, gate_up))) => (Some(down), gate_up),
            _ => (None, &self.tables[..]),
        };
        let mut groups = Vec::new();
        for (i, table) in of_rows.iter().enumerate() {
            let out = match down {
                Some(_) => buffers.whole(Use::GateUps)?,
                None => buffers.results()?,
            };
            groups.push(product(i, table, buffers.tokens()?, out)?);
        }
        let Some(down) = down else {
            return Ok(groups);
        };
        let bindings = [
            buffers.numbers(groups.len())?,
            buffers.whole(Use::GateUps)?,
            buffers.whole(Use::Hidden)?,
            buffers.mark()?,
            buffers.tokens()?,
        ];
        groups.push(bind(device, &pipelines.hidden, bindings));
        let hidden = buffers.whole(Use::Hidden)?;
        let i = groups.len();
        if self.n_parts > 1 {
            let partials = buffers.whole(Use::Partials)?;
            groups.push(product(i, down, hidden, partials.clone())?);
            let bindings = [buffers.numbers(i + 1)?, partials, buffers.results()?];
            groups.push(bind(device, &pipelines.parts, bindings));
        } else {
            groups.push(product(i, down, hidden, buffers.results()?)?);
        }
        Ok(groups)
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// By segment, the one that was used last at the end.
    entries: BTreeMap<u32, Vec<Entry>>,
}

/// Where a job is computed.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) slot: usize,
    pub(super) buffers: &'a Buffers,
    /// The segment, and its weights.
    pub(super) segment: u32,
    pub(super) weights: &'a wgpu::Buffer,
}

impl Kept {
    /// The bindings of a job's passes, made if they are not kept.
    pub(super) fn bindings(
        &mut self,
        context: &mut Context,
        pipelines: &Pipelines,
        place: Place<'_>,
        (work, n_parts): (&Work, usize),
    ) -> Result<&[wgpu::BindGroup], DeviceFault> {
        let entries = self.entries.entry(place.segment).or_default();
        let held = |entry: &Entry| entry.n_parts == n_parts && entry.weights.are_of(work);
        let entry = match entries.iter().position(held) {
            Some(i) => entries.remove(i),
            None => {
                if entries.len() == PER_SEGMENT {
                    free(context, entries.remove(0));
                }
                Entry::new(context, work, n_parts)?
            }
        };
        entries.push(entry);
        let Some(entry) = entries.last_mut() else {
            return Ok(&[]);
        };
        if entry.groups[place.slot].is_none() {
            let groups = context.guarded(0, |device| {
                entry.bind(device, pipelines, place.weights, place.buffers)
            })?;
            entry.groups[place.slot] = Some(groups?);
        }
        Ok(entry.groups[place.slot].as_deref().unwrap_or_default())
    }

    /// Forgets the bindings with the buffers of a slot.
    pub(super) fn forget(&mut self, slot: usize) {
        for entry in self.entries.values_mut().flatten() {
            entry.groups[slot] = None;
        }
    }

    /// Gives up what is kept of a segment.
    pub(super) fn unload(&mut self, context: &mut Context, segment: u32) {
        let entries = self.entries.remove(&segment).unwrap_or_default();
        entries.into_iter().for_each(|entry| free(context, entry));
    }
}

fn free(context: &mut Context, entry: Entry) {
    entry
        .tables
        .into_iter()
        .for_each(|piece| context.free(piece));
}
