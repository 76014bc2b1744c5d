//! Jobs as the CPU computes them: what a device's results are compared with, and what is done when it fails.

use forebay_kernels::{Activations, Form, KernelTable, WeightPanels};
use forebay_numbers::activation::Activation;

use crate::fault::DeviceFault;
use crate::job::{DeviceJob, FfnCluster, PanelRange, Work};

/// Computes a job whose weights are in `segment`, or the patched keys and values.
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
    if let Work::Attention(work) = &mut job.work {
        work.compute(kernels, segment);
        return Ok(());
    }
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
            routing,
            out,
        } => {
            out.fill(0);
            let most = clusters.iter().map(|c| c.gate.n_rows).max().unwrap_or(0);
            let mut ffn = Ffn {
                kernels,
                segment,
                activation: *activation,
                biases,
                neuron: 0,
                hidden: Activations::new(n_tokens, most),
            };
            if routing.groups.is_empty() {
                return ffn.add(clusters, (tokens, &[]), out);
            }
            for (of_group, named) in routing.ranges() {
                let (places, weights) = (&routing.tokens[named.clone()], &routing.weights[named]);
                if places.is_empty() {
                    ffn.skip(&clusters[of_group]);
                    continue;
                }
                let mut own = Activations::new(places.len(), tokens.cols());
                own.select(tokens, places, false);
                let mut share = vec![0; places.len() * tokens.cols()];
                ffn.add(&clusters[of_group], (&own, weights), &mut share)?;
                for (&place, share) in places.iter().zip(share.chunks_exact(tokens.cols())) {
                    let out = &mut out[place as usize * tokens.cols()..][..tokens.cols()];
                    out.iter_mut()
                        .zip(share)
                        .for_each(|(o, s)| *o = o.wrapping_add(*s));
                }
            }
            Ok(())
        }
        Work::Attention(_) => Ok(()),
    }
}

fn weights<'a>(segment: &'a [u8], range: &PanelRange) -> Result<WeightPanels<'a>, DeviceFault> {
    Ok(WeightPanels {
        block: range.block,
        bytes: &segment[range.bytes(segment.len())?],
        n_rows: range.n_rows,
    })
}

/// A share on its way through its clusters.
struct Ffn<'a> {
    kernels: &'a KernelTable,
    segment: &'a [u8],
    activation: Activation,
    /// Of Gate and Up, `[neurons of all clusters]` each, or empty.
    biases: &'a [Vec<f32>; 2],
    /// The next cluster's first neuron.
    neuron: usize,
    /// The input of Down.
    hidden: Activations,
}

impl Ffn<'_> {
    /// No token uses the next clusters.
    fn skip(&mut self, clusters: &[FfnCluster]) {
        self.neuron += clusters.iter().map(|c| c.gate.n_rows).sum::<usize>();
    }

    /// Adds the results of the next clusters for some tokens, with these weights if there are any.
    fn add(
        &mut self,
        clusters: &[FfnCluster],
        (tokens, factors): (&Activations, &[f32]),
        out: &mut [i64], // [n_tokens, d_model]
    ) -> Result<(), DeviceFault> {
        let (n_tokens, kernels) = (tokens.n_tokens(), self.kernels);
        for cluster in clusters {
            let n = cluster.gate.n_rows;
            let own = self.neuron..self.neuron + n;
            self.neuron = own.end;
            let biases = self.biases.each_ref();
            let [of_gate, of_up] = biases.map(|b| b.get(own.clone()).unwrap_or_default());
            let gates = self.rows(&cluster.gate, tokens, of_gate)?;
            let ups = self.rows(&cluster.up, tokens, of_up)?;
            let mut product = vec![0.0; n_tokens * n];
            kernels.gate_up(self.activation, &gates, &ups, &mut product);
            for (product, factor) in product.chunks_exact_mut(n.max(1)).zip(factors) {
                product.iter_mut().for_each(|p| *p *= factor);
            }
            let hidden = &mut self.hidden;
            hidden.load(kernels, Form::Panels, n_tokens, n, &product);
            let down = weights(self.segment, &cluster.down)?;
            if !kernels.fold_panels(down, hidden, out, tokens.cols()) {
                return Err(DeviceFault::OutOfRange);
            }
        }
        Ok(())
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
