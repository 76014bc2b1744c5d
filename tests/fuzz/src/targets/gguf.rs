//! GGUF files: header, configuration, tensors' places, and the tokenizer in them.

use std::path::Path;

use anyhow::Result;
use forebay_models::gguf::Gguf;
use forebay_models::source;
use forebay_models::tensor::TensorId;

use super::gguf_writer::{GgufWriter, Meta, Model};
use super::{refusal, tiny, use_tokenizer};
use crate::mutate;
use crate::random::Random;
use crate::target::{Placed, Target};

/// Inputs are headers: tensors follow as zeros, as many as the longest seed has.
struct Headers {
    file: Placed,
    seeds: Vec<Vec<u8>>,
    tail: u64,
}

/// Models with experts whose headers are seeds: a router before attention, MXFP4 and sinks, latent attention and
/// groups.
const WITH_EXPERTS: [&str; 3] = [
    "smallthinker_bf16_gguf",
    "gpt_oss_bf16_gguf",
    "deepseek_v3_bf16_gguf",
];

/// Makes the target.
pub fn make(folder: &Path) -> Result<Box<dyn Target>> {
    let writers = writers();
    let data = |w: &GgufWriter| w.bytes().len() as u64;
    let mut tail = writers.iter().map(data).max().unwrap_or(0);
    let mut seeds: Vec<_> = writers.iter().map(GgufWriter::header).collect();
    for name in WITH_EXPERTS {
        let path = tiny(name).join("model.gguf");
        let gguf = Gguf::open(&path)?;
        let starts = gguf.tensors().iter().map(|tensor| tensor.start);
        let mut bytes = std::fs::read(&path)?;
        tail = tail.max(bytes.len() as u64);
        bytes.truncate(starts.min().unwrap_or(0) as usize);
        seeds.push(bytes);
    }
    Ok(Box::new(Headers {
        file: Placed::new(folder, "model.gguf")?,
        seeds,
        tail,
    }))
}

fn writers() -> Vec<GgufWriter> {
    let small = Model {
        n_layers: 1,
        ..Model::default()
    };
    let powerinfer = Model {
        powerinfer: true,
        tied_head: false,
        predictor_rank: Some(32),
        ..small.clone()
    };
    let qwen = Model {
        arch: "qwen2",
        ..small.clone()
    };
    let mut scaled = small.writer();
    scaled
        .set("llama.rope.scaling.type", "linear")
        .set("llama.rope.scaling.factor", 2.0)
        .set("llama.attention.sliding_window", 64);
    let mut writers = vec![powerinfer.writer(), qwen.writer(), scaled, small.writer()];
    for w in &mut writers {
        w.set("general.alignment", 32_u32);
        w.set("tokenizer.ggml.eot_token_id", 1_u32);
    }
    writers.push(sentence_piece(small.writer()));
    writers
}

fn sentence_piece(mut w: GgufWriter) -> GgufWriter {
    let n = Model::default().vocab;
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend((0..=255).map(|b| format!("<0x{b:02X}>")));
    tokens.extend(["\u{2581}", "t", "h", "\u{2581}t", "th"].map(String::from));
    tokens.truncate(n);
    let mut types = vec![6; 259];
    types[..3].copy_from_slice(&[2, 3, 3]);
    types.resize(tokens.len(), 1);
    let scores = (0..tokens.len()).map(|i| -(i as f32)).collect();
    w.set("tokenizer.ggml.model", "llama")
        .unset("tokenizer.ggml.merges")
        .unset("tokenizer.ggml.pre");
    w.set("tokenizer.ggml.tokens", Meta::Strs(tokens));
    w.set("tokenizer.ggml.token_type", Meta::I32s(types));
    w.set("tokenizer.ggml.scores", Meta::F32s(scores));
    w.set("tokenizer.ggml.add_space_prefix", Meta::Bool(true));
    w
}

impl Target for Headers {
    fn seeds(&self) -> Vec<Vec<u8>> {
        self.seeds.clone()
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        mutate::gguf::change(input, other, random);
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        self.file.put(input, self.tail).map_err(|e| e.to_string())?;
        let source = source::open(self.file.path()).map_err(|e| refusal(&e))?;
        let mut bytes = [0; 4];
        for id in [TensorId::TokenEmbedding, TensorId::OutputNorm] {
            let meta = source.meta(id).expect("checked when it was opened");
            assert!(meta.bytes() >= 4, "{meta:?}");
            source.read(id, 0, &mut bytes).map_err(|e| refusal(&e))?;
        }
        use_tokenizer(source.tokenizer().into_owned())
    }
}
