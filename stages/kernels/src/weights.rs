//! Weights in the form in which kernels take them.

use forebay_numbers::block::BlockType;

/// Rows of a weight matrix in place: in a tensor, or in neuron bundles with other rows between.
#[derive(Clone, Copy, Debug)]
pub struct WeightRows<'a> {
    /// Format of the elements.
    pub block: BlockType,
    /// From the first byte of the first row to at least the last byte of the last; any alignment.
    pub bytes: &'a [u8],
    /// Bytes from the start of a row to that of the next.
    pub stride: usize,
    /// Number of rows.
    pub n_rows: usize,
}

/// Rows of a weight matrix in panels of 16; see [`forebay_numbers::panel`].
#[derive(Clone, Copy, Debug)]
pub struct WeightPanels<'a> {
    /// Format of the elements.
    pub block: BlockType,
    /// Whole panels, one after the other; any alignment.
    pub bytes: &'a [u8],
    /// Number of rows; those that pad the last panel do not count.
    pub n_rows: usize,
}
