//! Jobs as the CPU computes them: what a device's results are compared with, and what is done when it fails.

use forebay_kernels::{Activations, Form, KernelTable, WeightPanels};
use forebay_numbers::activation::Activation;

use crate::fault::DeviceFault;
use crate::job::{DeviceJob, FfnCluster, PanelRange, Work};

/// Computes a job whose weights are in `segment`.
///
/// # Errors
/// It does not fit the segment, or results are too large for fixed point.
pub fn compute(
    kernels: &KernelTable,
    segment: &[u8],
    job: &mut DeviceJob,
) -> Result<(), DeviceFault> {
    job.check(segment.len())?;
    let (tokens, n_tokens) = (&job.tokens, job.tokens.n_tokens());
    if n_tokens == 0 {
        return Ok(());
    }
    match &mut job.work {
        Work::Rows { panels, out } => {
            let width: usize = panels.iter().map(|range| range.n_rows).sum();
            let mut first = 0;
            for range in panels {
                let weights = weights(segment, range)?;
                kernels.panels(weights, tokens, &mut out[first..], width);
                first += range.n_rows;
            }
            Ok(())
        }
        Work::Share {
            clusters,
            activation,
            out,
        } => {
            out.fill(0);
            let most = clusters.iter().map(|c| c.gate.n_rows).max().unwrap_or(0);
            let mut hidden = Activations::new(n_tokens, most);
            for cluster in clusters {
                let weights = (segment, &*cluster);
                add_cluster(kernels, weights, *activation, tokens, &mut hidden, out)?;
            }
            Ok(())
        }
    }
}

fn weights<'a>(segment: &'a [u8], range: &PanelRange) -> Result<WeightPanels<'a>, DeviceFault> {
    Ok(WeightPanels {
        block: range.block,
        bytes: &segment[range.bytes(segment.len())?],
        n_rows: range.n_rows,
    })
}

fn add_cluster(
    kernels: &KernelTable,
    (segment, cluster): (&[u8], &FfnCluster),
    activation: Activation,
    tokens: &Activations,
    hidden: &mut Activations,
    out: &mut [i64], // [n_tokens, d_model]
) -> Result<(), DeviceFault> {
    let (n, n_tokens) = (cluster.gate.n_rows, tokens.n_tokens());
    let mut gates = vec![0.0; n_tokens * n];
    let mut ups = vec![0.0; n_tokens * n];
    kernels.panels(weights(segment, &cluster.gate)?, tokens, &mut gates, n);
    kernels.panels(weights(segment, &cluster.up)?, tokens, &mut ups, n);
    let mut product = vec![0.0; n_tokens * n];
    kernels.gate_up(activation, &gates, &ups, &mut product);
    hidden.load(kernels, Form::Panels, n_tokens, n, &product);
    let down = weights(segment, &cluster.down)?;
    match kernels.fold_panels(down, hidden, out, tokens.cols()) {
        true => Ok(()),
        false => Err(DeviceFault::OutOfRange),
    }
}
