//! Measures the disk: is io_uring available, and how fast are random reads at best?

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_models::files::{Partial, remove_stale_partials};
use forebay_plans::machine::MachineProfile;
use forebay_queues::slab::{Slab, SlabError, Slot};

use super::driver::{Driver, DriverChoice, DriverInfo};
use super::op::{ALIGNMENT, ReadDone, ReadFault, ReadOp};
use super::open::open_driver;
use super::random::SplitMix;
use super::refusal::{OpenError, UringRefusal};
use super::uring::best_ring;

/// Whether this process can use io_uring.
///
/// # Errors
/// The reason why not, with the remedy.
pub fn uring_available() -> Result<(), UringRefusal> {
    best_ring(1).map(drop)
}

/// More memory than the last cache gives to a program, or to a virtual machine on a shared host: reads into it end in
/// memory, as those into an expert cache do.
pub const COLD_MEMORY: usize = 64 << 20;

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLoad {
    /// Length of each read, bytes; a multiple of [`ALIGNMENT`].
    pub block_bytes: u32,
    /// Reads in flight.
    pub depth: usize,
    /// Bytes of memory in which reads land in turn, at least `depth` blocks: a virtual disk, whose host copies, is half
    /// as fast again into memory that a cache holds.
    pub memory: usize,
    /// Stop after this many bytes.
    pub bytes: u64,
    /// Or after this time.
    pub duration: Duration,
    /// Read only this many bytes from the start of the file; 0 for all of it (small ranges are faster on UFS:
    /// PowerInfer-2 section 2).
    pub range: u64,
    /// Which driver.
    pub choice: DriverChoice,
}

/// The result of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadRate {
    /// Bytes per second of wall time.
    pub bytes_per_second: f64,
    /// Reads completed.
    pub reads: u64,
    /// Duration, s.
    pub seconds: f64,
    /// The driver used, and what the system refused.
    pub info: DriverInfo,
}

/// A measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The file cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No memory for the buffers.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// A block does not fit into the file, or is not a multiple of the alignment.
    #[error("{}: blocks of {block_bytes} bytes cannot be read from a file of {file_bytes} bytes; use a multiple of {ALIGNMENT} that fits", path.display())]
    Block {
        /// The file.
        path: PathBuf,
        /// The requested block length.
        block_bytes: u32,
        /// The file's length.
        file_bytes: u64,
    },
    /// A read failed.
    #[error("{}: {fault}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What happened.
        fault: ReadFault,
    },
    /// The driver failed, or the test file cannot be written.
    #[error("{}: {source}; check free space and permissions", path.display())]
    Os {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Reads random aligned blocks of `path` and returns the rate: the ceiling for the engine's own reads of
/// that size and depth.
///
/// # Errors
/// [`ProbeError`].
pub fn measure_read(path: &Path, load: &ReadLoad) -> Result<ReadRate, ProbeError> {
    let block = load.block_bytes as usize;
    let slots = load.depth.max(load.memory / block.max(1));
    let slab_bytes = block.saturating_mul(slots);
    let mut slab = Slab::new(slab_bytes)?;
    let (mut driver, info) = open_driver(path, load.choice, load.depth, &[slab.span()])?;
    let readable = match load.range {
        0 => info.file_bytes,
        range => range.min(info.file_bytes),
    };
    let places = readable.checked_sub(u64::from(load.block_bytes));
    let aligned = load.block_bytes > 0 && load.block_bytes.is_multiple_of(ALIGNMENT);
    let Some(last) = places.filter(|_| aligned) else {
        return Err(ProbeError::Block {
            path: path.to_path_buf(),
            block_bytes: load.block_bytes,
            file_bytes: info.file_bytes,
        });
    };
    let slots: VecDeque<Slot> = std::iter::from_fn(|| {
        let mut slot = slab.carve(block)?;
        // Committed before the clock starts, as the engine's slots are.
        slot.fill(1);
        Some(slot)
    })
    .take(slots)
    .collect();
    let (reads, seconds) = read_randomly(driver.as_mut(), path, load, slots, last)?;
    Ok(ReadRate {
        bytes_per_second: (reads * u64::from(load.block_bytes)) as f64 / seconds,
        reads,
        seconds,
        info,
    })
}

/// Keeps `load.depth` reads in flight until the load is over, each into the slot that was free the longest; returns the
/// number of reads and the seconds.
fn read_randomly(
    driver: &mut dyn Driver,
    path: &Path,
    load: &ReadLoad,
    slots: VecDeque<Slot>,
    last_offset: u64,
) -> Result<(u64, f64), ProbeError> {
    let os = |source| ProbeError::Os {
        path: path.to_path_buf(),
        source,
    };
    let places = last_offset / u64::from(ALIGNMENT) + 1;
    let mut random = SplitMix(places);
    let mut request = |slot| ReadOp {
        client: 0,
        tag: 0,
        offset: random.below(places) * u64::from(ALIGNMENT),
        len: load.block_bytes,
        slot,
        slot_offset: 0,
    };
    let started = Instant::now();
    let mut done: Vec<ReadDone> = Vec::with_capacity(load.depth);
    let mut free = slots;
    let mut issued = 0u64;
    let mut reads = 0u64;
    loop {
        let over = |issued: u64| {
            issued * u64::from(load.block_bytes) >= load.bytes || started.elapsed() >= load.duration
        };
        while driver.in_flight() < load.depth
            && !over(issued)
            && let Some(slot) = free.pop_front()
        {
            if let Err(op) = driver.submit(request(slot), 0) {
                free.push_front(op.slot);
                break;
            }
            issued += 1;
        }
        if driver.in_flight() == 0 {
            break;
        }
        driver.flush().map_err(os)?;
        if driver.poll(0, &mut done) == 0 {
            driver.wait(None).map_err(os)?;
        }
        for finished in done.drain(..) {
            finished.result.map_err(|fault| ProbeError::Read {
                path: path.to_path_buf(),
                fault,
            })?;
            reads += 1;
            free.push_back(finished.slot);
        }
    }
    Ok((reads, started.elapsed().as_secs_f64()))
}

/// Writes a file of `file_bytes` incompressible bytes into `folder` to measure with; the file is deleted when it is
/// dropped.
///
/// A file that was just written may still be in the disk's own cache: prefer a real packed file.
///
/// # Errors
/// The file cannot be written.
pub fn probe_file(folder: &Path, file_bytes: u64) -> Result<Partial, ProbeError> {
    let os = |source| ProbeError::Os {
        path: folder.to_path_buf(),
        source,
    };
    // By its name, it is removed later if this process is killed.
    let profile = MachineProfile::path(folder);
    remove_stale_partials(&profile);
    let partial = Partial::beside(&profile).map_err(os)?;
    let mut file = partial.file();
    let mut random = SplitMix(file_bytes);
    let mut block = vec![0u8; 1 << 20];
    let mut left = file_bytes;
    while left > 0 {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&random.number().to_ne_bytes());
        }
        let len = left.min(block.len() as u64);
        file.write_all(&block[..len as usize]).map_err(os)?;
        left -= len;
    }
    // Blocks that are not yet on the disk would be read from memory.
    file.sync_all().map_err(os)?;
    Ok(partial)
}
