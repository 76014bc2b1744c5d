//! A tiny GGUF writer for tests, independent of the reader: it writes what it is told, right or
//! wrong. `Model` makes whole small models with seeded weights.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};

use forebay_models::block::{BlockType, quantize};
use forebay_models::random::split_mix;

/// A metadata value; arrays are written as they are given.
#[derive(Clone, Debug)]
pub enum Meta {
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    U32s(Vec<u32>),
    F32s(Vec<f32>),
    /// A type id and raw bytes after it.
    Raw(u32, Vec<u8>),
}

impl From<&str> for Meta {
    fn from(s: &str) -> Self {
        Self::Str(s.into())
    }
}

impl From<u32> for Meta {
    fn from(v: u32) -> Self {
        Self::U32(v)
    }
}

impl From<f32> for Meta {
    fn from(v: f32) -> Self {
        Self::F32(v)
    }
}

/// A tensor: `dims` fastest first, `type_id` ggml's, `offset` set by the writer unless forced.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub type_id: u32,
    pub data: Vec<u8>,
    pub forced_offset: Option<u64>,
}

/// A GGUF file about to be written.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    pub magic: [u8; 4],
    pub version: u32,
    pub alignment: u64,
    pub metadata: Vec<(String, Meta)>,
    pub tensors: Vec<Tensor>,
    /// Counts other than the true ones.
    pub forced_counts: Option<(u64, u64)>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            metadata: Vec::new(),
            tensors: Vec::new(),
            forced_counts: None,
        }
    }
}

impl GgufWriter {
    /// Sets or replaces a key.
    pub fn set(&mut self, key: &str, value: impl Into<Meta>) -> &mut Self {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.into(), value)),
        }
        self
    }

    /// Removes a key.
    pub fn unset(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    /// Adds a tensor of `rows` rows of `cols` elements (a vector where `rows` is `None`), encoded
    /// as `block`.
    pub fn tensor(
        &mut self,
        name: &str,
        cols: usize,
        rows: Option<usize>,
        block: BlockType,
        x: &[f32],
    ) -> &mut Self {
        assert_eq!(x.len(), cols * rows.unwrap_or(1), "{name}");
        let mut data = vec![0; block.row_bytes(x.len()).expect("whole blocks")];
        quantize(block, x, &mut data);
        let mut dims = vec![cols as u64];
        dims.extend(rows.map(|r| r as u64));
        self.tensors.push(Tensor {
            name: name.into(),
            dims,
            type_id: block.ggml_id(),
            data,
            forced_offset: None,
        });
        self
    }

    /// The tensor called `name`, to be damaged.
    pub fn tensor_mut(&mut self, name: &str) -> &mut Tensor {
        self.tensors
            .iter_mut()
            .find(|t| t.name == name)
            .expect("a tensor of that name")
    }

    /// Removes a tensor.
    pub fn remove(&mut self, name: &str) -> &mut Self {
        self.tensors.retain(|t| t.name != name);
        self
    }

    /// The bytes up to the data section, without padding.
    pub fn header(&self) -> Vec<u8> {
        let mut b = Vec::new();
        b.extend(self.magic);
        b.extend(self.version.to_le_bytes());
        let true_counts = (self.tensors.len() as u64, self.metadata.len() as u64);
        let (n_tensors, n_entries) = self.forced_counts.unwrap_or(true_counts);
        b.extend(n_tensors.to_le_bytes());
        b.extend(n_entries.to_le_bytes());
        for (key, value) in &self.metadata {
            put_str(&mut b, key);
            put_meta(&mut b, value);
        }
        let mut offset = 0u64;
        for t in &self.tensors {
            put_str(&mut b, &t.name);
            b.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| b.extend(d.to_le_bytes()));
            b.extend(t.type_id.to_le_bytes());
            b.extend(t.forced_offset.unwrap_or(offset).to_le_bytes());
            offset = (offset + t.data.len() as u64).next_multiple_of(self.alignment);
        }
        b
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let pad = |b: &mut Vec<u8>| b.resize(b.len().next_multiple_of(self.alignment as usize), 0);
        let mut b = self.header();
        for t in &self.tensors {
            pad(&mut b);
            b.extend(&t.data);
        }
        pad(&mut b);
        b
    }

    /// Writes the file into `folder`.
    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, self.bytes()).expect("a writable folder");
        path
    }
}

