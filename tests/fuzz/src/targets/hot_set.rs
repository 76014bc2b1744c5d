//! The list of neurons that is kept beside a packed model: a damaged one is no error, but must not be believed.

use std::path::Path;

use anyhow::Result;
use forebay_models::bundle::{
    Bundle, DirectoryEntry, HotNeuron, checksum, hot_set_path, load_hot_set, save_hot_set,
};
use forebay_models::network::Content;

use crate::mutate;
use crate::random::Random;
use crate::target::{Placed, Target};

struct HotSet {
    bundle: Bundle,
    file: Placed,
    seed: Vec<u8>,
}

/// Makes the target.
pub fn make(folder: &Path) -> Result<Box<dyn Target>> {
    super::bundle::packed(folder)?;
    let bundle = Bundle::open(&folder.join("seed.fbay"))?;
    let ffn = |(_, e): &(usize, &DirectoryEntry)| matches!(e.content, Content::Neurons(_));
    let clusters = bundle.clusters.iter().enumerate().filter(ffn);
    let neurons: Vec<HotNeuron> = clusters
        .flat_map(|(i, e)| {
            (0..e.count).map(move |neuron| HotNeuron {
                cluster: i as u32,
                neuron,
            })
        })
        .collect();
    save_hot_set(&bundle, &neurons);
    let seed = std::fs::read(hot_set_path(bundle.path()))?;
    let name = "seed.fbay.hot";
    Ok(Box::new(HotSet {
        file: Placed::new(folder, name)?,
        bundle,
        seed,
    }))
}

impl Target for HotSet {
    fn seeds(&self) -> Vec<Vec<u8>> {
        vec![self.seed.clone()]
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        mutate::bytes(input, other, random);
        if let Some((body, sum)) = input.split_last_chunk_mut::<8>() {
            *sum = checksum(body).to_le_bytes();
        }
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        self.file.put(input, 0).map_err(|e| e.to_string())?;
        let neurons = load_hot_set(&self.bundle);
        for n in &neurons {
            let entry = &self.bundle.clusters[n.cluster as usize];
            assert!(n.neuron < entry.count, "{n:?}");
        }
        if neurons.is_empty() {
            return Err("empty".into());
        }
        Ok(())
    }
}
