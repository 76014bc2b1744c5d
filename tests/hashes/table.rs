//! The table, and the comparison of runs with it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::cases::{Extent, extent};
use crate::models::Model;
use crate::support;

/// Hashes by case.
type Hashes = BTreeMap<String, String>;

fn path() -> PathBuf {
    support::root().join("tests/hashes/table.json")
}

/// The table as it was when the tests began.
fn table() -> &'static Hashes {
    static TABLE: OnceLock<Hashes> = OnceLock::new();
    TABLE.get_or_init(|| match extent() {
        Extent::Bless if !path().exists() => Hashes::new(),
        _ => support::json(&path()),
    })
}

/// The names of all its cases, sorted.
pub fn keys() -> Vec<String> {
    table().keys().cloned().collect()
}

/// The hash of a case.
pub fn hash(key: &str) -> &'static str {
    let found = table().get(key);
    found.unwrap_or_else(|| panic!("{key:?} is not in the table; FOREBAY_HASHES=bless adds it"))
}

/// Compares the runs of a model with the table.
pub struct Comparison {
    model: &'static Model,
    runs: usize,
    /// While blessing: the first hash of each case.
    first: Hashes,
    differences: Vec<String>,
}

impl Comparison {
    pub fn new(model: &'static Model) -> Self {
        Self {
            model,
            runs: 0,
            first: Hashes::new(),
            differences: Vec::new(),
        }
    }

    /// Compares the hash of one run; `how` says what was run.
    pub fn add(&mut self, key: &str, how: &str, found: &str) {
        self.runs += 1;
        let expected = match extent() {
            Extent::Bless => {
                let first = self.first.entry(key.to_owned());
                &**first.or_insert_with(|| found.to_owned())
            }
            _ => hash(key),
        };
        if expected != found {
            self.differences
                .push(format!("{key}: {found} instead of {expected} ({how})"));
        }
    }

    /// Takes in the runs of other cases of the model.
    pub fn absorb(&mut self, other: Self) {
        self.runs += other.runs;
        self.first.extend(other.first);
        self.differences.extend(other.differences);
    }

    /// Fails if any run differs. Writes the model's part of the table while blessing.
    pub fn finish(self) {
        let (name, runs) = (self.model.name, self.runs);
        assert!(
            self.differences.is_empty(),
            "{} of {runs} runs of {name} have other logits:\n{}",
            self.differences.len(),
            self.differences.join("\n")
        );
        eprintln!("{name}: {runs} runs gave the hashes of the table");
        if extent() == Extent::Bless {
            write(self.model, self.first);
        }
    }
}

/// Replaces the model's lines. Models are tested in parallel, so the lock covers the file as well.
fn write(model: &Model, lines: Hashes) {
    static WRITTEN: Mutex<Option<Hashes>> = Mutex::new(None);
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    let hashes = written.get_or_insert_with(|| table().clone());
    let prefix = format!("{} ", model.name);
    hashes.retain(|key, _| !key.starts_with(&prefix));
    hashes.extend(lines);
    let text = serde_json::to_string_pretty(hashes).expect("strings");
    std::fs::write(path(), text + "\n").unwrap_or_else(|e| panic!("{}: {e}", path().display()));
}
