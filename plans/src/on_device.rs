//! Which clusters a device computes, besides the core that owns them. Those that are pinned stay in memory: where the
//! device fails, the cores compute them. Streamed ones are [`Uploads`].

use std::collections::BTreeMap;

use forebay_models::block::BlockType;
use forebay_models::bundle::Bundle;
use forebay_models::network::Content;

use crate::device_formats::{self, formats};
use crate::preload::PROMPT_TOKENS;
use crate::program::{Board, Item, Part, Phase, Program, Source, Work};
use crate::uploads::Uploads;

/// Parts of every phase's clusters that a device gets, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// In steps of few tokens.
    pub decode: f64,
    /// In steps of [`PROMPT_TOKENS`] or more.
    pub prompts: f64,
}

/// Room for weights on a device.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes of all clusters.
    pub total: u64,
    /// Bytes of one phase's clusters.
    pub piece: u64,
    /// Whether that is the memory in which the CPU has them, where they begin with pages.
    pub in_pages: bool,
}

/// Which neurons a device may compute: in a job, every token needs all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neurons {
    /// None: they are seen one by one on the cores, or rules leave some out.
    None,
    /// Hot ones: predictors name the others.
    Hot,
    /// All that are in panels.
    All,
}

/// The device's clusters of a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PhaseOnDevice {
    /// By place. Their formats are alike.
    pub items: Vec<Item>,
    /// How many of them, from the first on, it computes in steps of few tokens.
    pub decode: u32,
    /// The same with [`PROMPT_TOKENS`] or more.
    pub prompts: u32,
}

impl PhaseOnDevice {
    /// How many of its clusters, from the first on, the device computes in a step.
    pub fn places(&self, n_tokens: usize) -> u32 {
        match n_tokens >= PROMPT_TOKENS {
            true => self.prompts,
            false => self.decode,
        }
    }
}

/// The device's clusters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnDevice {
    /// By phase; empty without a device.
    pub phases: Vec<PhaseOnDevice>,
    /// Streamed clusters that it computes in prompts.
    pub uploads: Option<Uploads>,
    /// The part of their attention in prompts that cores leave to it first, 0 to 1, if it attends.
    pub attention: Option<f64>,
    /// Whether parts are lowered and raised again as that is found to be faster.
    pub learns: bool,
}

