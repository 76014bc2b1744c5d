//! What of each phase a device has in its memory, and what is asked of it.

use std::sync::Arc;
use std::time::Duration;

use forebay_devices::{DeviceDriver, DeviceFault, FfnCluster, PanelRange, SegmentId};
use forebay_models::bundle::Bundle;
use forebay_models::network::Content;
use forebay_plans::on_device::{OnDevice, PhaseOnDevice, padded};
use forebay_plans::program::Item;
use forebay_plans::uploads::UploadWindow;
use forebay_stages::attention::KvRoom;
use forebay_stages::weights::Resident;

use super::account::Account;
use super::balance::Balance;
use super::kv_copies::KvCopies;
use super::segment_cell::SegmentCell;

/// The window for streamed clusters in a device's memory.
#[derive(Debug)]
pub struct Window {
    segment: SegmentCell,
    pub(super) sizes: UploadWindow,
}

impl Window {
    /// Where it is on the device.
    pub fn segment(&self) -> Option<SegmentId> {
        self.segment.get()
    }
}

/// The weights of a phase's clusters in a device's memory.
#[derive(Debug)]
pub struct PhasePart {
    segment: SegmentCell,
    /// By place; one of the two is empty.
    pub(super) rows: Vec<PanelRange>,
    pub(super) clusters: Vec<FfnCluster>,
}

/// A device that the cores use.
#[derive(Debug)]
pub struct DeviceParts {
    /// By phase; `None` where it has nothing.
    phases: Vec<Option<PhasePart>>,
    /// Whether it computes with the CPU's memory, so that nothing of it moves but the window.
    imports: bool,
    /// For streamed clusters, if it computes any; counted as one more phase where memory moves.
    window: Option<Arc<Window>>,
    /// Of keys and values, if it attends; they count as phases behind the window.
    kv: Option<Arc<KvCopies>>,
    /// What it has done.
    pub account: Arc<Account>,
    /// Core 0 waits for a job at most this long.
    pub patience: Duration,
}

/// What is to be done next, so that a device has the weights that it may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// This phase's are given back.
    Unload(usize, SegmentId),
    /// This phase's are copied again.
    Load(usize),
    /// There is a window of so many bytes again, which is that of this phase.
    Reserve(usize, u64),
}

impl DeviceParts {
    /// Gives a device the clusters `on_device`, as copies or where they are `resident`. What it has no room for stays
    /// with the cores; the first reason is returned as well. If streamed clusters are copied, it has a window for them,
    /// and if it attends, room for the keys and values of `cores` cores. Of a device's own memory, `spare` bytes are
    /// left for jobs.
    pub fn load(
        driver: &mut dyn DeviceDriver,
        bundle: &Bundle,
        on_device: &OnDevice,
        (resident, kv_room, cores): (&Resident, &KvRoom, usize),
        (patience, spare): (Duration, u64),
    ) -> (Self, Option<DeviceFault>) {
        let mut first = None;
        // Weights may fill the device, and then its jobs would have no memory.
        let held = match driver.shares_memory() {
            true => None,
            false => driver.reserve(spare).ok(),
        };
        let mut window = |sizes: UploadWindow| match driver.reserve(sizes.device_bytes()) {
            Ok(segment) => Some(Arc::new(Window {
                segment: SegmentCell::new(Some(segment)),
                sizes,
            })),
            Err(fault) => {
                first = Some(fault);
                None
            }
        };
        // Before what is pinned, which may fill the device: more weights go through the window.
        let window = on_device.uploads.as_ref().and_then(|u| window(u.window));
        let network = (&bundle.meta.network, kv_room, cores);
        let kv = on_device.attention.and_then(|part| {
            let balance = Balance::new(part, on_device.learns);
            let reserved = KvCopies::reserve(driver, network, balance);
            let copies = reserved.map_err(|fault| first.get_or_insert(fault).clone());
            copies.ok().map(Arc::new)
        });
        let mut load = |phase: &PhaseOnDevice| {
            let lost = matches!(first, Some(DeviceFault::Lost { .. }));
            if phase.items.is_empty() || lost {
                return None;
            }
            match PhasePart::load(driver, bundle, phase, resident) {
                Ok(part) => Some(part),
                Err(fault) => {
                    first.get_or_insert(fault);
                    None
                }
            }
        };
        let phases = on_device.phases.iter().map(&mut load).collect();
        held.into_iter().for_each(|segment| driver.unload(segment));
        let parts = Self {
            phases,
            imports: driver.imports(),
            window,
            kv,
            account: Arc::default(),
            patience,
        };
        (parts, first)
    }

