//! Importance matrices: what is measured is what the naive oracle's matrices are multiplied by, for every kind of
//! model, with any number of threads; and packing uses it.

use std::collections::BTreeSet;
use std::path::Path;

use forebay::learn::measure_importance;
use forebay::{Engine, EngineBuilder, Error};
use forebay_models::importance::Importance;
use forebay_models::importance::{read_imatrix, write_imatrix};
use forebay_models::oracle::{InputSums, Oracle};
use forebay_models::source;
use forebay_models::source::TensorSource;
use forebay_models::tensor::{LayerTensor, TensorId};
use forebay_models::tokenizer::Tokenizer;

use crate::support::{TemporaryFile, json, scratch, tiny, tiny_folder};

/// Tokens of a piece of text; there are two.
const CTX: usize = 24;

/// Largest difference of a sum of squares from the oracle's, as a share of the largest of its matrix. The oracle rounds
/// keys and values to f16, as the engine does. Measured: up to 0.0004 (0.004 if it does not).
const TOLERANCE: f64 = 0.001;

/// The first tokens of a tiny model's golden.
fn tokens(name: &str) -> Vec<u32> {
    let golden: serde_json::Value = json(&tiny_folder(name).join("golden.json"));
    let ids = |field: &str| {
        let ids = golden[field].as_array().expect("ids").clone();
        ids.into_iter().map(|id| id.as_u64().expect("an id") as u32)
    };
    let all = ids("prompt_ids").chain(ids("greedy_ids"));
    all.take(2 * CTX).collect()
}

fn measured(model: &Path, tokens: &[u32], threads: usize, batch: usize) -> Importance {
    let source = source::open(model).expect("a tiny model");
    let make = || -> Result<EngineBuilder, Error> {
        let builder = Engine::builder().model(model).cache_folder(scratch());
        let builder = builder.context(CTX).threads(threads).memory(256 << 20);
        Ok(builder.max_batch(batch).max_logits(batch))
    };
    let text = (tokens, CTX);
    measure_importance(
        &make,
        source.as_ref(),
        text,
        Path::new("golden"),
        &mut |_| {},
    )
    .unwrap_or_else(|e| panic!("{}: {e}", model.display()))
}

fn of_oracle(source: &dyn TensorSource, tokens: &[u32]) -> InputSums {
    let oracle = Oracle::new(source).expect("a tiny model");
    let oracle = oracle.with_context(CTX).with_engine_precision();
    let mut oracle = oracle.with_input_sums();
    let tokenizer = Tokenizer::from_spec(source.tokenizer().into_owned()).expect("its tokenizer");
    for text in tokens.chunks_exact(CTX) {
        oracle.reset();
        for token in tokenizer.piece(text).iter() {
            oracle.forward(*token);
        }
    }
    oracle.into_input_sums()
}

/// Compares every sum; returns how many matrices have inputs, those of experts counted, and the largest difference.
fn compare(
    name: &str,
    importance: &Importance,
    source: &dyn TensorSource,
    theirs: &InputSums,
) -> (usize, f64) {
    let mut apart: f64 = 0.0;
    let mut names = BTreeSet::new();
    for ((id, expert), (count, sums)) in theirs {
        let named = source.gguf_names(*id);
        let inputs = importance.of(&named);
        let inputs = inputs.unwrap_or_else(|| panic!("{name}: {id:?} is missing"));
        names.insert(named[0].clone());
        let (tokens, ours) = (inputs.tokens[*expert], &inputs.sums[expert * sums.len()..]);
        assert_eq!(tokens, *count as f32, "{name}: {id:?} {expert}");
        let most = sums.iter().fold(0.0, |most: f64, &sum| most.max(sum));
        assert!(most > 0.0, "{name}: {id:?} has no inputs");
        for (&ours, theirs) in ours.iter().zip(sums) {
            apart = apart.max((f64::from(ours) - theirs).abs() / most);
        }
    }
    let ours: BTreeSet<String> = importance.inputs.keys().cloned().collect();
    assert_eq!(ours, names, "{name}");
    (theirs.len(), apart)
}

#[test]
fn inputs_are_those_of_the_oracle() {
    for name in [
        "llama_gqa_tied_f32",
        "qwen2_untied_f16",
        "llama_relu_f16",
        "bamboo_drelu_bf16",
        // Not gated; the FFN beside the mixer.
        "phi2_bf16_gguf",
        "gpt2_bf16",
        // Several matrices in one tensor.
        "phi3_plain_f16_gguf",
        // Inputs of the tokens; recurrent mixers.
        "gemma4_inputs_bf16",
        "lfm2_bf16",
        "qwen3_5_bf16_gguf",
        // Experts, also chosen before the layer and beside what every token uses.
        "qwen3_moe_bf16",
        "mixtral_f16_gguf",
        "smallthinker_bf16_gguf",
        "qwen2_moe_bf16",
    ] {
        let (model, tokens) = (tiny(name), tokens(name));
        let source = source::open(&model).expect("a tiny model");
        let importance = measured(&model, &tokens, 2, 16);
        let theirs = of_oracle(source.as_ref(), &tokens);
        let (n, apart) = compare(name, &importance, source.as_ref(), &theirs);
        eprintln!("{name}: {n} inputs, at most {apart:.6} apart");
        assert!(apart < TOLERANCE, "{name}: {apart}");
    }
}

#[test]
fn experts_have_inputs_of_their_own() {
    let (model, tokens) = (tiny("qwen3_moe_bf16"), tokens("qwen3_moe_bf16"));
    let importance = measured(&model, &tokens, 2, 16);
    let source = source::open(&model).expect("a tiny model");
    let experts = source.network().experts(0).expect("experts");
    for tensor in [LayerTensor::ExpertGate, LayerTensor::ExpertDown] {
        let names = source.gguf_names(TensorId::Layer(0, tensor));
        let inputs = importance.of(&names).expect("they were seen");
        assert_eq!(inputs.tokens.len(), experts.count);
        let used: f32 = inputs.tokens.iter().sum();
        assert_eq!(used as usize, tokens.len() * experts.used);
        let columns = inputs.sums.len() / experts.count;
        let seen = inputs.tokens.iter().zip(inputs.sums.chunks_exact(columns));
        for (&n, sums) in seen {
            assert_eq!(n > 0.0, sums.iter().any(|&sum| sum > 0.0));
        }
    }
}

/// Sums are added in one order, whoever computes and however many tokens at once.
#[test]
fn threads_and_batches_change_no_bit() {
    for name in ["llama_gqa_tied_f32", "qwen2_moe_bf16"] {
        let (model, tokens) = (tiny(name), tokens(name));
        let files: Vec<Vec<u8>> = [(1, 16), (2, 16), (2, 5)]
            .into_iter()
            .map(|(threads, batch)| {
                let file = TemporaryFile::new("importance.gguf");
                let importance = measured(&model, &tokens, threads, batch);
                write_imatrix(&importance, &file.0).expect("written");
                let read = read_imatrix(&file.0).expect("what was written");
                assert_eq!(read.inputs, importance.inputs);
                std::fs::read(&file.0).expect("readable")
            })
            .collect();
        assert!(files[0] == files[1] && files[0] == files[2], "{name}");
    }
}
