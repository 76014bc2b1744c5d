//! The oracle against transformers: logits at several positions and greedy ids, for the demo model
//! and for tiny random models of every architecture, option and block format. The goldens are
//! described in `tests/golden/*.py`; this is the link between the engine and the outside world,
//! since everything faster is compared with the oracle.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_models::oracle::Oracle;
use forebay_models::source;
use forebay_models::source::TensorSource;
use forebay_models::tokenizer::{EncodeOptions, Tokenizer};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// What f32 rounding may make of a logit; the largest difference seen is 6e-5 (transformers
/// accumulates in f32), while logits reach 20 to 30 and any change of the arithmetic shows at once.
const TOLERANCE: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    prompt: String,
    prompt_ids: Vec<u32>,
    #[serde(flatten)]
    exact: Run,
    /// The same under the predictors' mask.
    predicted: Option<Run>,
}

#[derive(Deserialize)]
struct Run {
    greedy_ids: Vec<u32>,
    logits: Vec<Logits>,
}

#[derive(Deserialize)]
struct Logits {
    position: usize,
    values: Vec<f32>,
}

#[derive(Deserialize)]
struct DemoGolden {
    prompts: Vec<DemoPrompt>,
}

#[derive(Deserialize)]
struct DemoPrompt {
    prompt: String,
    #[serde(default)]
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo")
}

fn tiny(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("../tests/golden/tiny").join(name)
}

