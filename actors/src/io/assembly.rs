//! One operation that is done in several reads: its slot is cut into pieces and put together again.

use forebay_queues::slab::Slot;

use super::op::{ReadDone, ReadFault, ReadOp};

/// Set in a chunk's tag once the chunk has been tried again.
const RETRIED: u64 = 1 << 63;

/// The tag that a chunk carries through the driver: index of its assembly, number within it, retried.
fn chunk_tag(place: u16, number: usize) -> u64 {
    u64::from(place) << 32 | number as u64
}

/// The index of the assembly to which a chunk with this tag belongs.
pub(super) fn place_of(tag: u64) -> u16 {
    ((tag & !RETRIED) >> 32) as u16
}

/// The same read once more, unless it has already been retried.
pub(super) fn retry(chunk: ReadDone) -> Result<ReadOp, ReadDone> {
    if chunk.tag & RETRIED != 0 {
        return Err(chunk);
    }
    Ok(ReadOp {
        client: chunk.client,
        tag: chunk.tag | RETRIED,
        offset: chunk.offset,
        len: chunk.len,
        slot: chunk.slot,
        slot_offset: chunk.slot_offset,
    })
}

/// An operation in progress.
#[derive(Debug)]
pub(super) struct Assembly {
    client: u16,
    tag: u64,
    offset: u64,
    len: u32,
    slot_offset: u32,
    urgent: bool,
    /// The part of the slot that no chunk has taken yet.
    rest: Option<Slot>,
    /// Bytes taken by chunks.
    issued: u32,
    /// The finished parts of the slot, by chunk number.
    pieces: Vec<Option<Slot>>,
    outstanding: usize,
    fault: Option<ReadFault>,
    started_ns: u64,
    io_slot: u16,
}

impl Assembly {
    /// A free assembly with room for `pieces` parts.
    pub(super) fn new(pieces: usize) -> Self {
        Self {
            client: 0,
            tag: 0,
            offset: 0,
            len: 0,
            slot_offset: 0,
            urgent: false,
            rest: None,
            issued: 0,
            pieces: Vec::with_capacity(pieces),
            outstanding: 0,
            fault: None,
            started_ns: 0,
            io_slot: 0,
        }
    }

    /// Starts an operation. Its fields were checked by [`super::op::slot_range`].
    pub(super) fn begin(&mut self, op: ReadOp, urgent: bool, now_ns: u64) {
        self.pieces.clear();
        self.client = op.client;
        self.tag = op.tag;
        self.offset = op.offset;
        self.len = op.len;
        self.slot_offset = op.slot_offset;
        self.urgent = urgent;
        self.rest = Some(op.slot);
        self.issued = 0;
        self.outstanding = 0;
        self.fault = None;
        self.started_ns = now_ns;
        self.io_slot = 0;
    }

    /// Whether a client waits for it.
    pub(super) fn is_urgent(&self) -> bool {
        self.urgent
    }

    /// Cuts the next chunk of at most `limit` bytes off; `None` when all is issued, or a fault made the rest pointless.
    /// The assembly's index goes into the chunk's tag.
    pub(super) fn next_chunk(&mut self, place: u16, limit: u32) -> Option<ReadOp> {
        if self.fault.is_some() {
            return None;
        }
        let mut slot = self.rest.take()?;
        let left = self.len - self.issued;
        let lead = if self.issued == 0 {
            self.slot_offset
        } else {
            0
        };
        let len = if left > limit {
            self.rest = slot.split_off((lead + limit) as usize);
            if self.rest.is_some() { limit } else { left }
        } else {
            left
        };
        let chunk = ReadOp {
            client: self.client,
            tag: chunk_tag(place, self.pieces.len()),
            offset: self.offset + u64::from(self.issued),
            len,
            slot,
            slot_offset: lead,
        };
        self.issued += len;
        self.pieces.push(None);
        self.outstanding += 1;
        Some(chunk)
    }

    /// Whether [`next_chunk`](Self::next_chunk) has nothing more to give.
    pub(super) fn is_issued(&self) -> bool {
        self.rest.is_none() || self.fault.is_some()
    }

    /// Takes a chunk back.
    pub(super) fn accept(&mut self, chunk: ReadDone) {
        let number = (chunk.tag & 0xffff_ffff) as usize;
        if number == 0 {
            self.io_slot = chunk.io_slot;
        }
        if let Err(fault) = chunk.result {
            // The first fault is the root cause; the others follow from it or repeat it.
            self.fault.get_or_insert(fault);
        }
        self.pieces[number] = Some(chunk.slot);
        self.outstanding -= 1;
    }

    /// The finished operation, once all its chunks are back.
    pub(super) fn finish(&mut self, now_ns: u64) -> Option<ReadDone> {
        if self.outstanding > 0 || !self.is_issued() {
            return None;
        }
        let mut parts = self.pieces.drain(..).flatten().chain(self.rest.take());
        let mut slot = parts.next()?;
        for part in parts {
            // Parts of one slot, in order: they always join.
            let joined = slot.join(part);
            debug_assert!(joined.is_ok());
        }
        Some(ReadDone {
            client: self.client,
            tag: self.tag,
            offset: self.offset,
            len: self.len,
            slot,
            slot_offset: self.slot_offset,
            result: self.fault.map_or(Ok(()), Err),
            started_ns: self.started_ns,
            done_ns: now_ns,
            io_slot: self.io_slot,
        })
    }
}
