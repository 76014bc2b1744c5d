//! Measures the machine's current speed.

use std::hint::black_box;
use std::time::Duration;

use forebay_plans::bandwidth::rate_together;
use forebay_stages::kernels::KernelTable;

/// Time of a memory measurement: long enough for threads that do not start quite together.
const READ_TIME: Duration = Duration::from_millis(20);
/// Time of an arithmetic measurement, which is steadier.
const PEAK_TIME: Duration = Duration::from_millis(5);
/// Rounds per call: microseconds with vector instructions.
const ROUNDS: usize = 1024;

/// Cores and the kernels that run on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine<'a> {
    pub kernels: KernelTable,
    /// One thread is pinned to each.
    pub cores: &'a [usize],
}

impl Machine<'_> {
    /// Bytes per second that all cores read together, each reading the pieces of its own part repeatedly; 0 if there is
    /// nothing to read.
    pub fn read(&self, parts: &[Vec<&[u8]>]) -> f64 {
        let readers: Vec<_> = parts
            .iter()
            .filter(|pieces| pieces.iter().any(|piece| !piece.is_empty()))
            .map(|pieces| {
                let mut pieces = pieces.iter().cycle();
                move || {
                    let piece = pieces.next().copied().unwrap_or_default();
                    black_box(self.kernels.read_pass(piece));
                    piece.len() as u64
                }
            })
            .collect();
        rate_together(self.cores, readers, READ_TIME)
    }

    /// Additions and multiplications of 8-bit numbers per second.
    pub fn int8(&self) -> f64 {
        self.peak(|kernels| kernels.int8_peak(ROUNDS))
    }

    /// Additions and multiplications of f32 per second.
    pub fn f32(&self) -> f64 {
        self.peak(|kernels| kernels.f32_peak(ROUNDS))
    }

    fn peak(&self, multiply_adds: impl Fn(&KernelTable) -> u64 + Sync) -> f64 {
        let worker = || 2 * multiply_adds(&self.kernels);
        rate_together(self.cores, vec![&worker; self.cores.len()], PEAK_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_there_where_there_is_something_to_measure() {
        let machine = Machine {
            kernels: KernelTable::best(),
            cores: &[0],
        };
        let bytes = vec![1; 1 << 16];
        assert!(machine.read(&[vec![&bytes[..100], &bytes[100..]]]) > 0.0);
        assert_eq!(machine.read(&[vec![], vec![&[]]]), 0.0);
        assert!(machine.int8() > 0.0 && machine.f32() > 0.0);
    }
}
