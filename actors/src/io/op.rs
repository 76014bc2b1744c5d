//! Reads, their results, and what can go wrong.

use std::io;
use std::ops::Range;

use forebay_queues::slab::Slot;

/// Unit of offsets, lengths and slot offsets, bytes: what `O_DIRECT` needs on every common file system.
pub const ALIGNMENT: u32 = 4096;

/// One read of a piece of the packed file into an owned slot.
///
/// `offset`, `len` and `slot_offset` are multiples of [`ALIGNMENT`], and `slot_offset + len` lies inside
/// the slot; an operation that breaks this completes with a fault. The last page of the file may be partial: the bytes
/// after the end of the file are then zero.
#[derive(Debug)]
pub struct ReadOp {
    /// The index of the requesting client.
    pub client: u16,
    /// The client's own name for the read; returned unchanged.
    pub tag: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub len: u32,
    /// The memory to fill; comes back in [`ReadDone`].
    pub slot: Slot,
    /// Offset in the slot of the first byte.
    pub slot_offset: u32,
}

/// A finished read: the operation's fields, its slot and the result.
#[derive(Debug)]
pub struct ReadDone {
    /// As in the operation.
    pub client: u16,
    /// As in the operation.
    pub tag: u64,
    /// As in the operation.
    pub offset: u64,
    /// As in the operation.
    pub len: u32,
    /// The slot, owned again. On a fault its bytes are unspecified.
    pub slot: Slot,
    /// As in the operation.
    pub slot_offset: u32,
    /// Whether all wanted bytes are in the slot.
    pub result: Result<(), ReadFault>,
    /// When the read was passed to the driver, ns on the caller's clock.
    pub started_ns: u64,
    /// When the completion was seen, ns on the caller's clock.
    pub done_ns: u64,
    /// Its place in the I/O queue; two reads at the same place do not overlap in time, so a trace
    /// can draw one row per place.
    pub io_slot: u16,
}

impl ReadDone {
    /// Turns an operation into its completion.
    pub(crate) fn of(
        op: ReadOp,
        result: Result<(), FaultKind>,
        times: (u64, u64),
        io_slot: u16,
    ) -> Self {
        let fault = |kind| ReadFault {
            kind,
            offset: op.offset,
            len: op.len,
        };
        Self {
            result: result.map_err(fault),
            client: op.client,
            tag: op.tag,
            offset: op.offset,
            len: op.len,
            slot: op.slot,
            slot_offset: op.slot_offset,
            started_ns: times.0,
            done_ns: times.1,
            io_slot,
        }
    }

    /// The bytes of the slot that the read filled.
    pub fn bytes(&self) -> &[u8] {
        let start = self.slot_offset as usize;
        &self.slot[start..start + self.len as usize]
    }
}

/// Why a read failed. The caller knows the path and adds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("reading {len} bytes at {offset}: {kind}")]
pub struct ReadFault {
    /// What went wrong.
    pub kind: FaultKind,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Requested length, bytes.
    pub len: u32,
}

/// The kinds of read fault; each message ends with the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The system call failed with this `errno`.
    Os(i32),
    /// The file ended before the wanted bytes.
    ShortRead {
        /// Bytes that could be read.
        got: u32,
    },
    /// Offset, length or slot offset is not a multiple of [`ALIGNMENT`], or the length is zero.
    Misaligned,
    /// The read does not fit into its slot.
    OutsideSlot {
        /// Length of the slot, bytes.
        slot: u64,
    },
    /// The client's index is not below the number of clients that the actor was made for.
    UnknownClient(u16),
    /// The lane to the I/O actor has no room for the read.
    LaneFull {
        /// How many reads the lane has room for.
        places: usize,
    },
}

