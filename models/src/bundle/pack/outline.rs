//! A packed file without its weights: enough to plan a model that has not been packed.

use std::path::Path;

use super::{PackOptions, Packer, StoredContents, metadata};
use crate::bundle::writer::BundleWriter;
use crate::bundle::{Bundle, FfnGeometry, NeuronSums, SourceIdentity, StoredMatrix, Vectors};
use crate::error::Result;
use crate::network::Content;
use crate::panel::panels_bytes;
use crate::source::TensorSource;
use crate::tensor::TensorId;

/// The packed file that `source` would become under the name `out`, with holes instead of weights. It takes little
/// time, is in memory, has no name, and is gone when the result is dropped.
///
/// # Errors
/// As [`super::pack`]'s, but for the weights.
pub fn outline(source: &dyn TensorSource, out: &Path, options: &PackOptions) -> Result<Bundle> {
    let identity = SourceIdentity::of(source.path())?;
    let stored = StoredContents::none(source.network());
    let nobody = &mut |_| {};
    let writer = BundleWriter::in_memory(out)?;
    let mut packer = Packer::new(source, options, (writer, stored), nobody);
    for content in source.network().contents(source.has_predictors()) {
        packer.store(content, Packer::outline_ffn, Packer::outline_rows)?;
    }
    let Packer { writer, stored, .. } = packer;
    let meta = metadata(source, stored, identity);
    let texts = (&*source.tokenizer(), source.chat_templates());
    writer.finish_unnamed(&meta, texts, &Vectors::read(source)?)
}

impl Packer<'_> {
    fn outline_rows(&mut self, content: Content, id: TensorId) -> Result<StoredMatrix> {
        let (m, stored, clusters) = self.matrix_clusters(id)?;
        for (first, n) in clusters {
            let bytes = match content {
                Content::Table(_) => Some(n * m.row_bytes()),
                _ => panels_bytes(m.target, n, m.meta.cols),
            };
            // If rows were no whole blocks, opening the file would say so.
            let bytes = bytes.unwrap_or_default();
            self.writer.hole(content, (first, n), bytes)?;
        }
        Ok(stored)
    }

    fn outline_ffn(&mut self, content: Content, l: usize) -> Result<FfnGeometry> {
        let (matrices, layout, _) = self.ffn_matrices(content, l)?;
        let (g, clusters) = self.neuron_clusters(content, (&matrices, layout));
        for (first, n) in clusters {
            self.writer.hole(content, (first, n), g.cluster_bytes(n))?;
            if layout.is_by_neuron() {
                let sums = NeuronSums::of(&[], &[]);
                (0..n).for_each(|_| self.writer.copy_neuron_sums(sums));
            }
        }
        Ok(g)
    }
}