    /// What it has of a phase now.
    pub fn of(&self, phase: usize) -> Option<&PhasePart> {
        let part = self.phases.get(phase)?.as_ref();
        part.filter(|part| part.segment().is_some())
    }

    /// All segments that it has.
    pub(super) fn segments(&self) -> Vec<SegmentId> {
        let window = self.window.iter().filter_map(|window| window.segment());
        let parts = self.phases.iter().flatten();
        let kv = self.kv.iter().flat_map(|kv| kv.segments());
        let parts = parts.filter_map(PhasePart::segment);
        parts.chain(window).chain(kv).collect()
    }

    /// Its copies of keys and values, if it attends.
    pub fn kv(&self) -> Option<Arc<KvCopies>> {
        self.kv.clone()
    }

    /// The window for streamed clusters, if there is one.
    pub fn window(&self) -> Option<Arc<Window>> {
        self.window.clone()
    }

    /// What is to be done next, so that it has the clusters of the first `keep` phases and no others: it gives back
    /// before it takes. The window is behind the last phase, and copies of keys and values, all or none, behind the
    /// window.
    pub(crate) fn next_move(&self, keep: usize) -> Option<Move> {
        let number = self.phases.len();
        let kv = self.kv.as_ref().map(|kv| (kv, keep > number + kv.len()));
        if let Some((i, segment)) = kv.and_then(|(kv, kept)| kv.next_to_unload(kept)) {
            return Some(Move::Unload(number + 1 + i, segment));
        }
        self.next_of_weights(keep).or_else(|| {
            let (i, bytes) = kv.and_then(|(kv, kept)| kv.next_to_reserve(kept))?;
            Some(Move::Reserve(number + 1 + i, bytes))
        })
    }

    /// The same of phases and the window.
    fn next_of_weights(&self, keep: usize) -> Option<Move> {
        let number = self.phases.len();
        let keep = if self.imports { keep.max(number) } else { keep };
        let window = self
            .window
            .as_ref()
            .map(|window| (window, window.segment()));
        if let Some((_, Some(segment))) = window.filter(|_| keep <= number) {
            return Some(Move::Unload(number, segment));
        }
        let reserve = || match window.filter(|_| keep > number) {
            Some((window, None)) => Some(Move::Reserve(number, window.sizes.device_bytes())),
            _ => None,
        };
        let keep = keep.min(number);
        let (kept, others) = self.phases.split_at(keep);
        let numbered = others.iter().enumerate().rev();
        let mut unload = numbered.filter_map(|(i, part)| {
            let segment = part.as_ref()?.segment()?;
            Some(Move::Unload(keep + i, segment))
        });
        let missing = |part: &Option<PhasePart>| matches!(part, Some(p) if p.segment().is_none());
        let load = || kept.iter().position(missing).map(Move::Load);
        unload.next().or_else(load).or_else(reserve)
    }

    /// From now on it has the clusters of `phase` in this segment, or not at all.
    pub(crate) fn moved(&self, phase: usize, segment: Option<SegmentId>) {
        let others = phase.checked_sub(self.phases.len());
        match (
            self.phases.get(phase),
            others.and_then(|i| i.checked_sub(1)),
        ) {
            (Some(part), _) => part.iter().for_each(|part| part.segment.set(segment)),
            (None, None) => self.window.iter().for_each(|w| w.segment.set(segment)),
            (None, Some(copy)) => self.kv.iter().for_each(|kv| kv.moved(copy, segment)),
        }
    }
}

/// The bytes of a phase's clusters, where the CPU has them.
fn resident_parts<'a>(
    bundle: &Bundle,
    phase: &PhaseOnDevice,
    resident: &'a Resident,
) -> Result<Vec<&'a [u8]>, DeviceFault> {
    let own = |item: &Item| {
        let index = item.cluster as usize;
        let len = bundle.clusters[index].len as usize;
        resident.bytes(index).get(..len).ok_or_else(not_there)
    };
    phase.items.iter().map(own).collect()
}

