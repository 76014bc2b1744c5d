//! How the KV cache stores keys and values.

use std::fmt;
use std::str::FromStr;

/// Number format of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvType {
    /// Half precision.
    #[default]
    F16,
    /// Signed bytes with one f32 scale per key and per value: half the memory.
    Q8,
}

impl KvType {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::F16, Self::Q8];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8 => "q8",
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is not one of [`KvType::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown KV cache format {0:?}; use f16 or q8")]
pub struct UnknownKvType(String);

impl FromStr for KvType {
    type Err = UnknownKvType;

    fn from_str(s: &str) -> Result<Self, UnknownKvType> {
        Self::ALL
            .into_iter()
            .find(|t| t.name() == s)
            .ok_or_else(|| UnknownKvType(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for kind in KvType::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("q4".parse::<KvType>().is_err());
    }
}
