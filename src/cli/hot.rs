//! Models whose neurons are sorted by a profile, and which of them are hot.

use std::path::Path;
use std::str::FromStr;

use anyhow::Context;
use forebay::learn::Profile;
use forebay_models::bundle::{Bundle, PackOptions, outline};
use forebay_models::network::Content;
use forebay_models::network::HOT_GRANULE;
use forebay_models::sorted::{SortedNeurons, hot_first, hot_neurons};
use forebay_models::source::TensorSource;
use forebay_plans::placement::{NeuronWants, PlacementMachine, best_border};

use super::numbers::part;
use super::output::say;

/// Which neurons are hot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HotBorder {
    /// As many as make this machine fastest.
    Auto,
    /// Those that at least this part of the tokens wanted.
    Part(f64),
}

impl FromStr for HotBorder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => match part(text) {
                Ok(part) => Ok(Self::Part(part)),
                Err(problem) => Err(format!("{problem}, or auto")),
            },
        }
    }
}

/// How a source is sorted.
#[derive(Debug)]
pub struct Sorting<'a> {
    /// The profile's file.
    pub profile: &'a Path,
    /// Which neurons are hot, if any are.
    pub hot: Option<HotBorder>,
}

impl Sorting<'_> {
    /// What `open` opens, with its neurons sorted. It is packed as `out`, with `options`.
    pub fn sort(
        &self,
        open: impl Fn() -> anyhow::Result<Box<dyn TensorSource>>,
        (out, options): (&Path, &PackOptions),
    ) -> anyhow::Result<SortedNeurons> {
        let source = open()?;
        let Profile { counts, tokens, .. } = Profile::read(self.profile, source.network())?;
        let none = vec![0; counts.len()];
        let sorted = |source, hot: &[usize]| {
            let sorted = SortedNeurons::new(source, hot_first(&counts, hot), hot);
            sorted.with_context(|| format!("{} does not fit", self.profile.display()))
        };
        let part = match self.hot {
            None => return sorted(source, &none),
            Some(HotBorder::Part(part)) => Some(part),
            Some(HotBorder::Auto) => match machine()? {
                None => {
                    say(format_args!(
                        "no device: on the CPU alone, hot neurons cost more than they save, so none are"
                    ));
                    None
                }
                Some(machine) => {
                    let some = vec![HOT_GRANULE; counts.len()];
                    let outline = outline(&sorted(open()?, &some)?, out, options)?;
                    fastest(&machine, &outline, (&counts, tokens))
                }
            },
        };
        let hot = part.map_or(none, |part| hot_neurons(&counts, tokens, part));
        sorted(source, &hot)
    }
}

/// The machine with the device that engines would use.
#[cfg(feature = "gpu")]
fn machine() -> anyhow::Result<Option<PlacementMachine>> {
    forebay::devices::machine_with_device()
        .map_err(|problem| anyhow::anyhow!("--hot auto: {problem}"))
}

#[cfg(not(feature = "gpu"))]
#[expect(clippy::unnecessary_wraps, reason = "with the feature it may fail")]
fn machine() -> anyhow::Result<Option<PlacementMachine>> {
    Ok(None)
}

/// From which part of the tokens on neurons are hot; says why.
fn fastest(
    machine: &PlacementMachine,
    outline: &Bundle,
    (counts, tokens): (&[Vec<u32>], usize),
) -> Option<f64> {
    let geometry = |content| outline.meta.geometry(content);
    let (hot, cold) = (
        geometry(Content::HotNeurons(0))?,
        geometry(Content::Neurons(0))?,
    );
    let formats = [Some(hot.gate), hot.up, Some(hot.down)];
    let wants = NeuronWants {
        counts,
        tokens,
        d_model: hot.d_model,
        formats: formats.into_iter().flatten().collect(),
        bytes: [
            hot.cluster_bytes(hot.neurons) as f64 / hot.neurons as f64,
            cold.bundle_bytes() as f64,
        ],
    };
    let border = best_border(machine, &wants);
    match border {
        Some(border) => say(format_args!(
            "beside {}, neurons are hot that {:.0}% of the tokens want: a token's FFNs take {:.2} ms, without {:.2}",
            machine.name,
            100.0 * border.part,
            1e3 * border.seconds,
            1e3 * border.without
        )),
        None => say(format_args!(
            "{} is not fast enough for hot neurons: they would cost more than they save, so none are",
            machine.name
        )),
    }
    border.map(|border| border.part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_border_is_a_part_or_auto() {
        assert_eq!("auto".parse(), Ok(HotBorder::Auto));
        assert_eq!("0.5".parse(), Ok(HotBorder::Part(0.5)));
        for text in ["", "0", "1.5", "nan", "half"] {
            let refusal = text.parse::<HotBorder>().expect_err(text);
            assert!(refusal.contains("or auto"), "{refusal}");
        }
    }
}
