//! The sizes of a `tokenizer.json`, counted in passing: the crate makes several copies of all that it reads, so what is
//! too much is refused before it reads anything.

use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::FILE;
use crate::error::{ModelError, Result};
use crate::limits::{MAX_MERGES, MAX_TOKENS};
use crate::tokenizer::limits::MAX_ADDED;

/// Most JSON values in a part other than vocabulary, merges and added tokens; usual ones have a few dozen, and a
/// template for many languages some thousand.
const MAX_VALUES: usize = 20_000;

/// Most JSON values in an entry of a list: an added token has a dozen.
const MAX_ENTRY: usize = 32;

/// Checks that `json` has the parts of a tokenizer, and not too much of any.
///
/// # Errors
/// It has not; or it is no JSON.
pub(in crate::tokenizer) fn check(json: &str) -> Result<()> {
    serde_json::from_str::<Outline>(json)
        .map(|_| ())
        .map_err(|e| ModelError::damaged(FILE, "(whole file)", e.to_string()))
}

struct Outline;

impl<'de> Deserialize<'de> for Outline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = Outline;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the object of a tokenizer")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Outline, A::Error> {
                let mut seen = Vec::new();
                while let Some(part) = map.next_key::<String>()? {
                    match part.as_str() {
                        "model" => map.next_value_seed(Part(Kind::Model))?,
                        "added_tokens" => {
                            map.next_value_seed(Part(Kind::List("added tokens", MAX_ADDED)))?
                        }
                        _ => map.next_value_seed(Part(Kind::Small))?,
                    };
                    // The crate would take the last, and other checks the first.
                    if seen.contains(&part) || seen.len() > 64 {
                        return Err(A::Error::custom(
                            "a field occurs twice, or there are too many",
                        ));
                    }
                    seen.push(part);
                }
                match seen.iter().any(|part| part == "model") {
                    true => Ok(Outline),
                    false => Err(A::Error::missing_field("model")),
                }
            }
        }
        deserializer.deserialize_map(Parts)
    }
}

#[derive(Clone, Copy)]
enum Kind {
    /// The object with vocabulary and merges.
    Model,
    /// Entries of a name, and most of them.
    List(&'static str, usize),
    /// A token, an added token or a merge.
    Entry,
    Small,
}

/// Counts the values of one part.
struct Part(Kind);

impl<'de> DeserializeSeed<'de> for Part {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> std::result::Result<usize, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Part {
    /// What counts a value inside.
    fn inner(&self) -> Self {
        Self(match self.0 {
            Kind::List(..) | Kind::Entry => Kind::Entry,
            Kind::Model | Kind::Small => Kind::Small,
        })
    }

    /// What a value that holds so many adds to the count: lists count their entries.
    fn weight(&self, inside: usize) -> usize {
        match self.0 {
            Kind::List(..) => 1,
            _ => inside,
        }
    }

    fn check<E: Error>(&self, count: usize) -> std::result::Result<(), E> {
        let (what, most) = match self.0 {
            Kind::List(what, most) => (what, most + 1),
            Kind::Entry => ("values in one entry", MAX_ENTRY),
            Kind::Model | Kind::Small => ("values in one part", MAX_VALUES),
        };
        match count > most {
            true => Err(E::custom(format_args!(
                "more than {most} {what}, far more than any known model has"
            ))),
            false => Ok(()),
        }
    }
}

impl<'de> Visitor<'de> for Part {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<usize, A::Error> {
        let mut count = 1;
        if !matches!(self.0, Kind::Model) {
            while map.next_key::<IgnoredAny>()?.is_some() {
                let inside = map.next_value_seed(self.inner())?;
                count += self.weight(inside);
                self.check(count)?;
            }
            return Ok(count);
        }
        while let Some(field) = map.next_key::<String>()? {
            count += match field.as_str() {
                "vocab" => map
                    .next_value_seed(Part(Kind::List("tokens", MAX_TOKENS)))?
                    .min(1),
                "merges" => map
                    .next_value_seed(Part(Kind::List("merges", MAX_MERGES)))?
                    .min(1),
                _ => map.next_value_seed(self.inner())?,
            };
            self.check(count)?;
        }
        Ok(count)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<usize, A::Error> {
        let mut count = 1;
        while let Some(inside) = seq.next_element_seed(self.inner())? {
            count += self.weight(inside);
            self.check(count)?;
        }
        Ok(count)
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<usize, E> {
        Ok(1)
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<usize, E> {
        Ok(1)
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<usize, E> {
        Ok(1)
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<usize, E> {
        Ok(1)
    }

    fn visit_str<E>(self, _: &str) -> std::result::Result<usize, E> {
        Ok(1)
    }

    fn visit_unit<E>(self) -> std::result::Result<usize, E> {
        Ok(1)
    }
}
