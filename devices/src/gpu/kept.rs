//! What jobs over the same weights share: tables of their panels, and the shaders' bindings. A phase's job comes again
//! with every token, so that only its numbers and tokens are new.

use std::collections::BTreeMap;

use crate::fault::DeviceFault;
use crate::job::{FfnCluster, PanelRange, Work};

use super::buffers::{Buffers, Use};
use super::context::{Context, Piece};
use super::given::Vector;
use super::passes::bind;
use super::pipelines::Pipelines;
use super::tables;

/// Jobs in flight: while one is computed, the next one waits behind it.
pub(super) const SLOTS: usize = 2;

/// Kept of one segment. A phase needs few: rows or a share, with the clusters of a token and of a prompt, and with Down
/// in parts or not. The window of streamed clusters has some for every core.
const PER_SEGMENT: usize = 16;

/// The weights of a job.
#[derive(Debug)]
enum Weights {
    Rows(Vec<PanelRange>),
    Share(Vec<FfnCluster>),
    /// Those of experts, whose tables come with every job. Gate and Up have one or two.
    Routed(usize),
    /// None: keys and values.
    Attention,
}

impl Weights {
    fn of(work: &Work) -> Self {
        match work {
            Work::Rows { panels, .. } => Self::Rows(panels.clone()),
            Work::Share {
                clusters, routing, ..
            } => match routing.groups.is_empty() {
                true => Self::Share(clusters.clone()),
                false => Self::Routed(tables::of_gate_up_number(clusters)),
            },
            Work::Attention(_) => Self::Attention,
        }
    }

    fn are_of(&self, work: &Work) -> bool {
        match (self, work) {
            (Self::Rows(held), Work::Rows { panels, .. }) => held == panels,
            (
                Self::Share(held),
                Work::Share {
                    clusters, routing, ..
                },
            ) => routing.groups.is_empty() && held == clusters,
            (
                Self::Routed(held),
                Work::Share {
                    clusters, routing, ..
                },
            ) => !routing.groups.is_empty() && *held == tables::of_gate_up_number(clusters),
            (Self::Attention, Work::Attention(_)) => true,
            _ => false,
        }
    }

    /// Of rows, or of Gate and Up and of Down.
    fn tables(&self) -> Vec<Vec<Vector>> {
        match self {
            Self::Rows(panels) => vec![tables::of_rows(panels.iter(), 0)],
            Self::Share(clusters) => {
                let mut tables = tables::of_gate_up(clusters);
                tables.push(tables::of_down(clusters));
                tables
            }
            Self::Routed(_) | Self::Attention => Vec::new(),
        }
    }
}

#[derive(Debug)]
struct Entry {
    weights: Weights,
    /// Whether Down has parts that are added.
    has_parts: bool,
    tables: Vec<Piece>,
    /// With the buffers of each slot, in the order of the passes.
    groups: [Option<Vec<wgpu::BindGroup>>; SLOTS],
}

impl Entry {
    fn new(context: &mut Context, work: &Work, has_parts: bool) -> Result<Self, DeviceFault> {
        let weights = Weights::of(work);
        let mut tables = Vec::new();
        for table in weights.tables() {
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
            has_parts,
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
        // Of pass `i`, whose panels are in a table of that number, if there is one.
        let product = |i, table: usize, x, out| {
            let (numbers, given, mark) = (buffers.numbers(i)?, buffers.tokens()?, buffers.mark()?);
            let table = self.tables.get(table);
            let table = table.map(|table| table.buffer.as_entire_binding());
            let table = table.unwrap_or_else(|| given.clone());
            let weights = weights.as_entire_binding();
            let bindings = [numbers, weights, x, out, table, mark, given];
            Ok(bind(device, &pipelines.products, bindings))
        };
        let (is_share, of_rows) = match &self.weights {
            Weights::Rows(_) => (false, 1),
            Weights::Share(_) => (true, self.tables.len() - 1),
            Weights::Routed(number) => (true, *number),
            Weights::Attention => {
                let segment = weights.as_entire_binding();
                let (numbers, results) = (buffers.numbers(0)?, buffers.results()?);
                let bindings = [
                    numbers,
                    segment,
                    results,
                    buffers.mark()?,
                    buffers.tokens()?,
                ];
                return Ok(vec![bind(device, &pipelines.attention, bindings)]);
            }
        };
        let mut groups = Vec::new();
        for i in 0..of_rows {
            let out = match is_share {
                true => buffers.whole(Use::GateUps)?,
                false => buffers.results()?,
            };
            groups.push(product(i, i, buffers.tokens()?, out)?);
        }
        if !is_share {
            return Ok(groups);
        }
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
        if self.has_parts {
            let partials = buffers.whole(Use::Partials)?;
            groups.push(product(i, of_rows, hidden, partials.clone())?);
            let (numbers, results) = (buffers.numbers(i + 1)?, buffers.results()?);
            let bindings = [numbers, partials, results, buffers.tokens()?];
            groups.push(bind(device, &pipelines.parts, bindings));
        } else {
            groups.push(product(i, of_rows, hidden, buffers.results()?)?);
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
        (work, has_parts): (&Work, bool),
    ) -> Result<&[wgpu::BindGroup], DeviceFault> {
        let entries = self.entries.entry(place.segment).or_default();
        let held = |entry: &Entry| entry.has_parts == has_parts && entry.weights.are_of(work);
        let entry = match entries.iter().position(held) {
            Some(i) => entries.remove(i),
            None => {
                if entries.len() == PER_SEGMENT {
                    free(context, entries.remove(0));
                }
                Entry::new(context, work, has_parts)?
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
