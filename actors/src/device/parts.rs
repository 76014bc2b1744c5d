//! What of each phase a device has in its memory, and what is asked of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_devices::{DeviceDriver, DeviceFault, FfnCluster, PanelRange, SegmentId};
use forebay_models::bundle::Bundle;
use forebay_models::network::Content;
use forebay_plans::on_device::{OnDevice, PhaseOnDevice, padded};

use super::account::Account;

/// The weights of a phase's clusters in a device's memory.
#[derive(Debug)]
pub struct PhasePart {
    /// None while the cores compute them, because the budget is smaller. Changed by core 0 between two steps only.
    segment: AtomicU32,
    /// By place; one of the two is empty.
    pub(super) rows: Vec<PanelRange>,
    pub(super) clusters: Vec<FfnCluster>,
}

/// A device that the cores use.
#[derive(Debug)]
pub struct DeviceParts {
    /// By phase; `None` where it has nothing.
    phases: Vec<Option<PhasePart>>,
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
}

impl DeviceParts {
    /// Copies the clusters `on_device` to a device, from `resident` memory, by directory index. What it has no room for
    /// stays with the cores; the first reason is returned as well.
    pub fn load<'a>(
        driver: &mut dyn DeviceDriver,
        bundle: &Bundle,
        on_device: &OnDevice,
        resident: impl Fn(usize) -> &'a [u8],
        patience: Duration,
    ) -> (Self, Option<DeviceFault>) {
        let mut first = None;
        let mut load = |phase: &PhaseOnDevice| {
            let lost = matches!(first, Some(DeviceFault::Lost { .. }));
            if phase.items.is_empty() || lost {
                return None;
            }
            match PhasePart::load(driver, bundle, phase, &resident) {
                Ok(part) => Some(part),
                Err(fault) => {
                    first.get_or_insert(fault);
                    None
                }
            }
        };
        let phases = on_device.phases.iter().map(&mut load).collect();
        let parts = Self {
            phases,
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
        let parts = self.phases.iter().flatten();
        parts.filter_map(PhasePart::segment).collect()
    }

    /// What is to be done next, so that it has the clusters of the first `keep` phases and no others: it gives back before
    /// it takes.
    pub(crate) fn next_move(&self, keep: usize) -> Option<Move> {
        let keep = keep.min(self.phases.len());
        let (kept, others) = self.phases.split_at(keep);
        let numbered = others.iter().enumerate().rev();
        let mut unload = numbered.filter_map(|(i, part)| {
            let segment = part.as_ref()?.segment()?;
            Some(Move::Unload(keep + i, segment))
        });
        let missing = |part: &Option<PhasePart>| matches!(part, Some(p) if p.segment().is_none());
        let load = || kept.iter().position(missing).map(Move::Load);
        unload.next().or_else(load)
    }

    /// From now on it has the clusters of `phase` in this segment, or not at all.
    pub(crate) fn moved(&self, phase: usize, segment: Option<SegmentId>) {
        if let Some(Some(part)) = self.phases.get(phase) {
            let number = segment.unwrap_or(SegmentId::NONE).number();
            // The cores get their next step after this one's reports.
            part.segment.store(number, Ordering::Relaxed);
        }
    }
}

/// The bytes of a phase's clusters, as a device has them.
pub(crate) fn gather<'a>(
    bundle: &Bundle,
    phase: &PhaseOnDevice,
    resident: impl Fn(usize) -> &'a [u8],
) -> Result<Vec<u8>, DeviceFault> {
    let mut bytes = Vec::with_capacity(phase.bytes(bundle) as usize);
    for item in &phase.items {
        let index = item.cluster as usize;
        let own = resident(index).get(..bundle.clusters[index].len as usize);
        let own =
            own.ok_or_else(|| DeviceFault::BadJob(format!("cluster {index} is not in memory")))?;
        let end = bytes.len() + padded(bundle, item) as usize;
        bytes.extend_from_slice(own);
        bytes.resize(end, 0);
    }
    Ok(bytes)
}

impl PhasePart {
    fn load<'a>(
        driver: &mut dyn DeviceDriver,
        bundle: &Bundle,
        phase: &PhaseOnDevice,
        resident: impl Fn(usize) -> &'a [u8],
    ) -> Result<Self, DeviceFault> {
        let mut part = Self::lay_out(bundle, phase)?;
        let segment = driver.load(&gather(bundle, phase, resident)?)?;
        *part.segment.get_mut() = segment.number();
        Ok(part)
    }

    /// Where the clusters of `phase` will be in their segment.
    fn lay_out(bundle: &Bundle, phase: &PhaseOnDevice) -> Result<Self, DeviceFault> {
        let mut at = 0;
        let (mut rows, mut clusters) = (Vec::new(), Vec::new());
        for item in &phase.items {
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
            at += padded(bundle, item) as usize;
        }
        Ok(Self {
            segment: AtomicU32::new(SegmentId::NONE.number()),
            rows,
            clusters,
        })
    }

    /// Where they are on the device.
    pub(super) fn segment(&self) -> Option<SegmentId> {
        let segment = SegmentId::of_number(self.segment.load(Ordering::Relaxed));
        (segment != SegmentId::NONE).then_some(segment)
    }
}

/// Where the panels of a cluster of `n` neurons are that begins at byte `at`.
fn cluster(
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
