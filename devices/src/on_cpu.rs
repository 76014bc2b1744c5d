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
            biases,
            weights,
            out,
        } => {
            out.fill(0);
            let most = clusters.iter().map(|c| c.gate.n_rows).max().unwrap_or(0);
            let mut hidden = Activations::new(n_tokens, most);
            let mut neuron = 0;
            for (i, cluster) in clusters.iter().enumerate() {
                let end = neuron + cluster.gate.n_rows;
                let ffn = Ffn {
                    kernels,
                    segment,
                    activation: *activation,
                    biases: biases
                        .each_ref()
                        .map(|b| b.get(neuron..end).unwrap_or_default()),
                    weights: weights
                        .get(i * n_tokens..(i + 1) * n_tokens)
                        .unwrap_or_default(),
                };
                ffn.add(cluster, tokens, &mut hidden, out)?;
                neuron = end;
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

/// What a cluster's work needs.
struct Ffn<'a> {
    kernels: &'a KernelTable,
    segment: &'a [u8],
    activation: Activation,
    /// Of Gate and Up, `[neurons]` each, or empty.
    biases: [&'a [f32]; 2],
    /// `[n_tokens]`, or empty.
    weights: &'a [f32],
}

impl Ffn<'_> {
    /// Adds a cluster's results.
    fn add(
        &self,
        cluster: &FfnCluster,
        tokens: &Activations,
        hidden: &mut Activations,
        out: &mut [i64], // [n_tokens, d_model]
    ) -> Result<(), DeviceFault> {
        let (n, n_tokens, kernels) = (cluster.gate.n_rows, tokens.n_tokens(), self.kernels);
        let gates = self.rows(&cluster.gate, tokens, self.biases[0])?;
        let ups = self.rows(&cluster.up, tokens, self.biases[1])?;
        let mut product = vec![0.0; n_tokens * n];
        kernels.gate_up(self.activation, &gates, &ups, &mut product);
        for (product, weight) in product.chunks_exact_mut(n.max(1)).zip(self.weights) {
            product.iter_mut().for_each(|p| *p *= weight);
        }
        hidden.load(kernels, Form::Panels, n_tokens, n, &product);
        let down = weights(self.segment, &cluster.down)?;
        match kernels.fold_panels(down, hidden, out, tokens.cols()) {
            true => Ok(()),
            false => Err(DeviceFault::OutOfRange),
        }
    }

    /// Rows with their biases, `[n_tokens, rows]`.
    fn rows(
        &self,
        range: &PanelRange,
        tokens: &Activations,
        bias: &[f32],
    ) -> Result<Vec<f32>, DeviceFault> {
        let n = range.n_rows;
        let mut out = vec![0.0; tokens.n_tokens() * n];
        let weights = weights(self.segment, range)?;
        self.kernels.panels(weights, tokens, &mut out, n);
        for row in out.chunks_exact_mut(n.max(1)) {
            row.iter_mut().zip(bias).for_each(|(r, b)| *r += b);
        }
        Ok(out)
    }
}