/// The bytes of a phase's clusters, as a device has them.
pub(crate) fn gather(
    bundle: &Bundle,
    phase: &PhaseOnDevice,
    resident: &Resident,
) -> Result<Vec<u8>, DeviceFault> {
    let mut bytes = Vec::with_capacity(phase.bytes(bundle) as usize);
    let parts = resident_parts(bundle, phase, resident)?;
    for (item, own) in phase.items.iter().zip(parts) {
        let end = bytes.len() + padded(bundle, item) as usize;
        bytes.extend_from_slice(own);
        bytes.resize(end, 0);
    }
    Ok(bytes)
}

/// A cluster that was to be resident is not.
fn not_there() -> DeviceFault {
    DeviceFault::BadJob("a cluster for the device is not in memory".to_owned())
}

impl PhasePart {
    fn load(
        driver: &mut dyn DeviceDriver,
        bundle: &Bundle,
        phase: &PhaseOnDevice,
        resident: &Resident,
    ) -> Result<Self, DeviceFault> {
        let clusters = phase.items.iter().map(|item| item.cluster as usize);
        let (mut part, segment) = if driver.imports() {
            let (memory, range) = resident.span(clusters).ok_or_else(not_there)?;
            let first = range.start;
            let part = Self::lay_out(bundle, phase, |item| {
                resident.start(item.cluster as usize) - first
            })?;
            (part, driver.import(memory, range)?)
        } else {
            let mut end = 0;
            let part = Self::lay_out(bundle, phase, |item| {
                let at = end;
                end += padded(bundle, item) as usize;
                at
            })?;
            (
                part,
                driver.load_parts(&resident_parts(bundle, phase, resident)?)?,
            )
        };
        part.segment = SegmentCell::new(Some(segment));
        Ok(part)
    }

    /// Where the panels of `phase` will be in a segment in which each cluster begins where `begins` says.
    fn lay_out(
        bundle: &Bundle,
        phase: &PhaseOnDevice,
        mut begins: impl FnMut(&Item) -> usize,
    ) -> Result<Self, DeviceFault> {
        let (mut rows, mut clusters) = (Vec::new(), Vec::new());
        for item in &phase.items {
            let at = begins(item);
            let entry = &bundle.clusters[item.cluster as usize];
            let n = entry.count as usize;
            if let Content::Rows(tensor) = entry.content {
                let matrix = bundle.meta.matrix(tensor);
                let matrix = matrix.ok_or_else(|| {
                    DeviceFault::BadJob(format!("{tensor:?} is not in the packed model"))
                })?;
                rows.push(PanelRange {
                    block: matrix.block,
                    at,
                    n_rows: n,
                    cols: matrix.cols,
                });
            } else {
                clusters.push(cluster(bundle, entry.content, n, at)?);
            }
        }
        Ok(Self {
            segment: SegmentCell::new(None),
            rows,
            clusters,
        })
    }

    /// Where they are on the device.
    pub(super) fn segment(&self) -> Option<SegmentId> {
        self.segment.get()
    }
}

/// Where the panels of a cluster of `n` neurons are that begins at byte `at`.
pub(super) fn cluster(
    bundle: &Bundle,
    content: Content,
    n: usize,
    at: usize,
) -> Result<FfnCluster, DeviceFault> {
    let geometry = bundle.meta.geometry(content);
    let Some((g, up)) = geometry.and_then(|g| Some((g, g.up?))) else {
        return Err(DeviceFault::BadJob(format!(
            "{content:?} has no gated neurons"
        )));
    };
    let rows = |block, at| PanelRange {
        block,
        at,
        n_rows: n,
        cols: g.d_model,
    };
    let after_gate = at + g.gate_bytes(n);
    Ok(FfnCluster {
        gate: rows(g.gate, at),
        up: rows(up, after_gate),
        down: PanelRange {
            block: g.down,
            at: after_gate + g.up_bytes(n),
            n_rows: g.d_model,
            cols: n,
        },
    })
}
