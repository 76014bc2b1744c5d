//! The policies' names.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Which neurons a cache keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// `two-queue`: LRU with one queue for neurons used once and one for those used again
    /// (PowerInfer-2, section 4.2).
    TwoQueue,
    /// `lru`: the least recently used neuron is dropped first.
    Lru,
    /// `frequency`: the least frequently used neuron is dropped first; counts are halved from time to time. The
    /// default: it misses 2 to 6 % fewer neurons than two queues.
    #[default]
    Frequency,
    /// `window:K`: neurons used in the last K tokens (LLM in a Flash, section 3.1).
    Window(NonZeroU32),
    /// `none`: a neuron is forgotten when its last hold ends.
    NoCache,
}

impl PolicyKind {
    /// Default length of the window, in tokens: LLM in a Flash's choice.
    pub const DEFAULT_WINDOW: NonZeroU32 = NonZeroU32::new(5).unwrap();

    /// One of each, the window with its default length.
    pub const ALL: [Self; 5] = [
        Self::TwoQueue,
        Self::Lru,
        Self::Frequency,
        Self::Window(Self::DEFAULT_WINDOW),
        Self::NoCache,
    ];
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TwoQueue => f.pad("two-queue"),
            Self::Lru => f.pad("lru"),
            Self::Frequency => f.pad("frequency"),
            Self::Window(tokens) => f.pad(&format!("window:{tokens}")),
            Self::NoCache => f.pad("none"),
        }
    }
}

impl Serialize for PolicyKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A name that is not one of [`PolicyKind`]'s.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown neuron cache policy {0:?}; use two-queue, lru, frequency, window:K (K tokens, at least \
     1; window alone is window:{default}) or none",
    default = PolicyKind::DEFAULT_WINDOW
)]
pub struct UnknownPolicy(String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(s: &str) -> Result<Self, UnknownPolicy> {
        let unknown = || UnknownPolicy(s.to_owned());
        Ok(match s {
            "two-queue" => Self::TwoQueue,
            "lru" => Self::Lru,
            "frequency" => Self::Frequency,
            "window" => Self::Window(Self::DEFAULT_WINDOW),
            "none" => Self::NoCache,
            _ => {
                let tokens = s.strip_prefix("window:").ok_or_else(unknown)?;
                Self::Window(tokens.parse().map_err(|_| unknown())?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for (kind, name) in
            PolicyKind::ALL
                .into_iter()
                .zip(["two-queue", "lru", "frequency", "window:5", "none"])
        {
            assert_eq!(kind.to_string(), name);
            assert_eq!(name.parse(), Ok(kind));
        }
        assert_eq!("window".parse(), Ok(PolicyKind::ALL[3]));
        let window = "window:12".parse::<PolicyKind>().expect("a window");
        assert_eq!(window.to_string(), "window:12");
        for name in [
            "",
            "LRU",
            "window:",
            "window:0",
            "window:-1",
            "window:x",
            "lru:2",
        ] {
            let error = name.parse::<PolicyKind>().expect_err("no policy");
            assert!(
                error
                    .to_string()
                    .contains(&format!("{name:?}; use two-queue"))
            );
        }
    }
}
