//! A value alone on its cache lines.

use std::ops::Deref;

/// Keeps `T` away from its neighbours' cache lines.
///
/// 128 bytes, not 64: x86 prefetches lines in adjacent pairs and several ARM cores have 128-byte lines,
/// so a smaller padding would still let two cores' counters fight over one unit of transfer.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
