//! Which instruction sets this CPU has.

use super::isa::Isa;
use super::table::KernelTable;

impl Isa {
    /// The fastest one that this CPU has.
    pub fn detect() -> Self {
        KernelTable::best().isa()
    }

    /// Those that this CPU has, from slow to fast.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL
            .into_iter()
            .filter(|&isa| KernelTable::new(isa).is_some())
    }
}
