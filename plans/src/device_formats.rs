//! Which weights devices can compute with.

use forebay_models::block::BlockType;
use forebay_models::bundle::{Bundle, FfnLayout};

/// Neurons of a cluster that devices compute are whole blocks of this many.
const NEURON_BLOCK: u32 = 32;

/// Whether devices' kernels multiply weights in this format.
pub fn multiplies(format: BlockType) -> bool {
    use BlockType as B;
    matches!(
        format,
        B::Q4_0 | B::Q8_0 | B::Q4_K | B::Q5_K | B::Q6_K | B::MXFP4
    )
}

/// Formats of Gate, Up and Down of a cluster that a device could compute; `None` for others.
pub(crate) fn formats(bundle: &Bundle, cluster: usize) -> Option<[&'static str; 3]> {
    let entry = &bundle.clusters[cluster];
    let g = bundle.meta.geometry(entry.content)?;
    let name = |block: BlockType| multiplies(block).then(|| block.name());
    let formats = [name(g.gate)?, name(g.up?)?, name(g.down)?];
    let fits = g.layout == FfnLayout::Cluster && entry.count.is_multiple_of(NEURON_BLOCK);
    fits.then_some(formats)
}