fn json<T: DeserializeOwned>(path: &Path) -> T {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn open(path: &Path) -> Box<dyn TensorSource> {
    source::open(path).unwrap_or_else(|e| panic!("{e}"))
}

fn oracle(source: &dyn TensorSource) -> Oracle {
    Oracle::new(source).unwrap_or_else(|e| panic!("{e}"))
}

fn prompt_ids(source: &dyn TensorSource, prompt: &str) -> Vec<u32> {
    let tokenizer = Tokenizer::from_spec(source.tokenizer().into_owned()).expect("tokenizer");
    let options = EncodeOptions {
        add_bos: true,
        parse_special: false,
    };
    tokenizer.encode(prompt, options).expect("encode")
}

/// Returns the largest difference.
fn assert_close(what: &str, ours: &[f32], theirs: &[f32], tolerance: f32) -> f32 {
    let mut largest = 0.0f32;
    assert_eq!(ours.len(), theirs.len(), "{what}: length of the vocabulary");
    for (id, (&a, &b)) in ours.iter().zip(theirs).enumerate() {
        let difference = (a - b).abs();
        assert!(
            difference <= tolerance,
            "{what}: logit of token {id} is {a}, golden {b}, {difference} apart"
        );
        largest = largest.max(difference);
    }
    largest
}

/// Checks `tiny/<name>`, a GGUF file where there is one, otherwise a Hugging Face folder.
fn check(name: &str) {
    let folder = tiny(name);
    let golden: Golden = json(&folder.join("golden.json"));
    let gguf = folder.join("model.gguf");
    let source = open(if gguf.exists() { &gguf } else { &folder });
    let ids = prompt_ids(source.as_ref(), &golden.prompt);
    assert_eq!(ids, golden.prompt_ids, "{name}: ids of the prompt");
    let mut oracle = oracle(source.as_ref());
    check_run(name, &mut oracle, &golden.prompt_ids, &golden.exact);
    if let Some(predicted) = &golden.predicted {
        assert_ne!(
            predicted.greedy_ids, golden.exact.greedy_ids,
            "{name}: mask without effect"
        );
        let mut oracle = oracle.with_predictors().expect("predictors");
        check_run(name, &mut oracle, &golden.prompt_ids, predicted);
    }
}

fn check_run(name: &str, oracle: &mut Oracle, prompt_ids: &[u32], golden: &Run) {
    oracle.reset();
    let fed = [prompt_ids, &golden.greedy_ids].concat();
    let ours: Vec<Vec<f32>> = fed.iter().map(|&token| oracle.forward(token)).collect();
    let mut largest = 0.0f32;
    for logits in &golden.logits {
        let what = format!("{name}, position {}", logits.position);
        let apart = assert_close(&what, &ours[logits.position], &logits.values, TOLERANCE);
        largest = largest.max(apart);
    }
    eprintln!(
        "{name}: {} tokens, logits at most {largest:.1e} apart",
        fed.len()
    );
    oracle.reset();
    let ids = oracle.greedy(prompt_ids, golden.greedy_ids.len());
    assert_eq!(ids, golden.greedy_ids, "{name}: greedy ids");
}

macro_rules! matches_transformers {
    ($($name:ident),* $(,)?) => {
        $(#[test] fn $name() { check(stringify!($name)); })*

        #[test]
        fn every_tiny_model_has_a_test() {
            let mut found: Vec<String> = fs::read_dir(tiny("."))
                .expect("tests/golden/tiny")
                .map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"))
                .collect();
            found.sort();
            let mut tested = [$(stringify!($name)),*];
            tested.sort_unstable();
            assert_eq!(found, tested);
        }
    };
}

matches_transformers!(
    arcee_bf16,
    arcee_bf16_gguf,
    baichuan_bf16,
    baichuan_bf16_gguf,
    bamboo_drelu_bf16,
    bamboo_powerinfer,
    bamboo_powerinfer_tables,
    cohere2_bf16,
    cohere2_bf16_gguf,
    command_r_bf16,
    command_r_bf16_gguf,
    command_r_plus_bf16,
    command_r_plus_bf16_gguf,
    deepseek_dense_q8_0_gguf,
    deepseek_v2_bf16,
    deepseek_v2_bf16_gguf,
    deepseek_v2_lite_bf16,
    deepseek_v2_lite_bf16_gguf,
    deepseek_v2_lite_older_bf16_gguf,
    deepseek_v3_bf16,
    deepseek_v3_bf16_gguf,
    ernie4_5_bf16,
    ernie4_5_bf16_gguf,
    exaone4_bf16,
    exaone4_bf16_gguf,
    exaone4_full_bf16,
    exaone4_full_bf16_gguf,
    falcon_bf16,
    falcon_bf16_gguf,
    falcon_relu_f16,
    falcon_two_norms_bf16,
    falcon_two_norms_bf16_gguf,
    gemma2_bf16,
    gemma2_bf16_gguf,
    gemma3_bf16,
    gemma3_linear_bf16,
    gemma3_linear_bf16_gguf,
    gemma4_bf16,
    gemma4_bf16_gguf,
    gemma4_inputs_bf16,
    gemma4_inputs_bf16_gguf,
    glm4_bf16,
    glm4_bf16_gguf,
    glm4_moe_bf16,
    glm4_moe_bf16_gguf,
    glm4_moe_lite_bf16,
    gpt2_bf16,
    gpt2_bf16_gguf,
    gpt_oss_bf16_gguf,
    granite_bf16,
    granite_bf16_gguf,
    granite_moe_bf16,
    granite_moe_bf16_gguf,
    hunyuan_bf16,
    hunyuan_bf16_gguf,
    internlm2_bf16,
    internlm2_bf16_gguf,
    lfm2_bf16,
    lfm2_bf16_gguf,
    llama3_rope_bf16,
    llama3_rope_v5_bf16,
    llama_fatrelu_bf16,
    llama_gqa_tied_f32,
    llama_head_dim_bf16,
    llama_iq4_nl,
    llama_iq4_xs,
    llama_k,
    llama_legacy,
    llama_linear_rope_f16,
    llama_relu_f16,
    minicpm_bf16,
    minicpm_bf16_gguf,
    mistral3_yarn_bf16,
    mistral3_yarn_bf16_gguf,
    mistral_window_f16_sharded,
    mixtral_f16,
    mixtral_f16_gguf,
    nemotron_bf16,
    nemotron_bf16_gguf,
    olmo2_bf16,
    olmo2_bf16_gguf,
    olmo3_bf16,
    olmo3_bf16_gguf,
    olmoe_bf16,
    olmoe_bf16_gguf,
    opt_bf16,
    phi2_bf16,
    phi2_bf16_gguf,
    phi3_longrope_bf16,
    phi3_longrope_bf16_gguf,
    phi3_plain_f16,
    phi3_plain_f16_gguf,
    phi3_window_f16,
    qwen2_k,
    qwen2_legacy,
    qwen2_moe_bf16,
    qwen2_moe_bf16_gguf,
    qwen2_mxfp4,
    qwen2_tied_bf16,
    qwen2_untied_f16,
    qwen3_5_bf16,
    qwen3_5_bf16_gguf,
    qwen3_5_moe_bf16,
    qwen3_5_moe_bf16_gguf,
    qwen3_5_parts_bf16,
    qwen3_bf16,
    qwen3_bf16_gguf,
    qwen3_moe_all_bf16,
    qwen3_moe_all_bf16_gguf,
    qwen3_moe_bf16,
    qwen3_next_bf16,
    qwen3_next_bf16_gguf,
    seed_oss_bf16,
    seed_oss_bf16_gguf,
    smallthinker_bf16,
    smallthinker_bf16_gguf,
    smallthinker_plain_bf16,
    smallthinker_plain_bf16_gguf,
    smollm3_bf16,
    smollm3_bf16_gguf,
    stablelm_12b_bf16,
    stablelm_12b_bf16_gguf,
    stablelm_bf16,
    stablelm_bf16_gguf,
    starcoder2_bf16,
    starcoder2_bf16_gguf,
    starcoder2_window_f16,
    turbosparse_mixtral_bf16,
);

#[test]
fn demo_matches_transformers() {
    let golden: DemoGolden = json(&demo().join("golden.json"));
    let logits: Vec<Vec<f32>> = json(&demo().join("golden_logits.json"));
    let source = open(&demo().join("hf"));
    let mut oracle = oracle(source.as_ref());
    assert_eq!(golden.prompts.len(), logits.len());
    for (prompt, logits) in golden.prompts.iter().zip(&logits) {
        oracle.reset();
        let ours = prompt
            .prompt_ids
            .iter()
            .map(|&id| oracle.forward(id))
            .last();
        let ours = ours.expect("a prompt has tokens");
        assert_close(&prompt.prompt, &ours, logits, TOLERANCE);
        oracle.reset();
        let ids = oracle.greedy(&prompt.prompt_ids, prompt.greedy_ids.len());
        assert_eq!(ids, prompt.greedy_ids, "{}", prompt.prompt);
    }
}

/// The model card's share of active neurons, from the prompts' own text: 14.8 % overall, least in
/// layer 1 and most in layer 5.
#[test]
fn demo_activity_is_as_the_model_card_says() {
    let golden: DemoGolden = json(&demo().join("golden.json"));
    let mut oracle = oracle(open(&demo().join("hf")).as_ref());
    let mut tokens = 0;
    let mut active = vec![0; oracle.network().n_layers()];
    for prompt in &golden.prompts {
        oracle.reset();
        for &id in prompt.prompt_ids.iter().chain(&prompt.greedy_ids) {
            oracle.forward(id);
            tokens += 1;
        }
        for (sum, n) in active.iter_mut().zip(oracle.ffn_activity()) {
            *sum += n;
        }
    }
    let neurons = (tokens * oracle.network().ffn(0).d_ff) as f64;
    let density: Vec<f64> = active.iter().map(|&n| n as f64 / neurons).collect();
    let mean = density.iter().sum::<f64>() / density.len() as f64;
    assert!((0.11..0.19).contains(&mean), "{density:?}");
    assert!(density.iter().all(|&d| d >= density[1]), "{density:?}");
    assert!(density.iter().all(|&d| d <= density[5]), "{density:?}");
}

/// With the predictors' mask the demo writes what PowerInfer's own binary writes.
#[test]
fn demo_with_predictors_matches_powerinfer() {
    let exact: DemoGolden = json(&demo().join("golden.json"));
    let golden: DemoGolden = json(&demo().join("golden_predicted.json"));
    let mut oracle = oracle(open(&demo().join("hf")).as_ref())
        .with_predictors()
        .expect("predictors");
    let mut differing = 0;
    for (exact, predicted) in exact.prompts.iter().zip(&golden.prompts) {
        assert_eq!(exact.prompt, predicted.prompt);
        oracle.reset();
        let ids = oracle.greedy(&exact.prompt_ids, predicted.greedy_ids.len());
        assert_eq!(ids, predicted.greedy_ids, "{}", exact.prompt);
        differing += usize::from(exact.greedy_ids != predicted.greedy_ids);
    }
    assert!(
        differing > 0,
        "a mask that changes nothing would not be tested"
    );
}

#[test]
fn a_model_without_predictors_says_so() {
    let oracle = oracle(open(&tiny("llama_relu_f16")).as_ref()).with_predictors();
    let message = oracle.err().expect("no predictors").to_string();
    assert!(message.contains("layer 0"), "{message}");
}
