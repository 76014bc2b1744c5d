//! `forebay fit-predictor` and `forebay calibrate`

use std::path::PathBuf;

use clap::Args;
use forebay::learn::{CalibrateRequest, FitRequest, FitStep, calibrate_gates, fit_predictors};
use forebay::{Engine, EngineBuilder, Error, Sparsity};
use forebay_models::tokenizer::EncodeOptions;
use forebay_plans::predictor_fit::FitOptions;
use forebay_plans::size::format_size;

use super::engine_flags::EngineFlags;
use super::numbers::{at_least, count, part};
use super::output::{print_json, print_text};
use super::progress::{reporter, thousandths};
use super::text::{USUAL_PIECE, enough, read_text};

/// Tokens per step.
const BATCH: usize = 128;

#[derive(Debug, Args)]
pub struct Text {
    /// A .gguf or .fbay file, or a safetensors folder.
    model: PathBuf,
    /// Text to learn from.
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    /// Tokens of a piece of text; each starts from an empty context [default: 512, or what the model was trained for
    /// if that is less].
    #[arg(long, value_name = "N", value_parser = at_least::<3>)]
    ctx: Option<u32>,
    /// Tokens of the text that are used.
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = count::<1>)]
    tokens: usize,
    #[command(flatten)]
    engine: EngineFlags,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct FitPredictor {
    #[command(flatten)]
    text: Text,
    /// Rank of the predictors: higher is better, larger and slower.
    #[arg(long, value_name = "R", default_value_t = 64, value_parser = at_least::<2>)]
    rank: u32,
    /// Part of the live neurons to predict.
    #[arg(long, value_name = "PART", default_value_t = 0.95, value_parser = part)]
    recall: f64,
    /// Predict by the residual stream before the layer instead of that before the FFN: less exact, but missing neurons
    /// are read while attention is computed.
    #[arg(long)]
    before_attention: bool,
    /// Training steps per layer; 0 uses the gate's low-rank approximation.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    steps: usize,
    /// Seed of the training.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Pieces at the end of the text to measure perplexity on.
    #[arg(long, value_name = "N", default_value_t = 4)]
    test_pieces: u32,
}

#[derive(Debug, Args)]
pub struct Calibrate {
    #[command(flatten)]
    text: Text,
    /// Find and store the smallest part of the neurons whose perplexity is at most this much above that of all neurons:
    /// 5% or 0.05.
    #[arg(long, value_name = "PART", value_parser = rise)]
    perplexity_rise: Option<f64>,
    /// Pieces at the end of the text to measure perplexity on.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least::<1>)]
    test_pieces: u32,
}

fn rise(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(percent) => (percent, 0.01),
        None => (text, 1.0),
    };
    match number.trim().parse::<f64>() {
        Ok(rise) if rise > 0.0 && rise.is_finite() => Ok(rise * scale),
        _ => Err("give a part above 0, such as 5% or 0.05".into()),
    }
}

impl Text {
    /// For an engine that runs pieces of `ctx` tokens.
    fn builder(&self, ctx: usize) -> Result<EngineBuilder, Error> {
        let builder = self.any_context()?.context(ctx);
        Ok(builder.max_batch(BATCH.min(ctx)).max_logits(32))
    }

    fn any_context(&self) -> Result<EngineBuilder, Error> {
        let builder = Engine::builder().model(&self.model);
        let builder = self.engine.configure(builder)?;
        Ok(builder.on_preparation(reporter(self.json)))
    }

    /// The text's tokens, as many as are used, and how many of them are a piece; `tests` pieces are only for measuring.
    /// `layout` is that of the file that is used later.
    fn tokens(
        &self,
        tests: u32,
        layout: impl FnOnce(EngineBuilder) -> EngineBuilder,
    ) -> anyhow::Result<(Vec<u32>, usize)> {
        let asked = self.ctx.map(|ctx| ctx as usize);
        if let Some(ctx) = asked {
            enough(self.tokens, ctx)?;
        }
        let (tests, piece) = (tests as usize, asked.unwrap_or(0));
        if self.tokens < piece.saturating_mul(tests + 1) {
            let tokens = self.tokens;
            return Err(Error::TooFewForTests {
                tokens,
                tests,
                piece,
            }
            .into());
        }
        let text = read_text(&self.file, "text")?;
        // A context that is too long is refused before the model is packed.
        let builder = match asked {
            Some(ctx) => self.builder(ctx)?,
            None => self.any_context()?,
        };
        let builder = builder.sparsity(Sparsity::Dense);
        let model = layout(builder).read_model()?;
        let ctx = asked.unwrap_or_else(|| model.network.context_length.min(USUAL_PIECE));
        enough(self.tokens, ctx)?;
        let options = EncodeOptions {
            add_bos: model.tokenizer.adds_bos(),
            parse_special: false,
        };
        let mut tokens = model.tokenizer.encode_up_to(&text, options, self.tokens)?;
        tokens.truncate(self.tokens);
        Ok((tokens, ctx))
    }
}