impl std::fmt::Display for FaultKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Os(errno) => {
                let source = io::Error::from_raw_os_error(errno);
                write!(
                    f,
                    "{source}; check the disk (`dmesg`, `smartctl -a`), then copy or pack the file again"
                )
            }
            Self::ShortRead { got } => write!(
                f,
                "the file ends after {got} of these bytes; it is cut off or was changed while open: \
                 copy or pack it again"
            ),
            Self::Misaligned => write!(
                f,
                "offset, length and slot offset must be positive multiples of {ALIGNMENT}; the file's \
                 index is damaged or of another version: pack it again"
            ),
            Self::OutsideSlot { slot } => write!(
                f,
                "the read does not fit into its slot of {slot} bytes; the plan was made for another \
                 file: make a new one with `forebay plan`"
            ),
            Self::UnknownClient(client) => write!(
                f,
                "client {client} is not registered with the I/O actor; this is a defect of the program: \
                 please report it"
            ),
            Self::LaneFull { places } => write!(
                f,
                "more than {places} reads are in flight, for which the lane to the I/O actor has no room; \
                 this is a defect of the program: please report it"
            ),
        }
    }
}

impl FaultKind {
    /// Whether the same read may succeed if tried again.
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Os(
                libc::EIO
                    | libc::EAGAIN
                    | libc::EBUSY
                    | libc::EINTR
                    | libc::ENOMEM
                    | libc::ETIMEDOUT
                    | libc::ECANCELED
                    | libc::EREMOTEIO
            )
        )
    }
}

/// Checks an operation; returns the range of the slot to fill.
pub(super) fn slot_range(op: &ReadOp) -> Result<Range<usize>, FaultKind> {
    let aligned = op.len > 0
        && op.len.is_multiple_of(ALIGNMENT)
        && op.slot_offset.is_multiple_of(ALIGNMENT)
        && op.offset.is_multiple_of(u64::from(ALIGNMENT));
    if !aligned {
        return Err(FaultKind::Misaligned);
    }
    let start = op.slot_offset as usize;
    match start.checked_add(op.len as usize) {
        Some(end) if end <= op.slot.len() => Ok(start..end),
        _ => Err(FaultKind::OutsideSlot {
            slot: op.slot.len() as u64,
        }),
    }
}

/// How many of the `len` bytes at `offset` a file of `file_bytes` contains: all of them, or fewer on the file's last
/// page only.
pub(super) fn wanted(offset: u64, len: u32, file_bytes: u64) -> Result<u32, FaultKind> {
    let held = file_bytes.saturating_sub(offset).min(u64::from(len)) as u32;
    if held > len.saturating_sub(ALIGNMENT) {
        Ok(held)
    } else {
        Err(FaultKind::ShortRead { got: held })
    }
}

/// Clears what follows the `wanted` bytes, so that a slot's contents depend on the file alone.
pub(super) fn zero_tail(op: &mut ReadOp, wanted: u32) {
    let start = op.slot_offset as usize;
    op.slot[start + wanted as usize..start + op.len as usize].fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_page_may_be_partial() {
        let short = |got| Err(FaultKind::ShortRead { got });
        assert_eq!(wanted(0, 8192, 8192), Ok(8192));
        assert_eq!(wanted(0, 8192, 4097), Ok(4097));
        assert_eq!(wanted(0, 8192, 4096), short(4096));
        assert_eq!(wanted(4096, 4096, 4097), Ok(1));
        assert_eq!(wanted(4096, 4096, 4096), short(0));
        assert_eq!(wanted(u64::MAX - 4095, 4096, 10), short(0));
        assert_eq!(wanted(0, 4096, 0), short(0));
    }

    #[test]
    fn faults_name_place_and_remedy() {
        let text = |kind| {
            ReadFault {
                kind,
                offset: 8192,
                len: 4096,
            }
            .to_string()
        };
        let eio = text(FaultKind::Os(libc::EIO));
        assert!(
            eio.contains("4096 bytes at 8192") && eio.contains("smartctl"),
            "{eio}"
        );
        let short = text(FaultKind::ShortRead { got: 12 });
        assert!(
            short.contains("after 12 of") && short.contains("pack it again"),
            "{short}"
        );
        assert!(text(FaultKind::Misaligned).contains("multiples of 4096"));
        assert!(text(FaultKind::OutsideSlot { slot: 64 }).contains("64 bytes"));
        assert!(text(FaultKind::UnknownClient(3)).contains("client 3"));
        assert!(text(FaultKind::LaneFull { places: 7 }).contains("more than 7 reads"));
    }
}
