//! Some thousand mutations of each target; `cargo run -p forebay-fuzz` tries millions.

use std::path::Path;

use forebay_fuzz::session::{Effort, Limits, Session};
use forebay_fuzz::target::scratch;
use forebay_fuzz::targets::TARGETS;

/// Fuzzes the target `name`. Its own inputs must be accepted, or all others are refused for their reason.
fn fuzz(name: &str, executions: u64) {
    let (name, make) = TARGETS
        .into_iter()
        .find(|t| t.0 == name)
        .expect("a target of that name");
    let folder = scratch().expect("a folder");
    let mut target = make(folder.path()).expect("a target");
    let failing = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz-failures");
    let limits = Limits::default();
    for seed in target.seeds() {
        let outcome = target.run(&seed);
        assert_eq!(outcome, Ok(()), "{name}: {}", seed.escape_ascii());
    }
    let session = Session::new(name, &mut *target, limits, folder.path(), &failing);
    let figures = session
        .expect("files")
        .fuzz(Effort::Executions(executions), 1);
    let figures = figures.expect("files");
    assert!(
        figures.failures.is_empty(),
        "{name}: {:#?}",
        figures.failures
    );
    assert!(figures.kinds > 0, "{name}: nothing was refused");
}

macro_rules! short {
    ($($test:ident $name:literal $executions:literal,)*) => {
        $(#[test]
        fn $test() {
            fuzz($name, $executions);
        })*

        #[test]
        fn every_target_is_tried() {
            let tried = [$($name),*];
            assert_eq!(tried, TARGETS.map(|(name, _)| name));
        }
    };
}

short! {
    gguf "gguf" 4000,
    bundle "bundle" 3000,
    bundle_experts "bundle-experts" 1000,
    bundle_expert_neurons "bundle-expert-neurons" 1000,
    bundle_hot_neurons "bundle-hot-neurons" 1000,
    bundle_file "bundle-file" 3000,
    hot_set "hot-set" 5000,
    safetensors "safetensors" 3000,
    config "config" 5000,
    config_experts "config-experts" 2000,
    shard_index "shard-index" 2000,
    tokenizer "tokenizer" 5000,
    tokenizer_json "tokenizer-json" 2000,
    tokenizer_steps "tokenizer-steps" 2000,
    text "text" 5000,
    plan "plan" 10000,
    machine "machine" 10000,
    profile "profile" 5000,
    trace "trace" 3000,
    size "size" 20000,
}
