//! The plan as data: the choices, the expected speed, and the reasons. Written by `forebay plan --json`, read by
//! `--plan FILE`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use forebay_models::files::read_regular;
use forebay_models::network::MOST_GUESSED_LAYERS;
use serde::{Deserialize, Serialize};

use crate::cost::DecodeTime;
use crate::error::PlanError;
use crate::preload::SEQUENTIAL_GAIN;
use crate::residency::{Loading, Sparsity};
use crate::size::format_size;

/// Version of the JSON.
pub const PLAN_VERSION: u32 = 1;

/// Longest file that is read; plans have a few thousand bytes.
const MAX_BYTES: u64 = 1 << 20;

/// A measured speed that differs by more than this part from the expected one is worth a word.
pub const TOLERANCE: f64 = 0.2;

/// A plan for one model on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`PLAN_VERSION`].
    pub version: u32,
    /// The model it is for.
    pub model: PlannedModel,
    /// The machine it is for: instruction set, cores and CPU.
    pub machine: String,
    /// Budget of the process, bytes.
    pub memory_bytes: u64,
    /// The choices.
    pub choices: Choices,
    /// The expected speed.
    pub expected: Expected,
    /// Each decision with the alternatives that it beat.
    #[serde(default)]
    pub reasons: Vec<Reason>,
    /// What weakens the figures: assumptions in place of measurements.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The model that a plan is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedModel {
    /// Path or name, for display.
    pub name: String,
    /// Identity of the packed weights.
    pub identity: u64,
    /// Bytes of all weights.
    pub weight_bytes: u64,
}

/// What can be decided.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choices {
    /// Compute cores. The I/O thread uses one of the others, if there is one.
    pub threads: usize,
    /// Positions of the KV cache.
    pub context: usize,
    /// Maximum number of tokens in a prompt's batch.
    pub max_batch: usize,
    /// Which neurons are computed.
    pub sparsity: Sparsity,
    /// How single neurons are read.
    pub loading: Loading,
    /// Of how many of the next layers the experts are guessed, and read ahead if they are not in memory.
    #[serde(default)]
    pub guessed_layers: usize,
    /// Bytes of the stream window.
    pub stream_window_bytes: usize,
    /// Bytes that the neuron cache gets before attention and the head stay in memory.
    pub neuron_cache_bytes: u64,
    /// How much faster whole clusters are read than single neurons: prompts read all of the FFN where more than one
    /// part in this many is missing.
    #[serde(default = "usual_gain")]
    pub sequential_gain: f64,
}

fn usual_gain() -> f64 {
    SEQUENTIAL_GAIN
}

/// The expected results of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Generated tokens per second, once the neuron cache is warm.
    pub decode_tokens_per_second: f64,
    /// Tokens of a long prompt per second.
    pub prefill_tokens_per_second: f64,
    /// `memory read` or `disk read`.
    pub bound_by: String,
    /// The parts of a generated token's time, seconds.
    pub decode_seconds: DecodeTime,
    /// Reads per generated token.
    pub reads_per_token: f64,
    /// Bytes of these reads.
    pub bytes_per_token: f64,
    /// Bytes by item: together they are the process's memory.
    pub memory_items: BTreeMap<String, u64>,
}

/// A decision and the alternatives that it beat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// The subject of the decision: `threads`, `loading`.
    pub choice: String,
    /// The value that was chosen.
    pub taken: String,
    /// Each other value with its expected speeds, if it fits.
    pub others: Vec<Other>,
}

/// Something that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Other {
    /// The value.
    pub value: String,
    /// Generated tokens per second, all else being equal; `None` if it does not fit.
    pub decode_tokens_per_second: Option<f64>,
    /// Prompt tokens per second.
    pub prefill_tokens_per_second: Option<f64>,
}

impl Plan {
    /// Reads a plan from a file.
    ///
    /// # Errors
    /// There is no such file, it is not a plan, or it is of another version.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let fail = |why: String| PlanError::Plan {
            path: path.to_path_buf(),
            why,
        };
        let bytes =
            read_regular(path, MAX_BYTES).map_err(|e| fail(format!("cannot be read: {e}")))?;
        let plan: Self =
            serde_json::from_slice(&bytes).map_err(|e| fail(format!("is not a plan: {e}")))?;
        plan.check().map_err(fail)?;
        Ok(plan)
    }

    /// Checks that the figures are usable.
    fn check(&self) -> Result<(), String> {
        let c = &self.choices;
        let within = |field: &str, value: u64, most: u64| match value {
            v if v >= 1 && v <= most => Ok(()),
            v => Err(format!("{field} is {v}; it must be from 1 to {most}")),
        };
        if self.version != PLAN_VERSION {
            return Err(format!(
                "version is {}; this program reads {PLAN_VERSION}",
                self.version
            ));
        }
        within("memory_bytes", self.memory_bytes, 1 << 50)?;
        within("choices.threads", c.threads as u64, 1 << 16)?;
        within("choices.context", c.context as u64, 1 << 32)?;
        within("choices.max_batch", c.max_batch as u64, 1 << 16)?;
        within(
            "choices.stream_window_bytes",
            c.stream_window_bytes as u64,
            1 << 40,
        )?;
        if c.guessed_layers > MOST_GUESSED_LAYERS {
            return Err(format!(
                "choices.guessed_layers is more than {MOST_GUESSED_LAYERS}"
            ));
        }
        if c.neuron_cache_bytes > self.memory_bytes {
            return Err("choices.neuron_cache_bytes is more than memory_bytes".into());
        }
        let speeds = [
            self.expected.decode_tokens_per_second,
            self.expected.prefill_tokens_per_second,
        ];
        match speeds.iter().all(|s| s.is_finite() && *s >= 0.0) {
            true => Ok(()),
            false => Err("expected contains a speed that is not a number from 0 upwards".into()),
        }
    }

    /// Checks that the plan is for this model.
    ///
    /// # Errors
    /// It is for another; `path` is named.
    pub fn fits(&self, path: &Path, model: &PlannedModel) -> Result<(), PlanError> {
        let of = |model: &PlannedModel| (model.identity, model.weight_bytes);
        let (own, other) = (&self.model, model);
        match of(own) == of(other) {
            true => Ok(()),
            false => Err(PlanError::Plan {
                path: path.to_path_buf(),
                why: format!("is for the model {}, not for {}", own.name, other.name),
            }),
        }
    }

    /// Checks that the plan is for this machine.
    ///
    /// # Errors
    /// It is for another; `path` is named.
    pub fn fits_machine(&self, path: &Path, machine: &str) -> Result<(), PlanError> {
        match self.machine == machine {
            true => Ok(()),
            false => Err(PlanError::Plan {
                path: path.to_path_buf(),
                why: format!(
                    "is for another machine ({}), this is {machine}",
                    self.machine
                ),
            }),
        }
    }
}

