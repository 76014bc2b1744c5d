//! Down: its columns belong to neurons, but the source stores it by output row.

use super::{Matrix, Packer, append_quantized};
use crate::block::dequantize;
use crate::bundle::FfnGeometry;
use crate::error::Result;

/// Memory for a band of Down columns while they are regrouped.
pub(super) const BAND_BYTES: usize = 8 << 20;

/// A band of columns of Down, `[d_model, band]`, read once and used cluster by cluster: the source
/// stores Down by output row, so the columns of a cluster are spread over the whole matrix.
pub(super) struct DownBand {
    pub transposed: bool,
    /// Row of the source's matrix that is the first output, of the expert at hand.
    first_row: usize,
    d_model: usize,
    /// First neuron and number of neurons held.
    first: usize,
    len: usize,
    /// Neurons per band.
    width: usize,
    bytes: Vec<u8>,
}

impl DownBand {
    /// A band of about so many bytes.
    pub fn new(down: &Matrix, g: &FfnGeometry, transposed: bool, bytes: usize) -> Self {
        // Whole clusters, so that none goes on in the next band, and whole blocks.
        let block = down.meta.block.block_len();
        let whole = (1..block).find(|n| (n * g.neurons).is_multiple_of(block));
        let granule = whole.unwrap_or(block) * g.neurons;
        let per_granule = g.d_model * band_row(down, granule);
        let width = (bytes / per_granule.max(1)).max(1) * granule;
        Self {
            transposed,
            first_row: 0,
            d_model: g.d_model,
            first: 0,
            len: 0,
            width,
            bytes: Vec::new(),
        }
    }

    /// Goes on with the expert whose outputs are the rows from this one on.
    pub fn begin(&mut self, first_row: usize) {
        (self.first_row, self.first, self.len) = (first_row, 0, 0);
    }

    /// Makes sure that neuron `first` is in the band.
    fn load(&mut self, packer: &mut Packer<'_>, down: &Matrix, first: usize) -> Result<()> {
        if (self.first..self.first + self.len).contains(&first) {
            return Ok(());
        }
        let (d_model, d_ff) = (self.d_model, down.meta.cols);
        let origin = self.first_row * down.meta.row_bytes();
        self.first = first;
        self.len = self.width.min(d_ff - first);
        let row = band_row(down, self.len);
        self.bytes.resize(d_model * row, 0);
        if self.len == d_ff {
            packer.source.read(down.id, origin, &mut self.bytes)?;
        } else {
            let start = band_row(down, first);
            for (r, out) in self.bytes.chunks_exact_mut(row).enumerate() {
                let at = origin + r * down.meta.row_bytes() + start;
                packer.source.read(down.id, at, out)?;
            }
        }
        packer.advance(self.bytes.len());
        Ok(())
    }

    /// Appends, for each output row, neurons `first..first + n` in the target format.
    pub fn append_blocks(
        &mut self,
        packer: &mut Packer<'_>,
        down: &Matrix,
        (first, n): (usize, usize),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.load(packer, down, first)?;
        let (at, len) = (band_row(down, first - self.first), band_row(down, n));
        let mut floats = vec![0.0; n];
        for (r, row) in self
            .bytes
            .chunks_exact(band_row(down, self.len))
            .enumerate()
        {
            let part = &row[at..at + len];
            if down.target == down.meta.block {
                out.extend_from_slice(part);
            } else {
                dequantize(down.meta.block, part, &mut floats);
                let importance = down.importance_of(self.first_row + r);
                let importance = importance.get(first..first + n).unwrap_or_default();
                append_quantized(down.target, &floats, importance, out);
            }
        }
        Ok(())
    }

    /// Appends columns `first..first + n` as rows of `d_model` in the target format.
    pub fn append_columns(
        &mut self,
        packer: &mut Packer<'_>,
        down: &Matrix,
        (first, n): (usize, usize),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.load(packer, down, first)?;
        if down.meta.block.block_len() > 1 {
            self.requantise_columns(down, (first, n), out);
            return Ok(());
        }
        let row = band_row(down, self.len);
        let size = down.meta.block.block_bytes();
        let mut column = Vec::with_capacity(self.d_model * size);
        let mut floats = vec![0.0; self.d_model];
        for c in first - self.first..first - self.first + n {
            column.clear();
            for r in self.bytes.chunks_exact(row) {
                column.extend_from_slice(&r[c * size..(c + 1) * size]);
            }
            if down.target == down.meta.block {
                out.extend_from_slice(&column);
            } else {
                dequantize(down.meta.block, &column, &mut floats);
                append_quantized(down.target, &floats, &[], out);
            }
        }
        Ok(())
    }

