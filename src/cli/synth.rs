//! `forebay synth`

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use forebay::bench::random_tokens;
use forebay::learn::{Activity, measure_activity, measure_routing};
use forebay::packed;
use forebay::{Engine, EngineBuilder};
use forebay_models::block::BlockType;
use forebay_models::bundle::{PackOptions, pack};
use forebay_models::export::write_gguf;
use forebay_models::source;
use forebay_models::source::TensorSource;
use forebay_models::synth::{FORMATS, Form, Planting, Shape, SynthOptions, SynthSource};
use forebay_plans::size::format_size;

use super::hot::{HotBorder, Sorting};
use super::output::{print_text, say};
use super::progress::{reporter, writing};
use super::routing_table;

#[derive(Debug, Args)]
pub struct Synth {
    /// Shape: turbosparse-mistral-7b, llama2-7b-relu or tiny-sparse; with experts qwen3-30b-a3b, gpt-oss-20b,
    /// smallthinker-4b, smallthinker-21b, olmoe-1b-7b, mixtral-8x7b, tiny-experts or
    /// tiny-sparse-experts.
    #[arg(long, value_name = "NAME")]
    shape: String,
    /// The file to write: .fbay is the sparse model with predictors, packed; .gguf is a plain llama of
    /// the same size, for other engines. With experts, both are the same model.
    #[arg(long, short, value_name = "OUT.fbay|OUT.gguf")]
    output: PathBuf,
    /// Format of the matrices: q4_0, q8_0 or f16; the model is otherwise the same.
    #[arg(long, value_name = "FORMAT", default_value = "q4_0")]
    quant: String,
    /// Seed; another seed gives another model.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of layers [default: the shape's].
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Rank of the predictors, a power of two [default: 256 for the 7B shapes].
    #[arg(long, value_name = "R")]
    rank: Option<usize>,
    /// Share of neurons that are active, on average [default: 0.1].
    #[arg(long, value_name = "D")]
    density: Option<f64>,
    /// Plant predictors that see the residual stream before their layer, but for the first layer, whose attention
    /// writes the context (.fbay only).
    #[arg(long)]
    before_attention: bool,
    /// Sort the neurons, the most wanted first, by a profile of the same model (.fbay only).
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// With --profile: which neurons are hot; see `forebay pack`.
    #[arg(long, value_name = "auto|PART", requires = "profile")]
    hot: Option<HotBorder>,
    /// Tokens to run through a packed model to print how sparse it is, or how its tokens choose experts; 0 skips
    /// this.
    #[arg(long, value_name = "N", default_value_t = 256)]
    measure: usize,
    /// No progress bar.
    #[arg(long, short)]
    quiet: bool,
}

/// Maximum number of tokens in a text that is measured.
const TEXT: usize = 128;

