//! `forebay profile`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use forebay::learn::{ExpertProfile, MissPoint, Profile, ProfileText, measure_importance, profile};
use forebay::{Engine, EngineBuilder, PolicyKind, Sparsity, packed};
use forebay_models::bundle::Bundle;
use forebay_models::importance::{read_imatrix, write_imatrix};
use forebay_models::source;
use forebay_models::tokenizer::EncodeOptions;
use indicatif::ProgressBar;
use serde_json::json;

use super::engine_flags::EngineFlags;
use super::numbers::{at_least, count};
use super::output::{check_targets, print_json, print_text, say};
use super::progress::{reporter, thousandths};
use super::text::{USUAL_PIECE, enough, read_text};

/// Tokens per step where all of their logits are wanted.
const BATCH: usize = 32;

#[derive(Debug, Args)]
pub struct ProfileCommand {
    /// A .gguf or .fbay file, or a safetensors folder.
    model: PathBuf,
    /// Text to profile on.
    #[arg(long, short, value_name = "FILE", conflicts_with = "generate")]
    file: Option<PathBuf>,
    /// Profile on this many tokens that the model writes itself.
    #[arg(long, value_name = "N", value_parser = at_least::<1>)]
    generate: Option<u32>,
    /// Write how much each column of the model's matrices matters to the text (an importance matrix, for `pack --quant
    /// --importance`), and no profile.
    #[arg(long, value_name = "OUT", requires = "file", conflicts_with = "policy")]
    importance: Option<PathBuf>,
    /// Tokens of a piece of text; each starts from an empty context [default: 512, or what the model was trained for
    /// if that is less].
    #[arg(long, value_name = "N", value_parser = at_least::<1>)]
    ctx: Option<u32>,
    /// Tokens of the text that are used.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = count::<1>)]
    tokens: usize,
    /// Which neurons and experts the simulated caches keep: frequency, two-queue, lru or window:K.
    #[arg(long, value_name = "NAME", default_value_t)]
    policy: PolicyKind,
    #[command(flatten)]
    engine: EngineFlags,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl ProfileCommand {
    pub fn execute(self) -> anyhow::Result<()> {
        let asked = self.ctx.map(|ctx| ctx as usize);
        let generate = self.generate.map(|n| n as usize);
        if let Some(out) = &self.importance {
            if packed::is_bundle(&self.model) {
                let model = self.model.display();
                bail!(
                    "--importance is for quantising: give the model that {model} was packed from"
                );
            }
            // An earlier one may be replaced; it is a GGUF file, as models are.
            if read_imatrix(out).is_err() {
                let text = self.file.as_deref().map(|file| ("the text", file));
                check_targets(&[("--importance", out)], text.as_slice())?;
            }
        }
        if let (Some(_), Some(ctx)) = (&self.file, asked) {
            enough(self.tokens, ctx)?;
        }
        let builder = || -> Result<EngineBuilder, forebay::Error> {
            let builder = self
                .engine
                .configure(Engine::builder().model(&self.model))?;
            Ok(builder.hot_set(false).on_preparation(reporter(self.json)))
        };
        let mut first = builder()?;
        // A context that is too long is refused before the model is packed.
        if let Some(context) = generate.map(|n| n + 1).or(asked) {
            first = first.context(context);
        }
        let model = first.read_model()?;
        let ctx = asked.unwrap_or_else(|| model.network.context_length.min(USUAL_PIECE));
        if self.file.is_some() {
            enough(self.tokens, ctx)?;
        }
        let tokens = match (&self.file, self.generate) {
            (Some(file), _) => {
                let options = EncodeOptions {
                    add_bos: model.tokenizer.adds_bos(),
                    parse_special: false,
                };
                let (text, most) = (read_text(file, "text")?, self.tokens);
                let mut tokens = model.tokenizer.encode_up_to(&text, options, most)?;
                tokens.truncate(self.tokens);
                tokens
            }
            (None, Some(_)) => Vec::new(),
            (None, None) => bail!("there is nothing to profile on; give -f TEXT or --generate N"),
        };
        let bundle = model.bundle.clone();
        // Its memory is for the engine.
        drop(model);
        let context = generate.map_or(ctx, |n| n + 1);
        let make = || builder().map(|builder| builder.context(context));
        if let (Some(out), Some(file)) = (&self.importance, &self.file) {
            return self.measure_importance(&make, (&tokens, ctx), file, out);
        }
        let text = match generate {
            Some(n) => ProfileText::Generated(n),
            None => ProfileText::Given {
                tokens: &tokens,
                ctx,
            },
        };
        let bar = thousandths(self.json).with_message("profiling");
        let profile = measured(&make, text, self.policy, &bar)?;
        let path = profile.save(&Bundle::open(&bundle)?)?;
        if self.json {
            return print_json(&serde_json::to_value(&profile)?);
        }
        say(format_args!("saved as {}", path.display()));
        print_text(&table(&profile))
    }

    /// Writes an importance matrix to `out`.
    fn measure_importance(
        &self,
        make: &dyn Fn() -> Result<EngineBuilder, forebay::Error>,
        text: (&[u32], usize),
        file: &Path,
        out: &Path,
    ) -> anyhow::Result<()> {
        let source = source::open(&self.model)?;
        let make = || make().map(|builder| builder.max_batch(BATCH.min(text.1)).max_logits(BATCH));
        let bar = thousandths(self.json).with_message("measuring importance");
        let importance = measure_importance(&make, source.as_ref(), text, file, &mut |share| {
            bar.set_position((share * 1000.0) as u64);
        })?;
        bar.finish_and_clear();
        write_imatrix(&importance, out)?;
        let (chunks, matrices) = (importance.chunks, importance.inputs.len());
        if self.json {
            return print_json(&json!({ "chunks": chunks, "matrices": matrices }));
        }
        let (out, ctx) = (out.display(), text.1);
        print_text(&format!(
            "{out}: inputs of {matrices} matrices over {chunks} pieces of {ctx} tokens\n"
        ))
    }
}

fn measured(
    make: &dyn Fn() -> Result<EngineBuilder, forebay::Error>,
    text: ProfileText<'_>,
    policy: PolicyKind,
    bar: &ProgressBar,
) -> Result<Profile, forebay::Error> {
    let profile = profile(make, text, policy, &mut |share| {
        bar.set_position((share * 1000.0) as u64);
    })?;
    bar.finish_and_clear();
    Ok(profile)
}

fn table(profile: &Profile) -> String {
    let of_neurons = Some(neurons(profile)).filter(|_| !profile.misses.is_empty());
    let of_experts = profile.experts.as_ref().map(|e| experts(profile, e));
    let parts = of_neurons.into_iter().chain(of_experts);
    parts.collect::<Vec<_>>().join("\n")
}

fn percent(v: f64) -> String {
    format!("{:.1}%", v * 100.0)
}

/// What the text wants of single neurons.
fn neurons(profile: &Profile) -> String {
    let wanted = &profile.wanted;
    let mean = wanted.iter().sum::<f64>() / wanted.len().max(1) as f64;
    let ends = |pick: fn(f64, f64) -> f64| wanted.iter().copied().reduce(pick).unwrap_or(0.0);
    let mut text = format!(
        "{} tokens, {}: a token wants {} of a layer's neurons ({} to {}); {} of them are also wanted by the next; the \
         most wanted fifth accounts for {}\n\n| neurons in memory | missed ({}) | reads per token |\n|---|---|---|\n",
        profile.tokens,
        mode_name(profile.sparsity),
        percent(mean),
        percent(ends(f64::min)),
        percent(ends(f64::max)),
        percent(profile.overlap),
        percent(profile.top_fifth_share),
        profile.policy,
    );
    for MissPoint {
        cached,
        miss_rate,
        reads,
        ..
    } in &profile.misses
    {
        text += &format!(
            "| {} | {} | {reads:.0} |\n",
            percent(*cached),
            percent(*miss_rate)
        );
    }
    text
}

/// Which experts the text uses.
fn experts(profile: &Profile, e: &ExpertProfile) -> String {
    let shares = |pairs: &BTreeMap<usize, f64>| {
        let shown = pairs
            .iter()
            .map(|(n, share)| format!("{n}: {}", percent(*share)));
        shown.collect::<Vec<_>>().join(", ")
    };
    let distinct = e.distinct.iter().map(|(n, d)| format!("{n}: {d:.1}"));
    let weights = e.weights.iter().map(|w| format!("{w:.2}"));
    let sparse = e.alive.filter(|&alive| alive < 1.0);
    let alive = sparse.map_or(String::new(), |alive| {
        format!(
            "- neurons of an expert that are alive for its token: {}\n",
            percent(alive)
        )
    });
    let mut text = format!(
        "{} tokens, experts, means over layers:\n- shared with the token so many before: {}\n- uses of a layer's so \
         many most used: {}\n- different ones over so many tokens: {}\n- weights, the best first: {}\n{alive}\n\
         | experts in memory | missed ({}, {} cores) | LRU | at best (Belady) | MB per token |\n\
         |---|---|---|---|---|\n",
        profile.tokens,
        shares(&e.again),
        shares(&e.top_share),
        distinct.collect::<Vec<_>>().join(", "),
        weights.collect::<Vec<_>>().join(" "),
        profile.policy,
        e.threads,
    );
    for p in &e.misses {
        let [cached, missed, lru, best] = [p.cached, p.miss_rate, p.lru, p.belady].map(percent);
        let read = p.bytes / 1e6;
        text += &format!("| {cached} | {missed} | {lru} | {best} | {read:.1} |\n");
    }
    text
}

fn mode_name(sparsity: Sparsity) -> &'static str {
    match sparsity {
        Sparsity::Dense => "dense",
        Sparsity::Exact => "exact",
        Sparsity::Predicted => "predicted",
        Sparsity::Threshold => "threshold",
    }
}
