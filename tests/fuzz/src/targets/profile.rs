//! The profile that is kept beside a packed model, and what is done with it: plans, and the order of neurons.

use std::path::{Path, PathBuf};

use anyhow::Result;
use forebay::learn::{MissPoint, Profile};
use forebay_models::bundle::Bundle;
use forebay_models::sorted::{SortedNeurons, hot_first, hot_neurons};
use forebay_models::source;
use forebay_plans::residency::Sparsity;

use super::refusal;
use crate::mutate;
use crate::random::Random;
use crate::target::{Placed, Target};

struct Kept {
    bundle: Bundle,
    /// What the bundle was made of.
    source: PathBuf,
    file: Placed,
    seed: Vec<u8>,
}

/// Makes the target.
pub fn make(folder: &Path) -> Result<Box<dyn Target>> {
    super::bundle::packed(folder)?;
    let bundle = Bundle::open(&folder.join("seed.fbay"))?;
    let network = &bundle.meta.network;
    let (n_layers, d_ff) = (network.n_layers(), network.ffn(0).d_ff as u32);
    let point = |cached, miss_rate| MissPoint {
        cached,
        miss_rate,
        per_token: miss_rate * 10.0,
        reads: miss_rate * 8.0,
        bytes: miss_rate * 4096.0,
    };
    let profile = Profile {
        tokens: 9,
        sparsity: Sparsity::Exact,
        wanted: vec![0.25; n_layers],
        overlap: 0.5,
        top_fifth_share: 0.75,
        policy: "lru".into(),
        misses: vec![point(0.25, 0.5), point(0.5, 0.25), point(1.0, 0.0)],
        counts: vec![(0..d_ff).map(|i| i % 10).collect(); n_layers],
        experts: None,
    };
    let path = profile.save(&bundle)?;
    let seed = std::fs::read(&path)?;
    Ok(Box::new(Kept {
        file: Placed::new(folder, "seed.fbay.profile")?,
        source: folder.join("source.gguf"),
        bundle,
        seed,
    }))
}

impl Target for Kept {
    fn seeds(&self) -> Vec<Vec<u8>> {
        vec![self.seed.clone()]
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        mutate::json::change(input, other, random);
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        self.file.put(input, 0).map_err(|e| e.to_string())?;
        let loaded = Profile::load(&self.bundle);
        let Ok(profile) = Profile::read(self.file.path(), &self.bundle.meta.network) else {
            assert!(loaded.is_none(), "believed, and yet no profile");
            return Err("no profile".into());
        };
        for cached in [0.0, 0.3, 0.5, 0.9, 1.0] {
            let missed = profile.miss_rate(cached);
            assert!((0.0..=1.0).contains(&missed), "{missed} at {cached}");
        }
        let hot = hot_neurons(&profile.counts, profile.tokens, 0.5);
        let order = hot_first(&profile.counts, &hot);
        let source = source::open(&self.source).map_err(|e| refusal(&e))?;
        SortedNeurons::new(source, order, &hot).map_err(|e| refusal(&e))?;
        match loaded {
            Some(_) => Ok(()),
            None => Err("of other neurons".into()),
        }
    }
}
