//! Tiny Hugging Face folders for tests, with seeded weights.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::path::Path;

use forebay_models::network::Network;
use forebay_models::source::HfSource;
use forebay_models::source::TensorSource;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A tensor as written.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

/// A folder about to be written.
#[derive(Clone, Debug)]
pub struct Folder {
    pub config: Map<String, Value>,
    pub tensors: BTreeMap<String, Tensor>,
    /// What goes into `predictor.safetensors`, if anything.
    pub predictors: BTreeMap<String, Tensor>,
    /// Number of files the checkpoint is split into.
    pub shards: usize,
}

/// A llama of 2 layers: 64 wide, 4 query and 2 key/value heads of 16, 96 neurons, 264 tokens.
pub fn tiny() -> Folder {
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 264,
        "max_position_embeddings": 128,
        "hidden_act": "relu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
    });
    let mut folder = Folder {
        config: config.as_object().expect("an object").clone(),
        tensors: BTreeMap::new(),
        predictors: BTreeMap::new(),
        shards: 1,
    };
    folder.put("model.embed_tokens.weight", &[264, 64]);
    folder.put("model.norm.weight", &[64]);
    for n in 0..2 {
        for (suffix, shape) in [
            ("input_layernorm", &[64][..]),
            ("post_attention_layernorm", &[64]),
            ("self_attn.q_proj", &[64, 64]),
            ("self_attn.k_proj", &[32, 64]),
            ("self_attn.v_proj", &[32, 64]),
            ("self_attn.o_proj", &[64, 64]),
            ("mlp.gate_proj", &[96, 64]),
            ("mlp.up_proj", &[96, 64]),
            ("mlp.down_proj", &[64, 96]),
        ] {
            folder.put(&format!("model.layers.{n}.{suffix}.weight"), shape);
        }
    }
    folder
}

impl Folder {
    /// Sets a field of `config.json`.
    pub fn set(&mut self, field: &str, value: Value) -> &mut Self {
        self.config.insert(field.into(), value);
        self
    }

    /// Adds or replaces an F16 tensor of the checkpoint.
    pub fn put(&mut self, name: &str, shape: &[usize]) -> &mut Self {
        self.tensors
            .insert(name.into(), seeded(name, Dtype::F16, shape));
        self
    }

    /// Adds predictors of this rank to every layer: in `predictor.safetensors`, or in the
    /// checkpoint itself.
    pub fn put_predictors(&mut self, rank: usize, inside: bool) -> &mut Self {
        for n in 0..2 {
            for (matrix, shape) in [("fc1", [rank, 64]), ("fc2", [96, rank])] {
                let name = format!("model.layers.{n}.mlp.predictor.{matrix}.weight");
                let tensor = seeded(&name, Dtype::F16, &shape);
                let place = if inside {
                    &mut self.tensors
                } else {
                    &mut self.predictors
                };
                place.insert(name, tensor);
            }
        }
        self
    }

    /// Writes the folder.
    pub fn write(&self) -> TempDir {
        let folder = TempDir::new().expect("a temporary folder");
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.path().join(name), bytes).expect("a writable folder");
        };
        write(
            "config.json",
            &serde_json::to_vec(&self.config).expect("JSON"),
        );
        write(
            "tokenizer.json",
            &serde_json::to_vec(&byte_tokenizer()).expect("JSON"),
        );
        if self.shards == 1 {
            write_tensors(&folder.path().join("model.safetensors"), &self.tensors);
        } else {
            self.write_shards(folder.path());
        }
        if !self.predictors.is_empty() {
            write_tensors(
                &folder.path().join("predictor.safetensors"),
                &self.predictors,
            );
        }
        folder
    }

    /// Writes the folder with one field of `config.json` changed.
    pub fn write_with_config(mut self, field: &str, value: Value) -> TempDir {
        self.set(field, value);
        self.write()
    }

    fn write_shards(&self, folder: &Path) {
        let mut map = Map::new();
        let per_shard = self.tensors.len().div_ceil(self.shards);
        let names: Vec<&String> = self.tensors.keys().collect();
        for (i, part) in names.chunks(per_shard).enumerate() {
            let file = format!("model-{:05}-of-{:05}.safetensors", i + 1, self.shards);
            let tensors = part
                .iter()
                .map(|&n| (n.clone(), self.tensors[n].clone()))
                .collect();
            write_tensors(&folder.join(&file), &tensors);
            map.extend(part.iter().map(|&n| (n.clone(), json!(file))));
        }
        let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
        std::fs::write(
            folder.join("model.safetensors.index.json"),
            index.to_string(),
        )
        .expect("a writable folder");
    }
}