pub fn put_str(b: &mut Vec<u8>, s: &str) {
    b.extend((s.len() as u64).to_le_bytes());
    b.extend(s.as_bytes());
}

fn put_array<T>(
    b: &mut Vec<u8>,
    element_type: u32,
    items: &[T],
    mut put: impl FnMut(&mut Vec<u8>, &T),
) {
    b.extend(9u32.to_le_bytes());
    b.extend(element_type.to_le_bytes());
    b.extend((items.len() as u64).to_le_bytes());
    items.iter().for_each(|i| put(b, i));
}

pub fn put_meta(b: &mut Vec<u8>, value: &Meta) {
    match value {
        Meta::U32(v) => [&4u32.to_le_bytes(), &v.to_le_bytes()]
            .iter()
            .for_each(|x| b.extend(*x)),
        Meta::I32(v) => [&5u32.to_le_bytes(), &v.to_le_bytes()]
            .iter()
            .for_each(|x| b.extend(*x)),
        Meta::F32(v) => [&6u32.to_le_bytes(), &v.to_le_bytes()]
            .iter()
            .for_each(|x| b.extend(*x)),
        Meta::Bool(v) => {
            b.extend(7u32.to_le_bytes());
            b.push(u8::from(*v));
        }
        Meta::Str(s) => {
            b.extend(8u32.to_le_bytes());
            put_str(b, s);
        }
        Meta::U64(v) => {
            b.extend(10u32.to_le_bytes());
            b.extend(v.to_le_bytes());
        }
        Meta::Strs(all) => put_array(b, 8, all, |b, s| put_str(b, s)),
        Meta::I32s(all) => put_array(b, 5, all, |b, v| b.extend(v.to_le_bytes())),
        Meta::U32s(all) => put_array(b, 4, all, |b, v| b.extend(v.to_le_bytes())),
        Meta::F32s(all) => put_array(b, 6, all, |b, v| b.extend(v.to_le_bytes())),
        Meta::Raw(id, bytes) => {
            b.extend(id.to_le_bytes());
            b.extend(bytes);
        }
    }
}

/// Shape of a small model with weights from a seed.
#[derive(Clone, Debug)]
pub struct Model {
    pub arch: &'static str,
    pub powerinfer: bool,
    pub n_layers: usize,
    pub d_model: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub d_ff: usize,
    /// At least 260: 256 bytes, `<s>`, `</s>`, and some more.
    pub vocab: usize,
    /// Format of the matrices.
    pub block: BlockType,
    pub tied_head: bool,
    /// Rank of the predictors, if the model has them.
    pub predictor_rank: Option<usize>,
    pub seed: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            arch: "llama",
            powerinfer: false,
            n_layers: 2,
            d_model: 64,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 16,
            d_ff: 96,
            vocab: 264,
            block: BlockType::F16,
            tied_head: true,
            predictor_rank: None,
            seed: 1,
        }
    }
}

impl Model {
    /// The file with metadata, a byte-level tokenizer and all tensors.
    pub fn writer(&self) -> GgufWriter {
        let mut w = GgufWriter::default();
        if self.powerinfer {
            w.magic = *b"PWRI";
        }
        self.put_metadata(&mut w);
        put_tokenizer(&mut w, self.vocab);
        let mut random = Random(self.seed);
        self.put_weights(&mut w, &mut random);
        w
    }

    fn put_metadata(&self, w: &mut GgufWriter) {
        let key = |suffix: &str| format!("{}.{suffix}", self.arch);
        w.set("general.architecture", self.arch)
            .set("general.name", "tiny");
        for (suffix, value) in [
            ("block_count", self.n_layers),
            ("embedding_length", self.d_model),
            ("feed_forward_length", self.d_ff),
            ("attention.head_count", self.n_heads),
            ("attention.head_count_kv", self.n_kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.head_dim),
            ("context_length", 128),
            ("vocab_size", self.vocab),
        ] {
            w.set(&key(suffix), value as u32);
        }
        w.set(&key("attention.layer_norm_rms_epsilon"), 1e-5);
        w.set(&key("rope.freq_base"), 10_000.0);
    }

