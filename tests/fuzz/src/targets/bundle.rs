//! Packed models: their sections with all checksums right, and whole files with none repaired.

use std::path::Path;

use anyhow::Result;
use forebay_models::bundle::{Bundle, PackOptions, checksum, ffn_identity, pack};
use forebay_models::network::HOT_GRANULE;
use forebay_models::sorted::SortedNeurons;
use forebay_models::source;
use forebay_models::source::TensorSource;

use super::gguf_writer::Model;
use super::{refusal, tiny, use_tokenizer};
use crate::mutate;
use crate::random::Random;
use crate::target::{Placed, Target};

const PAGE: usize = 4096;
/// Places in the header: length of the file, sections, checksum.
const FILE_LEN: usize = 16;
const SECTIONS: usize = 24;
const HEADER_SUM: usize = SECTIONS + 5 * 24;
/// Index of the directory and length of its entries.
const DIRECTORY: usize = 3;
const ENTRY: usize = 32;

fn le_u64(bytes: &[u8], at: usize) -> usize {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value) as usize
}

/// A packed model in the neuron layout, with predictors.
pub fn packed(folder: &Path) -> Result<Vec<u8>> {
    packed_from(folder, &*source_by_neuron(folder, 32)?)
}

/// A source of one layer of so many neurons, with predictors.
fn source_by_neuron(folder: &Path, d_ff: usize) -> Result<Box<dyn TensorSource>> {
    let model = Model {
        n_layers: 1,
        d_ff,
        tied_head: false,
        powerinfer: true,
        predictor_rank: Some(32),
        ..Model::default()
    };
    let path = model.writer().write(folder, "source.gguf");
    Ok(source::open(&path)?)
}

fn packed_from(folder: &Path, source: &dyn TensorSource) -> Result<Vec<u8>> {
    let out = folder.join("seed.fbay");
    pack(source, &out, &PackOptions::default(), &mut |_| {})?;
    Ok(std::fs::read(out)?)
}

/// The sections as an input: their lengths as u32, then their bytes.
fn joined(sections: &[Vec<u8>; 5]) -> Vec<u8> {
    let lengths = sections.iter().flat_map(|s| (s.len() as u32).to_le_bytes());
    let mut input: Vec<u8> = lengths.collect();
    sections.iter().for_each(|s| input.extend(s));
    input
}

/// The sections of an input; where it is too short for its lengths, they end with it.
fn parted(input: &[u8]) -> [Vec<u8>; 5] {
    let (lengths, mut rest) = input.split_at(input.len().min(20));
    std::array::from_fn(|i| {
        let len = lengths
            .get(i * 4..i * 4 + 4)
            .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
        let (section, behind) = rest.split_at(len.min(rest.len()));
        rest = behind;
        section.to_vec()
    })
}

/// Inputs are the sections.
struct Sections {
    file: Placed,
    /// Header page and clusters.
    body: Vec<u8>,
    seed: Vec<u8>,
}

/// Makes the target whose checksums are right.
pub fn sections(folder: &Path) -> Result<Box<dyn Target>> {
    sections_of(folder, &packed(folder)?)
}

/// The same of a model half of whose neurons are hot.
pub fn sections_with_hot_neurons(folder: &Path) -> Result<Box<dyn Target>> {
    let (order, hot) = (vec![(0..64).collect()], [HOT_GRANULE]);
    let source = SortedNeurons::new(source_by_neuron(folder, 64)?, order, &hot)?;
    sections_of(folder, &packed_from(folder, &source)?)
}

/// The same of a model with experts.
pub fn sections_of_experts(folder: &Path) -> Result<Box<dyn Target>> {
    sections_of_model(folder, "qwen3_moe_bf16")
}

/// The same where the neurons of experts are stored one by one.
pub fn sections_of_expert_neurons(folder: &Path) -> Result<Box<dyn Target>> {
    sections_of_model(folder, "smallthinker_bf16")
}

fn sections_of_model(folder: &Path, name: &str) -> Result<Box<dyn Target>> {
    let source = source::open(&tiny(name))?;
    sections_of(folder, &packed_from(folder, &*source)?)
}

fn sections_of(folder: &Path, whole: &[u8]) -> Result<Box<dyn Target>> {
    let place = |i: usize| {
        (
            le_u64(whole, SECTIONS + i * 24),
            le_u64(whole, SECTIONS + i * 24 + 8),
        )
    };
    let seed = joined(&std::array::from_fn(|i| {
        let (offset, len) = place(i);
        whole[offset..offset + len].to_vec()
    }));
    let target = Sections {
        file: Placed::new(folder, "model.fbay")?,
        body: whole[..place(0).0].to_vec(),
        seed,
    };
    target.file.put(&target.body, 0)?;
    Ok(Box::new(target))
}

impl Sections {
    /// Gives clusters that lie inside the file the checksums of what is there.
    fn reseal(&self, directory: &mut [u8]) {
        for entry in directory.chunks_exact_mut(ENTRY) {
            let len = le_u64(entry, 8) >> 32;
            let offset = le_u64(entry, 16);
            let end = offset.saturating_add(len);
            if let Some(bytes) = self.body.get(offset..end) {
                entry[24..].copy_from_slice(&checksum(bytes).to_le_bytes());
            }
        }
    }