fn write_tensors(path: &Path, tensors: &BTreeMap<String, Tensor>) {
    let views = tensors.iter().map(|(name, t)| {
        let view = TensorView::new(t.dtype, t.shape.clone(), &t.data);
        (name.clone(), view.expect("matching sizes"))
    });
    std::fs::write(path, serialize(views, None).expect("a checkpoint")).expect("a writable folder");
}

/// Values that depend on the name alone.
pub fn seeded(name: &str, dtype: Dtype, shape: &[usize]) -> Tensor {
    let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let count: usize = shape.iter().product();
    let data = (0..count)
        .flat_map(|_| {
            let v = next();
            match dtype {
                Dtype::F32 => v.to_le_bytes().to_vec(),
                Dtype::BF16 => bf16::from_f32(v).to_le_bytes().to_vec(),
                _ => f16::from_f32(v).to_le_bytes().to_vec(),
            }
        })
        .collect();
    Tensor {
        dtype,
        shape: shape.to_vec(),
        data,
    }
}

/// A byte-level BPE without merges: `<s>`, `</s>` and the 256 bytes in GPT-2's alphabet.
fn byte_tokenizer() -> Value {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut vocab = Map::new();
    vocab.insert("<s>".into(), json!(0));
    vocab.insert("</s>".into(), json!(1));
    let mut moved = 256;
    for b in 0..256u32 {
        let c = if printable(b) {
            b
        } else {
            moved += 1;
            moved - 1
        };
        let text = char::from_u32(c).expect("a character").to_string();
        vocab.insert(text, json!(b + 2));
    }
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [added(0, "<s>"), added(1, "</s>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocab, "merges": []},
    })
}

/// The description of the golden model `name`, with `config.json` changed.
pub fn changed_golden(
    name: &str,
    change: impl FnOnce(&mut Map<String, Value>),
) -> Result<Network, String> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tiny");
    let folder = TempDir::new().expect("a temporary folder");
    for entry in std::fs::read_dir(golden.join(name)).expect("a golden folder") {
        let file = entry.expect("an entry");
        std::fs::copy(file.path(), folder.path().join(file.file_name())).expect("a copy");
    }
    let path = folder.path().join("config.json");
    let text = std::fs::read(&path).expect("a configuration");
    let mut config: Map<String, Value> = serde_json::from_slice(&text).expect("JSON");
    change(&mut config);
    std::fs::write(&path, serde_json::to_vec(&config).expect("JSON")).expect("written");
    let source = HfSource::open(folder.path()).map_err(|e| e.to_string())?;
    let name = String::new();
    Ok(Network {
        name,
        ..source.network().clone()
    })
}

/// The description of the tiny model after `change`.
pub fn network_of(change: impl FnOnce(&mut Folder)) -> Network {
    let mut folder = tiny();
    change(&mut folder);
    let written = folder.write();
    HfSource::open(written.path()).unwrap().network().clone()
}

/// Checks that the tiny model is refused after `change`, with a message that has all `parts`.
pub fn refused(change: impl FnOnce(&mut Folder), parts: &[&str]) {
    let mut folder = tiny();
    change(&mut folder);
    let written = folder.write();
    let message = HfSource::open(written.path())
        .err()
        .expect("a folder that must be refused");
    let message = message.to_string();
    for part in parts {
        assert!(message.contains(part), "{part:?} is missing in: {message}");
    }
}

/// Makes the tiny model a Qwen 2, which has biases.
pub fn qwen2(folder: &mut Folder) {
    folder
        .set("model_type", json!("qwen2"))
        .set("hidden_act", json!("silu"));
    for n in 0..2 {
        for (name, rows) in [("q", 64), ("k", 32), ("v", 32)] {
            folder.put(
                &format!("model.layers.{n}.self_attn.{name}_proj.bias"),
                &[rows],
            );
        }
    }
}