impl Synth {
    pub fn execute(self) -> anyhow::Result<()> {
        let form = match packed::is_bundle(&self.output) {
            true => Form::Sparse,
            false if self.output.extension().is_some_and(|e| e == "gguf") => Form::Plain,
            false => bail!(
                "{}: the file's name must end in .fbay (sparse, packed) or .gguf (plain, for other engines)",
                self.output.display()
            ),
        };
        let shape = Shape::named(&self.shape)?;
        let usual = SynthOptions::new(shape);
        let options = SynthOptions {
            form,
            format: parse_format(&self.quant)?,
            seed: self.seed,
            layers: self.layers,
            rank: self.rank,
            before_attention: self.before_attention,
            planting: Planting {
                density: self.density.unwrap_or(usual.planting.density),
                ..usual.planting
            },
            ..usual
        };
        let source = SynthSource::new(&options)?;
        let lock = packed::lock(&self.output, &mut reporter(self.quiet))?;
        let mut report = writing(self.quiet, "making");
        match (form, &self.profile) {
            (Form::Sparse, Some(profile)) => {
                let hot = self.hot;
                let open = || Ok(Box::new(SynthSource::new(&options)?) as Box<dyn TensorSource>);
                let plain = PackOptions::default();
                let source = Sorting { profile, hot }.sort(open, (&self.output, &plain))?;
                pack(&source, &self.output, &plain, &mut report)?;
            }
            (Form::Plain, Some(_)) => bail!("--profile sorts .fbay files only"),
            (Form::Sparse, None) => {
                pack(&source, &self.output, &PackOptions::default(), &mut report)?
            }
            (Form::Plain, None) => {
                write_gguf(&source, &self.output, &mut report)?;
                check_again(&self.output, &source)?;
            }
        }
        drop(lock);
        if !self.quiet {
            let written = std::fs::metadata(&self.output)
                .with_context(|| format!("cannot read the size of {}", self.output.display()))?;
            say(format_args!(
                "{}: {}; a model for measuring speed, its output is meaningless",
                self.output.display(),
                format_size(written.len())
            ));
        }
        match form {
            Form::Sparse if self.measure == 0 => Ok(()),
            Form::Sparse if shape.has_experts() => self.print_routing(&SynthSource::new(&options)?),
            Form::Sparse => self.print_activity(),
            Form::Plain => Ok(()),
        }
    }

    /// The model, for texts of some length.
    fn builder(&self, ctx: usize) -> EngineBuilder {
        let builder = Engine::builder().model(&self.output).context(ctx);
        builder.max_batch(ctx).hot_set(false)
    }

    /// Runs random tokens and prints the planted routing, as measured in the computation.
    fn print_routing(&self, source: &SynthSource) -> anyhow::Result<()> {
        let ctx = TEXT.min(self.measure);
        let tokens = random_tokens(self.measure, 0, source.network().vocab_size);
        let make = || Ok(self.builder(ctx));
        let routing = measure_routing(&make, source, (&tokens, ctx), &routing_table::SIZES)?;
        let measured = tokens.len() / ctx * ctx;
        print_text(&routing_table::table(&self.shape, measured, &routing))
    }

    /// Runs random tokens and prints the planted sparsity, as measured in the computation.
    fn print_activity(&self) -> anyhow::Result<()> {
        let ctx = TEXT.min(self.measure);
        let make = || Ok(self.builder(ctx));
        let vocabulary = make()?.read_model()?.network.vocab_size;
        let tokens = random_tokens(self.measure, 0, vocabulary);
        let layers = measure_activity(&make, &tokens, ctx)?;
        let mean = Activity::mean(&layers);
        let percent = |v: f64| format!("{:.1} %", v * 100.0);
        let mut text = format!(
            "measured over {} random tokens, means of {} layers:\n",
            tokens.len() / ctx * ctx,
            layers.len()
        );
        let rows = [
            ("neurons active for a token", Some(mean.density)),
            (
                "activations in the most active fifth",
                Some(mean.top_fifth_share),
            ),
            ("also active for the next token", Some(mean.overlap)),
            (
                "missed by a cache of half of them",
                Some(mean.miss_rate_at_half),
            ),
            ("named by the predictors", mean.recall),
        ];
        for (what, value) in rows {
            if let Some(value) = value {
                text += &format!("  {what:38} {}\n", percent(value));
            }
        }
        print_text(&text)
    }
}

/// A GGUF file must describe the model that was written.
fn check_again(path: &Path, written: &dyn TensorSource) -> anyhow::Result<()> {
    let read = source::open(path)?;
    if read.network() != written.network() {
        let (read, written) = (read.network(), written.network());
        bail!(
            "{}: it describes {read:?}, but has {written:?}",
            path.display()
        );
    }
    Ok(())
}

fn parse_format(name: &str) -> anyhow::Result<BlockType> {
    let found = FORMATS
        .into_iter()
        .find(|f| f.name().eq_ignore_ascii_case(name));
    found.with_context(|| format!("--quant {name}: choose q4_0, q8_0 or f16"))
}
