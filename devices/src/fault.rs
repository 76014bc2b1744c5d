//! What can go wrong with a device. Every fault is a value, and for every one the cores can compute the same job.

use forebay_numbers::block::BlockType;

/// Why a device, or one of its jobs, failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceFault {
    /// There is no such device.
    #[error("no device {wanted}: {found}; install the GPU's Vulkan driver, or compute on the CPU")]
    NoAdapter {
        /// What was asked for.
        wanted: String,
        /// Which devices there are.
        found: String,
    },
    /// The program was built without code for devices.
    #[error("no device {wanted}: this program was built without GPU support")]
    NotBuilt {
        /// What was asked for.
        wanted: String,
    },
    /// The device could not be opened.
    #[error("cannot open {adapter}: {reason}; update its driver, or compute on the CPU")]
    NotOpened {
        /// Its name.
        adapter: String,
        /// What the driver said.
        reason: String,
    },
    /// The device is gone, with everything that was in its memory. Later jobs fail likewise.
    #[error("the device was lost: {reason}; the rest is computed on the CPU")]
    Lost {
        /// What the driver said.
        reason: String,
    },
    /// The device has no memory for this.
    #[error(
        "the device has no memory for {bytes} more bytes{}; give it fewer weights or a larger share",
        left.map_or_else(String::new, |left| format!(" ({left} are left of its share)"))
    )]
    OutOfMemory {
        /// How much was asked for.
        bytes: u64,
        /// How much the share that it was given still allows; `None` if the driver refused.
        left: Option<u64>,
    },
    /// One piece of memory is larger than the driver allows.
    #[error("{bytes} bytes in one piece, but the device allows {limit}; use smaller segments")]
    TooLarge {
        /// How much was asked for.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Numbers in the job are so large or so small that the device's arithmetic may differ from the CPU's.
    #[error("the job has numbers outside the device's exact range; the CPU computes it")]
    OutOfRange,
    /// The job does not fit its segment, or the device cannot do it.
    #[error("no job for this device: {0}")]
    BadJob(String),
    /// The device does not compute what the CPU computes.
    #[error(
        "the device multiplies {block} with other results than the CPU ({wrong} of {total}); it is not used. \
         Update its driver"
    )]
    WrongResults {
        /// The format.
        block: BlockType,
        /// Results that differ.
        wrong: usize,
        /// Results that were compared.
        total: usize,
    },
    /// The device does not attend as the CPU does.
    #[error(
        "the device attends with other results than the CPU ({wrong} of {total}); it is not used. Update its driver"
    )]
    WrongAttention {
        /// Results that differ.
        wrong: usize,
        /// Results that were compared.
        total: usize,
    },
    /// The device's arithmetic has other roundings, even of single products.
    #[error(
        "the device rounds products in another way than the CPU ({wrong} of {total}); it is not used. Update its \
         driver"
    )]
    WrongRounding {
        /// Results that differ.
        wrong: usize,
        /// Results that were compared.
        total: usize,
    },
    /// The device does not finish.
    #[error("the device has not finished a job after {seconds} s; it is not used")]
    Stuck {
        /// How long was waited.
        seconds: u64,
    },
}