    fn put_weights(&self, w: &mut GgufWriter, random: &mut Random) {
        let (d, ff) = (self.d_model, self.d_ff);
        let (q, kv) = (
            self.n_heads * self.head_dim,
            self.n_kv_heads * self.head_dim,
        );
        let mut matrix = |w: &mut GgufWriter, name: String, cols: usize, rows: usize| {
            let x = random.values(cols * rows, 1.0 / (cols as f32).sqrt(), 0.0);
            w.tensor(&name, cols, Some(rows), self.block, &x);
        };
        matrix(w, "token_embd.weight".into(), d, self.vocab);
        if !self.tied_head {
            matrix(w, "output.weight".into(), d, self.vocab);
        }
        for n in 0..self.n_layers {
            let name = |suffix: &str| format!("blk.{n}.{suffix}.weight");
            matrix(w, name("attn_q"), d, q);
            matrix(w, name("attn_k"), d, kv);
            matrix(w, name("attn_v"), d, kv);
            matrix(w, name("attn_output"), q, d);
            matrix(w, name("ffn_gate"), d, ff);
            matrix(w, name("ffn_up"), d, ff);
            if self.powerinfer {
                matrix(w, name("ffn_down_t"), d, ff);
            } else {
                matrix(w, name("ffn_down"), ff, d);
            }
            if let Some(rank) = self.predictor_rank {
                matrix(w, name("fc1"), d, rank);
                matrix(w, name("fc2"), rank, ff);
            }
        }
        let mut vector = |w: &mut GgufWriter, name: String, len: usize, mean: f32| {
            let x = random.values(len, 0.1, mean);
            w.tensor(&name, len, None, BlockType::F32, &x);
        };
        vector(w, "output_norm.weight".into(), d, 1.0);
        for n in 0..self.n_layers {
            vector(w, format!("blk.{n}.attn_norm.weight"), d, 1.0);
            vector(w, format!("blk.{n}.ffn_norm.weight"), d, 1.0);
            if self.arch == "qwen2" {
                vector(w, format!("blk.{n}.attn_q.bias"), q, 0.0);
                vector(w, format!("blk.{n}.attn_k.bias"), kv, 0.0);
                vector(w, format!("blk.{n}.attn_v.bias"), kv, 0.0);
            }
        }
    }
}

/// A byte-level BPE: `<s>`, `</s>`, the 256 bytes in GPT-2's alphabet, one merge, unused tokens.
fn put_tokenizer(w: &mut GgufWriter, vocab: usize) {
    let mut tokens = vec!["<s>".to_owned(), "</s>".to_owned()];
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut moved = 256;
    for b in 0..256u32 {
        let c = if printable(b) {
            b
        } else {
            moved += 1;
            moved - 1
        };
        tokens.push(char::from_u32(c).expect("a character").to_string());
    }
    tokens.push("th".into());
    let mut types = vec![1; tokens.len()];
    types[..2].fill(3);
    while tokens.len() < vocab {
        tokens.push(format!("<unused{}>", tokens.len()));
        types.push(5);
    }
    w.set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", "gpt-2");
    w.set("tokenizer.ggml.tokens", Meta::Strs(tokens));
    w.set("tokenizer.ggml.token_type", Meta::I32s(types));
    w.set("tokenizer.ggml.merges", Meta::Strs(vec!["t h".into()]));
    w.set("tokenizer.ggml.bos_token_id", 0);
    w.set("tokenizer.ggml.eos_token_id", 1);
    w.set("tokenizer.ggml.add_bos_token", Meta::Bool(true));
}

/// Seeded numbers.
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// `n` values around `mean` with standard deviation `deviation`, roughly normal.
    pub fn values(&mut self, n: usize, deviation: f32, mean: f32) -> Vec<f32> {
        let unit = |bits: u64| (bits >> 40) as f32 / (1 << 24) as f32;
        let normal = |r: &mut Self| {
            // Sum of 4 uniforms: variance 4 / 12.
            let sum: f32 = (0..4).map(|_| unit(r.bits())).sum();
            (sum - 2.0) * 3f32.sqrt()
        };
        (0..n).map(|_| mean + deviation * normal(self)).collect()
    }
}
