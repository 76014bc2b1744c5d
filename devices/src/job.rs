//! Jobs: what a device is asked to do. A job owns its input and the room for its results, and comes back with both.

use forebay_kernels::Activations;
use forebay_numbers::block::BlockType;
use forebay_numbers::panel::panels_bytes;

use crate::fault::DeviceFault;

/// A piece of weights in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentId(pub(crate) u32);

/// Rows of a matrix in panels ([`forebay_numbers::panel`]), one panel after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelRange {
    /// Format of the elements.
    pub block: BlockType,
    /// Where the first panel begins in the segment, bytes; a multiple of 4.
    pub at: usize,
    /// Number of rows; those that pad the last panel do not count.
    pub n_rows: usize,
    /// Columns.
    pub cols: usize,
}

impl PanelRange {
    /// The bytes of the segment that the panels take.
    ///
    /// # Errors
    /// They are not all in a segment of `segment_bytes` bytes, or are not whole blocks.
    pub fn bytes(&self, segment_bytes: usize) -> Result<std::ops::Range<usize>, DeviceFault> {
        let Self {
            block,
            at,
            n_rows,
            cols,
        } = *self;
        if !at.is_multiple_of(4) {
            let problem = format!("panels begin at byte {at}, which is not a multiple of 4");
            return Err(DeviceFault::BadJob(problem));
        }
        let Some(len) = panels_bytes(block, n_rows, cols) else {
            let problem = format!("{cols} columns are not whole blocks of {block}");
            return Err(DeviceFault::BadJob(problem));
        };
        match at.checked_add(len) {
            Some(end) if end <= segment_bytes => Ok(at..end),
            _ => Err(DeviceFault::BadJob(format!(
                "{n_rows} rows of {block} take {len} bytes from byte {at} on, but the segment has {segment_bytes}"
            ))),
        }
    }
}

/// A product of weights and a batch of tokens: `out[t * n_rows + r] = w[r] . x[t]`, with the bits of
/// [`KernelTable::panels`](forebay_kernels::KernelTable::panels).
#[derive(Debug)]
pub struct DeviceJob {
    /// Told apart by the caller.
    pub id: u64,
    /// Where the weights are.
    pub segment: SegmentId,
    /// Which of them.
    pub panels: PanelRange,
    /// The tokens, in [`Form::Panels`](forebay_kernels::Form::Panels).
    pub tokens: Activations,
    /// Room for the results, `[n_tokens, n_rows]`.
    pub out: Vec<f32>,
}

impl DeviceJob {
    /// Checks what is independent of the device, and returns the bytes of the segment.
    ///
    /// # Errors
    /// The shapes do not fit each other or the segment.
    pub(crate) fn check(
        &self,
        segment_bytes: usize,
    ) -> Result<std::ops::Range<usize>, DeviceFault> {
        let (panels, tokens) = (&self.panels, &self.tokens);
        if !crate::FORMATS.contains(&panels.block) {
            let problem = format!("{} is not multiplied on devices", panels.block);
            return Err(DeviceFault::BadJob(problem));
        }
        let wanted = panels.n_rows.checked_mul(tokens.n_tokens());
        if tokens.cols() != panels.cols || wanted != Some(self.out.len()) {
            return Err(DeviceFault::BadJob(format!(
                "{} x {} weights, {} tokens of {} columns and room for {} results",
                panels.n_rows,
                panels.cols,
                tokens.n_tokens(),
                tokens.cols(),
                self.out.len()
            )));
        }
        panels.bytes(segment_bytes)
    }
}

/// A job that is over.
#[derive(Debug)]
pub struct DeviceDone {
    /// The job; its results are there if nothing failed, else they are arbitrary.
    pub job: DeviceJob,
    /// What failed.
    pub result: Result<(), DeviceFault>,
    /// From [`submit`](crate::DeviceDriver::submit) to [`poll`](crate::DeviceDriver::poll), ns.
    pub elapsed_ns: u64,
}