    /// The same if the source's blocks run along the neurons: they are dequantised and quantised
    /// again.
    fn requantise_columns(&self, down: &Matrix, (first, n): (usize, usize), out: &mut Vec<u8>) {
        let (d_model, block) = (self.d_model, down.meta.block);
        let start = (first - self.first) / block.block_len() * block.block_len();
        let skipped = first - self.first - start;
        let span = (skipped + n).next_multiple_of(block.block_len());
        let (at, len) = (band_row(down, start), band_row(down, span));
        let mut floats = vec![0.0; span];
        let mut columns = vec![0.0; n * d_model]; // [n, d_model]
        for (r, row) in self
            .bytes
            .chunks_exact(band_row(down, self.len))
            .enumerate()
        {
            dequantize(block, &row[at..at + len], &mut floats);
            for (c, &w) in floats[skipped..skipped + n].iter().enumerate() {
                columns[c * d_model + r] = w;
            }
        }
        for column in columns.chunks_exact(d_model) {
            append_quantized(down.target, column, &[], out);
        }
    }
}

/// Bytes of `n` consecutive source elements of a Down row.
pub(super) fn band_row(down: &Matrix, n: usize) -> usize {
    n / down.meta.block.block_len() * down.meta.block.block_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockType;
    use crate::bundle::FfnLayout;
    use crate::bundle::pack::{BundleWriter, PackOptions, StoredContents, clusters};
    use crate::source::TensorSource;
    use crate::synth::{Form, Shape, SynthOptions, SynthSource};
    use crate::tensor::{LayerTensor, TensorId};

    /// Clusters need not be whole blocks, and the matrix has more than a band.
    #[test]
    fn columns_are_those_of_the_source_wherever_bands_end() {
        let options = SynthOptions {
            form: Form::Plain,
            layers: Some(1),
            ..SynthOptions::new(Shape::named("tiny-sparse").expect("a shape"))
        };
        let source = SynthSource::new(&options).expect("a model");
        let folder = tempfile::tempdir().expect("a folder");
        let writer = BundleWriter::create(&folder.path().join("m.fbay"), 0).expect("a file");
        let stored = StoredContents::none(source.network());
        let (options, mut progress) = (PackOptions::default(), |_| {});
        let mut packer = Packer::new(&source, &options, (writer, stored), &mut progress);
        let id = TensorId::Layer(0, LayerTensor::Down);
        let mut down = packer.matrix(id).expect("a matrix");
        down.target = BlockType::F32;
        let (d_model, d_ff) = (down.meta.rows, down.meta.cols);
        let mut bytes = vec![0; down.meta.bytes()];
        source.read(id, 0, &mut bytes).expect("readable");
        let mut rows = vec![0.0; d_model * d_ff];
        dequantize(down.meta.block, &bytes, &mut rows);
        let columns = (0..d_ff).flat_map(|c| rows[c..].iter().step_by(d_ff));
        let expected: Vec<u8> = columns.flat_map(|w| w.to_le_bytes()).collect();
        // Blocks have 32 neurons.
        for (neurons, bytes) in [
            (48, 1),
            (48, 60_000),
            (96, 1),
            (20, 1),
            (64, 1),
            (64, 1 << 20),
        ] {
            let geometry = FfnGeometry {
                layout: FfnLayout::Neuron,
                gate: down.meta.block,
                up: None,
                down: down.target,
                d_model,
                neurons,
            };
            let mut band = DownBand::new(&down, &geometry, false, bytes);
            let mut found = Vec::new();
            for cluster in clusters(0..d_ff, d_ff, neurons) {
                let appended = band.append_columns(&mut packer, &down, cluster, &mut found);
                appended.expect("readable");
            }
            assert!(found == expected, "{neurons} neurons, {bytes} bytes");
        }
    }
}
