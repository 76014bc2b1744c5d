//! Runs of the library, with budgets that are exact shares of the weights.

use forebay::{Engine, EngineBuilder, Request, Sparsity};

use crate::cases::{Group, NEW_TOKENS, Setting};
use crate::models::PreparedModel;
use crate::support::{build, engine, generate};
use crate::table::Comparison;

/// Runs a group with all its settings.
pub fn run(prepared: &PreparedModel, group: &Group, comparison: &mut Comparison) {
    let is_run = |threads: &usize| group.library_settings.iter().any(|s| s.threads == *threads);
    for threads in [1, 2].into_iter().filter(is_run) {
        let builder = || builder(prepared, group, threads);
        let (least, whole) = (least_bytes(builder()), whole_bytes(builder()));
        let mut read = Vec::new();
        let settings = group.library_settings.iter();
        for &setting in settings.filter(|s| s.threads == threads) {
            let bytes = least + (whole - least) * setting.percent / 100;
            let engine = build(builder().weight_memory(bytes));
            read.push(run_prompts(&engine, group, setting, comparison));
        }
        // Of a tiny model, less than a cluster may lie between the minimum and the whole, and what has been read ahead
        // when a run ends differs by a few.
        let (first, last) = (read.first().copied(), read.last().copied());
        let less = match group.model.is_tiny() {
            true => last.map(|bytes| bytes + bytes / 16) < first,
            false => last <= first,
        };
        assert!(
            !less,
            "{group}: a small budget reads no more than a large one: {read:?}"
        );
    }
}

/// Runs all prompts with one engine. Returns the bytes that were read.
fn run_prompts(
    engine: &Engine,
    group: &Group,
    setting: Setting,
    comparison: &mut Comparison,
) -> u64 {
    let mut bytes = 0;
    for &prompt in &group.prompts {
        // As the program takes prompts: some begin with the name of BOS.
        let mut request = Request::text(group.model.style.text(prompt))
            .parse_special(true)
            .max_tokens(NEW_TOKENS);
        request.ignore_eog = true;
        let run = generate(engine, request);
        let tokens = run.prefill.tokens + run.prompt.reused_tokens;
        assert_eq!(tokens, prompt, "{group}: tokens of the prompt");
        assert_eq!(run.tokens.len(), NEW_TOKENS, "{group}: generated tokens");
        bytes += run.io.bytes;
        let how = format!("library, {setting}");
        comparison.add(&group.key(prompt), &how, &run.logits_hash);
    }
    bytes
}

fn builder(prepared: &PreparedModel, group: &Group, threads: usize) -> EngineBuilder {
    let builder = engine(prepared.path.as_deref())
        .context(group.model.context)
        .threads(threads)
        .kv_type(group.kv.parse().expect("a KV cache format"));
    match group.sparsity {
        "exact" => builder.sparsity(Sparsity::Exact),
        "predicted" => builder.sparsity(Sparsity::Predicted),
        "threshold" => builder
            .sparsity(Sparsity::Threshold)
            .density(group.model.density),
        "dense" => builder.sparsity(Sparsity::Dense),
        other => panic!("there is no sparsity {other}"),
    }
}

/// Bytes of all weights that are kept in memory if there is room.
fn whole_bytes(builder: EngineBuilder) -> u64 {
    let budget = build(builder).budget();
    let item = budget.items().iter().find(|i| i.name == "resident_weights");
    item.expect("weights in memory").bytes
}

/// The number in "the minimum on 2 cores is 98304 bytes".
fn least_bytes(builder: EngineBuilder) -> u64 {
    let refusal = builder.weight_memory(0).build().err();
    let message = refusal.expect("0 bytes are not enough").to_string();
    let number = message
        .rsplit_once(" is ")
        .and_then(|(_, n)| n.strip_suffix(" bytes"));
    number.and_then(|n| n.parse().ok()).expect(&message)
}
