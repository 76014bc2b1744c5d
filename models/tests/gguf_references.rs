//! Keys of GGUF files that llama.cpp reads for some architectures only, or that mean something else together.

mod gguf_writer;

use std::path::Path;

use forebay_models::network::{Network, RopeScaling};
use forebay_models::source::GgufSource;
use forebay_models::source::TensorSource;
use gguf_writer::{Meta, put_meta, put_str};
use tempfile::TempDir;

/// Bytes before the metadata, and where the number of keys is in them.
const HEADER: usize = 24;
const N_KEYS: usize = 16;

/// The golden file `name` with these keys, added or in place of those it has.
fn with(name: &str, keys: &[(&str, Meta)]) -> Result<Network, String> {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tiny");
    let mut file = std::fs::read(tiny.join(name).join("model.gguf")).expect("a golden file");
    let mut added = Vec::new();
    for (key, value) in keys {
        let mut named = Vec::new();
        put_str(&mut named, key);
        let at = file.windows(named.len()).position(|w| w == named);
        if let Some(at) = at {
            // Of another architecture, nobody reads it.
            file[at + 8] = b'x';
        }
        added.extend(named);
        put_meta(&mut added, value);
    }
    // Tensors stay aligned.
    let mut filler = Vec::new();
    put_str(&mut filler, "general.filler");
    let used = added.len() + filler.len() + 4 + 8;
    let text = " ".repeat(used.next_multiple_of(32) - used);
    put_meta(&mut filler, &Meta::Str(text));
    added.extend(filler);
    let count = u64::from_le_bytes(file[N_KEYS..HEADER].try_into().expect("8 bytes"));
    let count = count + keys.len() as u64 + 1;
    file[N_KEYS..HEADER].copy_from_slice(&count.to_le_bytes());
    file.splice(HEADER..HEADER, added);

    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, file).expect("written");
    let source = GgufSource::open(&path).map_err(|e| e.to_string())?;
    Ok(source.network().clone())
}

fn opened(name: &str, keys: &[(&str, Meta)]) -> Network {
    with(name, keys).unwrap_or_else(|e| panic!("{name} with {keys:?}: {e}"))
}

fn refused(name: &str, keys: &[(&str, Meta)], parts: &[&str]) {
    let message = with(name, keys).expect_err(name);
    for part in parts.iter().chain(&["not supported"]) {
        assert!(message.contains(part), "{part:?} is missing in: {message}");
    }
}

#[test]
fn groups_are_refused_where_none_are_chosen() {
    let groups = |arch: &str, n: u32| {
        let key = |name: &str| format!("{arch}.expert_group_{name}");
        [
            (key("count"), Meta::U32(n)),
            (key("used_count"), Meta::U32(1)),
        ]
    };
    for (name, arch) in [
        ("mixtral_f16_gguf", "llama"),
        ("granite_moe_bf16_gguf", "granitemoe"),
        ("gpt_oss_bf16_gguf", "gpt-oss"),
    ] {
        let keys = groups(arch, 2);
        let keys = keys
            .each_ref()
            .map(|(key, value)| (key.as_str(), value.clone()));
        refused(name, &keys, &[&format!("{arch}.expert_group_count"), "2"]);
        let one = groups(arch, 1);
        let one = one
            .each_ref()
            .map(|(key, value)| (key.as_str(), value.clone()));
        assert_eq!(opened(name, &one), opened(name, &[]));
    }
}

#[test]
fn only_dense_granite_may_be_without_rotation() {
    let rotates = |name, key| {
        let network = opened(name, &[(key, Meta::Bool(false))]);
        network.attentions().all(|a| a.rope.is_some())
    };
    assert!(!rotates(
        "granite_bf16_gguf",
        "granite.rope.scaling.finetuned"
    ));
    assert!(rotates(
        "granite_moe_bf16_gguf",
        "granitemoe.rope.scaling.finetuned"
    ));
}

#[test]
fn a_factor_is_not_beside_factors_in_tensors() {
    const NAME: &str = "phi3_longrope_bf16_gguf";
    let factor = |v: f32| ("phi3.rope.scaling.factor", Meta::F32(v));
    refused(NAME, &[factor(4.0)], &["phi3.rope.scaling.factor", "4"]);
    let plain = opened(NAME, &[]);
    assert!(matches!(
        plain.ropes[0].scaling,
        RopeScaling::LongShort { .. }
    ));
    assert_eq!(opened(NAME, &[factor(1.0)]), plain);
    let none = ("phi3.rope.scaling.type", Meta::Str("none".into()));
    assert_eq!(opened(NAME, &[factor(4.0), none]), plain);
}

#[test]
fn scores_of_latent_attention_are_scaled_by_yarn_alone() {
    const NAME: &str = "deepseek_v2_bf16_gguf";
    let extra = |v: f32| ("deepseek2.rope.scaling.attn_factor", Meta::F32(v));
    refused(
        NAME,
        &[extra(1.5)],
        &["deepseek2.rope.scaling.attn_factor", "1.5"],
    );
    assert_eq!(opened(NAME, &[extra(1.0)]), opened(NAME, &[]));
    let linear = |factor: f32| {
        [
            ("deepseek2.rope.scaling.type", Meta::Str("linear".into())),
            ("deepseek2.rope.scaling.factor", Meta::F32(factor)),
        ]
    };
    refused(
        NAME,
        &linear(4.0),
        &["deepseek2.rope.scaling.factor", "linear"],
    );
    assert_eq!(
        opened(NAME, &linear(1.0)).ropes[0].scaling,
        RopeScaling::None
    );
}

/// llama.cpp reads neither key for these files.
#[test]
fn weights_of_smallthinkers_experts_are_always_normalised() {
    const NAME: &str = "smallthinker_bf16_gguf";
    let keys = [
        ("smallthinker.expert_weights_norm", Meta::Bool(false)),
        ("smallthinker.expert_weights_scale", Meta::F32(2.5)),
    ];
    assert_eq!(opened(NAME, &keys), opened(NAME, &[]));
}