/// What clusters must have in common to be in one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alike {
    /// Rows: format and columns.
    Rows(&'static str, usize),
    /// Neurons: formats of Gate, Up and Down.
    Neurons([&'static str; 3]),
}

impl OnDevice {
    /// Clusters of the cores' `programs` that a device can compute: as many of each phase as `shares` says, as far as
    /// there is `room`, and of FFNs if they have such `neurons`.
    pub fn choose(
        bundle: &Bundle,
        programs: &[Program],
        neurons: Neurons,
        shares: impl Fn(usize) -> Shares,
        room: Room,
    ) -> Self {
        let n_phases = programs.iter().map(|p| p.phases.len()).max().unwrap_or(0);
        let possible = (0..n_phases).map(|number| {
            let mut items = possible_items(bundle, programs, number, neurons);
            let mut bytes = 0;
            items.retain(|item| {
                bytes += match room.in_pages {
                    true => bundle.clusters[item.cluster as usize].padded_len() as u64,
                    false => padded(bundle, item),
                };
                bytes <= room.piece
            });
            items
        });
        let possible: Vec<Vec<Item>> = possible.collect();
        let counts = |number: usize, less: f64| {
            let (len, shares) = (possible[number].len() as f64, shares(number));
            [shares.decode, shares.prompts].map(|share| (share * less * len).round())
        };
        let bytes_of = |less: f64| -> f64 {
            let most = |number| counts(number, less)[0].max(counts(number, less)[1]) as usize;
            let taken = possible.iter().enumerate();
            let taken = taken.flat_map(|(number, items)| &items[..most(number).min(items.len())]);
            taken.map(|item| padded(bundle, item) as f64).sum()
        };
        let mut less = 1.0;
        // Rounding may add a cluster per phase, so the part is lowered until all fits.
        while bytes_of(less) > room.total as f64 {
            less *= (room.total as f64 / bytes_of(less)).min(0.98);
            if less < 1e-3 {
                return Self::default();
            }
        }
        let mut on_device = Self::default();
        for (number, mut items) in possible.iter().cloned().enumerate() {
            let [decode, prompts] = counts(number, less).map(|n| (n as usize).min(items.len()));
            items.truncate(decode.max(prompts));
            for (place, item) in (0..).zip(&mut items) {
                item.source = Source::Device { place };
            }
            on_device.phases.push(PhaseOnDevice {
                items,
                decode: decode as u32,
                prompts: prompts as u32,
            });
        }
        on_device
    }

    /// Whether nothing is computed on a device.
    pub fn is_empty(&self) -> bool {
        self.phases.iter().all(|p| p.items.is_empty())
            && self.uploads.is_none()
            && self.attention.is_none()
    }

    /// The place of each of its pinned clusters among those of its phase, by directory index:
    /// [`ResidencyPlan::device_places`](crate::residency::ResidencyPlan::device_places).
    pub fn places(&self) -> BTreeMap<u32, u32> {
        let phases = self.phases.iter();
        let places = phases.flat_map(|phase| (0..).zip(&phase.items));
        places.map(|(place, item)| (item.cluster, place)).collect()
    }

    /// Bytes of all pinned clusters of the device, as they are laid out in its memory.
    pub fn bytes(&self, bundle: &Bundle) -> u64 {
        self.phases.iter().map(|phase| phase.bytes(bundle)).sum()
    }
}

impl PhaseOnDevice {
    /// Bytes of its clusters in the device's memory.
    pub fn bytes(&self, bundle: &Bundle) -> u64 {
        self.bytes_of(bundle, self.items.len() as u32)
    }

    /// The same of the first `places`.
    pub fn bytes_of(&self, bundle: &Bundle, places: u32) -> u64 {
        let first = self.items.iter().take(places as usize);
        first.map(|item| padded(bundle, item)).sum()
    }
}

/// Bytes of a cluster in the device's memory: clusters begin at whole words.
pub fn padded(bundle: &Bundle, item: &Item) -> u64 {
    u64::from(bundle.clusters[item.cluster as usize].len).next_multiple_of(4)
}

/// The clusters of a phase, of all cores, that a device can compute in one job, in the order of the directory. Of
/// several formats, it is the one with the most bytes.
fn possible_items(
    bundle: &Bundle,
    programs: &[Program],
    number: usize,
    neurons: Neurons,
) -> Vec<Item> {
    let mut groups: BTreeMap<Alike, (u64, Vec<Item>)> = BTreeMap::new();
    for phase in programs.iter().filter_map(|p| p.phases.get(number)) {
        for item in phase.items() {
            let alike = alike(bundle, phase, item, neurons);
            if let (Source::Pinned, Some(alike)) = (item.source, alike) {
                let group = groups.entry(alike).or_default();
                group.0 += padded(bundle, item);
                group.1.push(*item);
            }
        }
    }
    let largest = groups.into_values().max_by_key(|(bytes, _)| *bytes);
    let mut items = largest.map_or_else(Vec::new, |(_, items)| items);
    items.sort_unstable_by_key(|item| item.cluster);
    items
}

/// What a cluster's job must have in common; `None` if devices cannot compute it.
fn alike(bundle: &Bundle, phase: &Phase, item: &Item, neurons: Neurons) -> Option<Alike> {
    let multiplies = |block: BlockType| device_formats::multiplies(block).then(|| block.name());
    let entry = &bundle.clusters[item.cluster as usize];
    match (&phase.work, entry.content) {
        (Work::Rows(rows), Content::Rows(tensor)) => {
            let matrix = &rows.matrices[usize::from(item.matrix)];
            let cols = bundle.meta.matrix(tensor)?.cols;
            // A router is small, and may be in two phases: its own, and that of guesses before.
            let fits = matrix.heads.is_none() && rows.board != Board::Router;
            let format = multiplies(matrix.block).filter(|_| fits)?;
            Some(Alike::Rows(format, cols))
        }
        (Work::Neurons { part, .. }, content) => {
            let formats = formats(bundle, item.cluster as usize)?;
            let computes = match content {
                Content::HotNeurons(_) => neurons != Neurons::None,
                _ => neurons == Neurons::All,
            };
            (computes && *part == Part::Whole).then_some(Alike::Neurons(formats))
        }
        _ => None,
    }
}
