//! What of each phase a device has in its memory, and what is asked of it.

use std::sync::Arc;
use std::time::Duration;

use forebay_devices::{DeviceDriver, DeviceFault, FfnCluster, PanelRange, SegmentId};
use forebay_models::bundle::Bundle;
use forebay_models::network::Content;
use forebay_plans::on_device::{OnDevice, PhaseOnDevice};
use forebay_queues::slab::Slot;

use super::account::Account;

/// The weights of a phase's clusters in a device's memory.
#[derive(Debug)]
pub struct PhasePart {
    pub(super) segment: SegmentId,
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

impl DeviceParts {
    /// Copies the clusters `on_device` to a device, from `resident` memory, by directory index. What it has no room for
    /// stays with the cores; the first reason is returned as well.
    pub fn load(
        driver: &mut dyn DeviceDriver,
        bundle: &Bundle,
        on_device: &OnDevice,
        resident: &[Option<Slot>],
        patience: Duration,
    ) -> (Self, Option<DeviceFault>) {
        let mut first = None;
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
        let parts = Self {
            phases,
            account: Arc::default(),
            patience,
        };
        (parts, first)
    }

    /// What it has of a phase.
    pub fn of(&self, phase: usize) -> Option<&PhasePart> {
        self.phases.get(phase)?.as_ref()
    }
}

impl PhasePart {
    fn load(
        driver: &mut dyn DeviceDriver,
        bundle: &Bundle,
        phase: &PhaseOnDevice,
        resident: &[Option<Slot>],
    ) -> Result<Self, DeviceFault> {
        let mut bytes = Vec::with_capacity(phase.bytes(bundle) as usize);
        let (mut rows, mut clusters) = (Vec::new(), Vec::new());
        for item in &phase.items {
            let (index, at) = (item.cluster as usize, bytes.len());
            let entry = &bundle.clusters[index];
            let own = resident[index].as_deref().unwrap_or_default();
            let own = own
                .get(..entry.len as usize)
                .ok_or_else(|| DeviceFault::BadJob(format!("cluster {index} is not in memory")))?;
            bytes.extend_from_slice(own);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
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
            segment: driver.load(&bytes)?,
            rows,
            clusters,
        })
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
