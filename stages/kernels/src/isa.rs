//! Instruction sets by name.

use std::fmt;
use std::str::FromStr;

/// Instruction sets with kernels of their own. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust, everywhere.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// The same with AVX-VNNI.
    AvxVnni,
    /// x86-64 with AVX-512 (F, BW, DQ, VL) and VNNI.
    Avx512,
    /// The same with tiles of bytes (AMX), for products of several tokens.
    Amx,
    /// AArch64 with NEON.
    Neon,
    /// AArch64 with NEON and its dot products of bytes.
    NeonDotprod,
    /// AArch64 with NEON, its dot products and its matrix products of bytes.
    NeonI8mm,
}

impl Isa {
    /// From slow to fast on each architecture.
    pub const ALL: [Self; 8] = [
        Self::Scalar,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Amx,
        Self::Neon,
        Self::NeonDotprod,
        Self::NeonI8mm,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avxvnni",
            Self::Avx512 => "avx512vnni",
            Self::Amx => "amx",
            Self::Neon => "neon",
            Self::NeonDotprod => "neon-dotprod",
            Self::NeonI8mm => "neon-i8mm",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is not one of [`Isa::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown instruction set {0:?}; use scalar, avx2, avxvnni, avx512vnni, amx, neon, neon-dotprod or neon-i8mm"
)]
pub struct UnknownIsa(String);

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(s: &str) -> Result<Self, UnknownIsa> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.name() == s)
            .ok_or_else(|| UnknownIsa(s.to_owned()))
    }
}
