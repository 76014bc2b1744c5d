//! Conversions of numbers to formats with blocks.

use std::path::Path;
use std::sync::Arc;

use forebay::packed;
use forebay_models::block::BlockType;
use forebay_models::bundle::PackOptions;
use forebay_models::importance::Importance;
use forebay_models::importance::read_imatrix;

use crate::program::{answer, forebay};
use crate::scratch::Scratch;

/// The demo's rows have 192 or 768 numbers, its Down columns 192.
#[test]
fn who_gets_another_format_is_told_so() {
    let scratch = Scratch::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/hf");
    for (format, instead) in [
        ("q4_k", Some("are Q5_0 instead of Q4_K")),
        ("Q6_K", Some("are Q8_0 instead of Q6_K")),
        ("iq4_nl", None),
    ] {
        let out = scratch.join(format!("{format}.fbay"));
        let mut pack = forebay(scratch.path(), ["pack", "-q", "--quant", format, "-o"]);
        pack.arg(&out).arg(&source);
        let said = answer(pack);
        assert!(said.status.success(), "{}", said.stderr);
        match instead {
            Some(instead) => assert!(said.stderr.contains(instead), "{}", said.stderr),
            None => assert!(!said.stderr.contains("instead"), "{}", said.stderr),
        }
        let mut run = forebay(scratch.path(), ["run", "-q", "-n", "4", "-p", "Once"]);
        run.arg(&out);
        let ran = answer(run);
        assert!(ran.status.success(), "{}", ran.stderr);
    }
}

#[test]
fn what_matters_is_measured_by_profile_and_spared_by_pack() {
    let scratch = Scratch::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/hf");
    let (text, importance) = (scratch.join("text.txt"), scratch.join("importance.gguf"));
    std::fs::write(
        &text,
        "Once upon a time there was a little dog. ".repeat(20),
    )
    .expect("written");
    let profile = |model: &Path| {
        let sizes = ["--tokens", "64", "--ctx", "32", "--importance"];
        let mut profile = forebay(scratch.path(), ["profile", "-f"]);
        profile.arg(&text).args(sizes).arg(&importance).arg(model);
        answer(profile)
    };
    let said = profile(&source);
    assert!(said.status.success(), "{}", said.stderr);
    // 6 layers of 7 matrices, and the head.
    assert!(
        said.stdout
            .contains("inputs of 43 matrices over 2 pieces of 32"),
        "{}",
        said.stdout
    );
    let pack_to = |name: &str, flags: &[&str]| {
        let out = scratch.join(name);
        let mut pack = forebay(scratch.path(), ["pack", "-q", "-o"]);
        pack.arg(&out).arg(&source).args(flags);
        (answer(pack), out)
    };
    let file = importance.to_str().expect("UTF-8");
    let (said, with) = pack_to("with.fbay", &["--quant", "q4_k", "--importance", file]);
    assert!(
        said.status.success() && !said.stderr.contains("without it"),
        "{}",
        said.stderr
    );
    let (_, without) = pack_to("without.fbay", &["--quant", "q4_k"]);
    let bytes = |path: &Path| std::fs::read(path).expect("packed");
    assert!(bytes(&with) != bytes(&without));
    // So the cache keeps them apart.
    let read = Arc::new(read_imatrix(&importance).expect("what was written"));
    let cache = scratch.join("cache");
    std::fs::create_dir(&cache).expect("a folder");
    let cached = |importance: Option<&Arc<Importance>>| {
        let options = PackOptions {
            quant: Some(BlockType::Q4_0),
            importance: importance.cloned(),
            ..PackOptions::default()
        };
        let bundle = packed::open(&source, Some(&cache), &options, &mut |_| {});
        bundle.expect("packed").path().to_path_buf()
    };
    let mut other = (*read).clone();
    let inputs = other.inputs.values_mut().next().expect("some");
    inputs.sums[0] += 1.0;
    let paths = [None, Some(&read), Some(&Arc::new(other))].map(cached);
    assert!(paths[0] != paths[1] && paths[1] != paths[2], "{paths:?}");
    assert_eq!(cached(Some(&read)), paths[1]);
    // There is nothing to quantise.
    let (said, _) = pack_to("none.fbay", &["--importance", file]);
    assert!(said.stderr.contains("--quant"), "{}", said.stderr);
    // The model is no importance matrix, and a packed one has no names.
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny/qwen2_k/model.gguf");
    let demo = demo.to_str().expect("UTF-8");
    let (said, _) = pack_to("none.fbay", &["--quant", "q4_k", "--importance", demo]);
    assert!(said.stderr.contains("general.type"), "{}", said.stderr);
    let said = profile(&with);
    assert!(said.stderr.contains("was packed from"), "{}", said.stderr);
}