    /// Header page, and everything behind the clusters.
    fn sealed(&self, sections: &[Vec<u8>; 5]) -> (Vec<u8>, Vec<u8>) {
        let (mut page, mut tail) = (self.body[..PAGE].to_vec(), Vec::new());
        for (i, bytes) in sections.iter().enumerate() {
            let offset = self.body.len() + tail.len();
            let place = [offset as u64, bytes.len() as u64, checksum(bytes)];
            for (j, v) in place.iter().enumerate() {
                let at = SECTIONS + i * 24 + j * 8;
                page[at..at + 8].copy_from_slice(&v.to_le_bytes());
            }
            tail.extend(bytes);
            tail.resize(tail.len().next_multiple_of(PAGE), 0);
        }
        let len = (self.body.len() + tail.len()) as u64;
        page[FILE_LEN..FILE_LEN + 8].copy_from_slice(&len.to_le_bytes());
        let sum = checksum(&page[..HEADER_SUM]);
        page[HEADER_SUM..HEADER_SUM + 8].copy_from_slice(&sum.to_le_bytes());
        (page, tail)
    }
}

impl Target for Sections {
    fn seeds(&self) -> Vec<Vec<u8>> {
        vec![self.seed.clone()]
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        let (mut sections, others) = (parted(input), parted(other));
        // Metadata have most to say.
        let i = *random.pick(&[0, 0, 0, 1, 1, 2, DIRECTORY, DIRECTORY, 4]);
        match i {
            0 | 1 => mutate::json::change(&mut sections[i], &others[i], random),
            DIRECTORY if random.below(4) != 0 => {
                let entries = sections[i].len() / ENTRY;
                let (field, size) =
                    *random.pick(&[(0, 1), (2, 2), (4, 4), (8, 4), (12, 4), (16, 8)]);
                let at = random.below(entries) * ENTRY + field;
                mutate::renumber(&mut sections[i], at, size, random);
            }
            _ => mutate::bytes(&mut sections[i], &others[i], random),
        }
        if random.one_in(2) {
            self.reseal(&mut sections[DIRECTORY]);
        }
        *input = joined(&sections);
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let (page, tail) = self.sealed(&parted(input));
        let at = self.body.len() as u64;
        let len = at + tail.len() as u64;
        let written = self.file.patch(&page, 0, len);
        written
            .and_then(|()| self.file.patch(&tail, at, len))
            .map_err(|e| e.to_string())?;
        open(self.file.path())
    }
}

/// Opens a packed model and reads everything in it.
fn open(path: &Path) -> Result<(), String> {
    let bundle = Bundle::open(path).map_err(|e| refusal(&e))?;
    let mut bytes = Vec::new();
    let (mut read, mut first) = (0, None);
    for (i, entry) in bundle.clusters.iter().enumerate() {
        let failed = bundle.read_cluster(entry, &mut bytes).err();
        first = first.or(failed.map(|e| refusal(&e)));
        read += bytes.len() as u64;
        for neuron in [0, entry.count as usize - 1] {
            bundle.neuron_sums(i, neuron);
        }
        let geometry = bundle.meta.geometry(entry.content);
        if let Some(g) = geometry.filter(|g| g.layout.is_by_neuron()) {
            let (n, len) = (entry.count as usize, entry.len as usize);
            let last = (n - 1) * g.pair_stride() + g.up_down_bytes();
            assert!(
                (n - 1) * g.gate_stride() + g.gate_row() <= len,
                "a Gate row"
            );
            assert!(g.pairs_offset(n) + last <= len, "a pair of Up and Down");
        }
    }
    assert_eq!(read, bundle.weight_bytes(), "bytes of all clusters");
    ffn_identity(&bundle);
    if let Some(gates) = &bundle.meta.gates {
        for density in [0.0, 0.37, 1.0] {
            gates.thresholds(density);
        }
    }
    for layer in 0..bundle.meta.network.n_layers() {
        let failed = bundle.read_gate(layer).err();
        first = first.or(failed.map(|e| refusal(&e)));
    }
    let (spec, _) = bundle.read_tokenizer().map_err(|e| refusal(&e))?;
    use_tokenizer(spec)?;
    first.map_or(Ok(()), Err)
}

/// Inputs are whole files.
struct Whole {
    file: Placed,
    seed: Vec<u8>,
}

/// Makes the target that repairs no checksum but the header's, and that not always.
pub fn whole(folder: &Path) -> Result<Box<dyn Target>> {
    Ok(Box::new(Whole {
        seed: packed(folder)?,
        file: Placed::new(folder, "model.fbay")?,
    }))
}

impl Target for Whole {
    fn seeds(&self) -> Vec<Vec<u8>> {
        vec![self.seed.clone()]
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        if random.one_in(4) || input.len() < PAGE {
            mutate::bytes(input, other, random);
        } else {
            let at = FILE_LEN - 8 + random.below((HEADER_SUM - FILE_LEN) / 8 + 1) * 8;
            mutate::renumber(input, at, 8, random);
        }
        if random.below(4) != 0 && input.len() >= PAGE {
            let sum = checksum(&input[..HEADER_SUM]);
            input[HEADER_SUM..HEADER_SUM + 8].copy_from_slice(&sum.to_le_bytes());
        }
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        self.file.put(input, 0).map_err(|e| e.to_string())?;
        open(self.file.path())
    }
}