impl FitPredictor {
    pub fn execute(self) -> anyhow::Result<()> {
        let (tokens, ctx) = self.text.tokens(self.test_pieces, |builder| builder)?;
        let request = FitRequest {
            options: FitOptions {
                rank: self.rank as usize,
                target_recall: self.recall,
                train_steps: self.steps,
                seed: self.seed,
                holdout: 0.1,
            },
            ctx,
            test_pieces: self.test_pieces as usize,
            sample_bytes: 1 << 30,
            before_attention: self.before_attention,
        };
        let bar = thousandths(self.text.json);
        let report =
            fit_predictors(
                &|| self.text.builder(ctx),
                &tokens,
                &request,
                &mut |step| match step {
                    FitStep::Gathering(to) => {
                        bar.set_message(format!("running the text (layers to {to})"))
                    }
                    FitStep::Fitting(layer, share) => {
                        bar.set_message(format!("fitting layer {layer}"));
                        bar.set_position((share * 1000.0) as u64);
                    }
                    FitStep::Measuring => bar.set_message("measuring perplexity"),
                    FitStep::Writing => bar.set_message("writing the packed model"),
                },
            )?;
        bar.finish_and_clear();
        if self.text.json {
            return print_json(&serde_json::to_value(&report)?);
        }
        let mut text = String::from(
            "| layer | how | recall % | weighted recall % | predicted density % | density % |\n\
             |---|---|---|---|---|---|\n",
        );
        let percent = |v: f64| format!("{:.1}", v * 100.0);
        for (l, r) in report.layers.iter().enumerate() {
            let m = &r.result;
            let how = format!("{:?}", r.method).to_lowercase();
            let cells = [
                m.recall,
                m.activation_recall,
                m.predicted_density,
                m.density,
            ];
            text += &format!("| {l} | {how} | {} |\n", cells.map(percent).join(" | "));
        }
        text += &format!(
            "recall {}% ({}% by activation), predicted density {}% (true {}%), {} in memory\n\
             perplexity {:.4} exact, {:.4} predicted, on text that was not fitted to\n",
            percent(report.recall),
            percent(report.activation_recall),
            percent(report.predicted_density),
            percent(report.density),
            format_size(report.bytes as u64),
            report.exact_perplexity,
            report.predicted_perplexity,
        );
        print_text(&text)
    }
}

impl Calibrate {
    pub fn execute(self) -> anyhow::Result<()> {
        let tests = self.perplexity_rise.map_or(0, |_| self.test_pieces);
        let (tokens, ctx) = self.text.tokens(tests, EngineBuilder::by_neuron)?;
        let bar = thousandths(self.text.json);
        bar.set_message("running the text");
        let request = CalibrateRequest {
            ctx,
            perplexity_rise: self.perplexity_rise,
            test_pieces: self.test_pieces as usize,
        };
        let report = calibrate_gates(
            &|| self.text.builder(ctx),
            &tokens,
            &request,
            &mut |share| {
                bar.set_position((share * 1000.0) as u64);
            },
        )?;
        bar.finish_and_clear();
        if self.text.json {
            return print_json(&serde_json::to_value(report)?);
        }
        let mut text = format!("thresholds calibrated on {} tokens; ", report.tokens);
        text += &match report.fitted {
            None => "use them with --sparsity threshold --density PART\n".to_string(),
            Some(fitted) => format!(
                "{:.1}% of the neurons give perplexity {:.4}, all of them {:.4}; --sparsity threshold now computes \
                 that part\n",
                fitted.density * 100.0,
                fitted.perplexity,
                fitted.dense_perplexity,
            ),
        };
        print_text(&text)
    }
}