impl Expected {
    /// A remark on a measured speed of generation; `None` if it is as expected.
    pub fn compared(&self, measured: f64) -> Option<String> {
        let expected = self.decode_tokens_per_second;
        if expected <= 0.0 || measured <= 0.0 || (measured / expected - 1.0).abs() <= TOLERANCE {
            return None;
        }
        let (way, why) = match measured < expected {
            true => (
                "slower",
                "other programs on these cores or this disk, or measurements from a quieter time",
            ),
            false => (
                "faster",
                "measurements from a busier time, or a text that wants other neurons or experts",
            ),
        };
        Some(format!(
            "{measured:.1} tokens per second, {:.0}% {way} than the expected {expected:.1} ({why})",
            (measured / expected - 1.0).abs() * 100.0
        ))
    }
}

/// Readable tables: memory by item, choices with what they beat, the expected time of a token.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &self.expected;
        writeln!(
            f,
            "{} within {}, context of {} tokens\n",
            self.model.name,
            format_size(self.memory_bytes),
            self.choices.context
        )?;
        let mut items: Vec<_> = e.memory_items.iter().collect();
        items.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
        let width = items.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, bytes) in &items {
            writeln!(f, "  {name:width$}  {:>9}", format_size(**bytes))?;
        }
        // A file may claim any number of bytes for an item.
        let sum = items
            .iter()
            .fold(0_u64, |sum, (_, b)| sum.saturating_add(**b));
        writeln!(f, "  {:width$}  {:>9}\n", "sum", format_size(sum))?;
        for reason in &self.reasons {
            writeln!(f, "  {}: {}", reason.choice, reason.taken)?;
            for other in &reason.others {
                match (
                    other.decode_tokens_per_second,
                    other.prefill_tokens_per_second,
                ) {
                    (Some(d), Some(p)) => {
                        writeln!(f, "      {}: {d:.1} tokens/s, prompts {p:.0}", other.value)?;
                    }
                    _ => writeln!(f, "      {}: does not fit", other.value)?,
                }
            }
        }
        let t = &e.decode_seconds;
        writeln!(f, "\n  a token takes {:.1} ms:", t.total() * 1e3)?;
        for (name, seconds) in [
            ("attention", t.attention),
            ("predictors", t.predictor),
            ("FFN", t.ffn),
            ("head", t.head),
            ("between", t.overhead),
            ("streamed clusters (while the rest is computed)", t.stream),
            ("neurons read (partly while the rest is computed)", t.io),
        ] {
            if seconds > 0.0 {
                writeln!(f, "    {:7.2} ms  {name}", seconds * 1e3)?;
            }
        }
        writeln!(
            f,
            "    {:.0} reads, {}",
            e.reads_per_token,
            format_size(e.bytes_per_token as u64)
        )?;
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "  note: {note}"))?;
        writeln!(
            f,
            "\nexpected: {:.1} tokens per second, prompts {:.0} tokens per second; bound by {}",
            e.decode_tokens_per_second, e.prefill_tokens_per_second, e.bound_by
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Found by fuzzing: sizes of a file that add up to more than 64 bits.
    #[test]
    fn items_of_any_size_are_printed() {
        let plan = json!({
            "version": PLAN_VERSION,
            "model": {"name": "tiny", "identity": 1, "weight_bytes": 2},
            "machine": "here",
            "memory_bytes": 1 << 30,
            "choices": {"threads": 1, "context": 1, "max_batch": 1, "sparsity": "dense", "loading": "bundle",
                "stream_window_bytes": 1, "neuron_cache_bytes": 0},
            "expected": {"decode_tokens_per_second": 1.0, "prefill_tokens_per_second": 1.0,
                "bound_by": "disk read", "decode_seconds": DecodeTime::default(), "reads_per_token": 0.0,
                "bytes_per_token": 0.0, "memory_items": {"one": u64::MAX, "other": u64::MAX}},
        });
        let plan: Plan = serde_json::from_value(plan).unwrap();
        assert!(plan.check().is_ok());
        assert!(plan.to_string().contains("sum"), "{plan}");
    }
}
