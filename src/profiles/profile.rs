//! A profile: how often each neuron and expert is wanted, and how many are missed by a cache of each size.

use std::path::{Path, PathBuf};

use forebay_models::bundle::{Bundle, ffn_identity};
use forebay_models::error::ModelError;
use forebay_models::files::{read_regular, side_file, write_whole};
use forebay_models::network::Network;
use forebay_plans::residency::Sparsity;
use serde::{Deserialize, Serialize};

use super::{ExpertProfile, MissPoint};
use crate::error::Error;

/// A profile's `policy` if misses were not simulated but follow from counts.
pub(crate) const COUNTED: &str = "counted";
/// Statistics of a model's neurons and experts over a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Tokens that were run.
    pub tokens: usize,
    /// The mode that decides which neurons are wanted: the predicted ones, or the live ones.
    pub sparsity: Sparsity,
    /// Part of each layer's neurons that a token wants, P_activated, `[n_layers]`. Here and below, hot ones do not
    /// count.
    pub wanted: Vec<f64>,
    /// Part of a token's neurons that the previous token wanted too.
    pub overlap: f64,
    /// Part of all wants that belongs to the most wanted fifth of each layer's neurons.
    pub top_fifth_share: f64,
    /// The cache policy whose misses were simulated.
    pub policy: String,
    /// Misses by cache size, ascending.
    pub misses: Vec<MissPoint>,
    /// How often each neuron was wanted, `[n_layers][d_ff]`; those of experts do not count.
    pub counts: Vec<Vec<u32>>,
    /// Which experts were used; profiles by earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertProfile>,
}

/// Name of the profile of the packed model at `path`.
pub(crate) fn profile_path(path: &Path) -> PathBuf {
    side_file(path, ".profile")
}

/// What is in the file: the profile, and the identity of its neurons.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    /// [`ffn_identity`] of the model.
    ffn: u64,
    /// Whether they are in another order than in what the model was packed from.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sorted: bool,
    profile: Profile,
}

impl Stored {
    /// Reads a file that may be of `network`.
    fn read(path: &Path, network: &Network) -> std::io::Result<Self> {
        // A count has ten digits and a comma, a layer's share some more; the rest is a few lines.
        let experts = (0..network.n_layers()).filter_map(|l| network.experts(l));
        let counts = network.n_neurons() + experts.map(|e| e.count).sum::<usize>();
        let most = counts * 11 + network.n_layers() * 128 + (64 << 10);
        let stored: Self = serde_json::from_slice(&read_regular(path, most as u64)?)?;
        match stored.profile.is_sound() {
            true => Ok(stored),
            false => Err(std::io::Error::other("its figures contradict each other")),
        }
    }
}

impl Profile {
    /// Whether shares are within 0 to 1 and sizes ascend: plans are computed from them.
    fn is_sound(&self) -> bool {
        let share = |v: f64| (0.0..=1.0).contains(&v);
        let amount = |v: f64| v >= 0.0 && v.is_finite();
        let point = |p: &MissPoint| {
            let amounts = [p.per_token, p.reads, p.bytes];
            share(p.cached) && share(p.miss_rate) && amounts.into_iter().all(amount)
        };
        self.wanted.len() == self.counts.len()
            && self.wanted.iter().copied().all(amount)
            && share(self.overlap)
            && share(self.top_fifth_share)
            && self.misses.iter().all(point)
            && self.misses.is_sorted_by(|a, b| a.cached < b.cached)
            && self.experts.as_ref().is_none_or(ExpertProfile::is_sound)
    }

