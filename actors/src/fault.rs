//! Faults as values: the first cause is kept, and the engine stays usable.

use parking_lot::Mutex;

use crate::io::ReadFault;

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The device refused or shortened a read.
    #[error("cannot read {what} at offset {offset}: {fault}")]
    Read {
        /// What was being read.
        what: String,
        /// Offset in the packed file.
        offset: u64,
        /// The driver's report.
        fault: ReadFault,
    },
    /// The bytes that were read are not those that were packed.
    #[error(
        "{what} at offset {offset}: its checksum does not match; the disk or the file is damaged: delete the packed file (`forebay cache rm` if it is in the cache folder) and pack again"
    )]
    Corrupt {
        /// What was read.
        what: String,
        /// Offset in the packed file.
        offset: u64,
    },
    /// The FFN's output is not finite.
    #[error(
        "layer {layer}: the FFN's output is not finite or impossibly large; the model's weights are damaged"
    )]
    OutOfRange {
        /// Layer concerned.
        layer: usize,
    },
    /// A core stopped.
    #[error("compute core {rank} stopped: {cause}")]
    CoreStopped {
        /// Rank of the core.
        rank: usize,
        /// Panic message or reason.
        cause: String,
    },
    /// The I/O actor stopped.
    #[error("the I/O actor stopped: {cause}")]
    IoStopped {
        /// Panic message or reason.
        cause: String,
    },
}

/// What a thread that panicked said.
pub fn cause_of_panic(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it panicked")
        .to_string()
}

/// Holds the first fault since the last `take`. It is used only once per step and when something has gone wrong, so the
/// lock is not contended while tokens are generated.
#[derive(Debug, Default)]
pub struct FaultCell(Mutex<Option<Fault>>);

impl FaultCell {
    /// Records `fault` unless an earlier one is still there.
    pub fn report(&self, fault: Fault) {
        self.0.lock().get_or_insert(fault);
    }

    /// Whether there is a fault.
    pub fn is_set(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Takes the fault out: the root cause.
    pub fn take(&self) -> Option<Fault> {
        self.0.lock().take()
    }
}