    /// Saves the profile beside the packed model, as `NAME.fbay.profile`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, bundle: &Bundle) -> Result<PathBuf, Error> {
        let path = profile_path(bundle.path());
        let stored = Stored {
            ffn: ffn_identity(bundle),
            sorted: bundle.meta.sorted,
            profile: self.clone(),
        };
        let bytes = serde_json::to_vec(&stored).map_err(std::io::Error::other);
        bytes
            .and_then(|bytes| write_whole(&path, &bytes))
            .map_err(|e| {
                let action = "write the profile beside the packed model (check free space and permissions, or put \
                              the model into another folder)";
                ModelError::io(&path, action, e)
            })?;
        Ok(path)
    }

    /// The profile that is saved beside the packed model; `None` if there is none, or if it is damaged or of
    /// other neurons.
    pub fn load(bundle: &Bundle) -> Option<Self> {
        let network = &bundle.meta.network;
        let stored = Stored::read(&profile_path(bundle.path()), network).ok()?;
        let widths = network.layers.iter().map(|layer| layer.ffn.body.d_ff);
        let fits = stored.ffn == ffn_identity(bundle)
            && stored.profile.counts.iter().map(Vec::len).eq(widths)
            && stored
                .profile
                .experts
                .as_ref()
                .is_none_or(|experts| experts.fits(network));
        fits.then_some(stored.profile)
    }

    /// Reads a profile that was kept, of a model of the size of `network` with its neurons in the order of its source.
    ///
    /// # Errors
    /// There is no such file, it is no profile, far too large for such a model, or of sorted neurons.
    pub fn read(path: &Path, network: &Network) -> Result<Self, Error> {
        let stored = Stored::read(path, network).and_then(|stored| match stored.sorted {
            true => Err(std::io::Error::other(
                "it is of a packed model whose neurons are sorted already; profile the one that it was packed from",
            )),
            false => Ok(stored.profile),
        });
        stored.map_err(|source| Error::Profile {
            path: path.into(),
            source,
        })
    }

    /// Whether it was made in the background of ordinary runs, by counting alone.
    pub fn is_default(&self) -> bool {
        self.policy == COUNTED
    }

    /// P_miss of a cache that holds a part of all neurons, interpolated between the sizes that were tried.
    pub fn miss_rate(&self, cached: f64) -> f64 {
        let (mut below, mut at) = ((0.0, 1.0), (1.0, 0.0));
        for point in &self.misses {
            if point.cached <= cached {
                below = (point.cached, point.miss_rate);
            } else {
                at = (point.cached, point.miss_rate);
                break;
            }
        }
        let width = at.0 - below.0;
        if width <= 0.0 {
            return below.1;
        }
        below.1 + (at.1 - below.1) * ((cached - below.0) / width).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::ExpertMisses;

    #[test]
    fn between_the_sizes_that_were_tried_a_line_is_drawn() {
        let point = |cached, miss_rate| MissPoint {
            cached,
            miss_rate,
            ..MissPoint::default()
        };
        let profile = Profile {
            misses: vec![point(0.5, 0.4), point(1.0, 0.0)],
            tokens: 1,
            sparsity: Sparsity::Exact,
            wanted: Vec::new(),
            overlap: 0.0,
            top_fifth_share: 0.0,
            policy: "lru".into(),
            counts: Vec::new(),
            experts: None,
        };
        for (cached, miss) in [(0.0, 1.0), (0.25, 0.7), (0.5, 0.4), (0.75, 0.2), (1.0, 0.0)] {
            assert!((profile.miss_rate(cached) - miss).abs() < 1e-9, "{cached}");
        }
    }

    #[test]
    fn a_profile_by_an_earlier_version_is_read() {
        let text = r#"{"tokens":1,"sparsity":"exact","wanted":[],"overlap":0,"top_fifth_share":0,"policy":"lru",
                       "misses":[],"counts":[]}"#;
        let old: Profile = serde_json::from_str(text).unwrap();
        assert_eq!(old.experts, None);
        assert!(old.is_sound());
    }

    #[test]
    fn what_contradicts_itself_is_no_profile() {
        let with = |experts: ExpertProfile| Profile {
            tokens: 1,
            sparsity: Sparsity::Dense,
            wanted: Vec::new(),
            overlap: 1.0,
            top_fifth_share: 0.2,
            policy: "lru".into(),
            misses: Vec::new(),
            counts: Vec::new(),
            experts: Some(experts),
        };
        let point = |cached, miss_rate| ExpertMisses {
            cached,
            miss_rate,
            ..ExpertMisses::default()
        };
        let of = |misses: &[ExpertMisses]| {
            with(ExpertProfile {
                misses: misses.to_vec(),
                ..ExpertProfile::default()
            })
        };
        assert!(of(&[point(0.5, 0.1), point(1.0, 0.0)]).is_sound());
        assert!(!of(&[point(1.0, 0.0), point(0.5, 0.1)]).is_sound());
        assert!(!of(&[point(0.5, 1.1)]).is_sound());
        assert!(!of(&[point(0.5, f64::NAN)]).is_sound());
    }
}
