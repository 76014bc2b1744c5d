//! `forebay synth`

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use forebay::models::block::BlockType;
use forebay::models::bundle::{PackOptions, pack};
use forebay::models::gguf::write_gguf;
use forebay::models::synth::{FORMATS, Form, Planting, Shape, SynthOptions, SynthSource};
use forebay::packed;
use forebay::plans::size::format_size;

use super::progress::writing;

#[derive(Debug, Args)]
pub struct Synth {
    /// Sizes to take: turbosparse-mistral-7b, llama2-7b-relu or tiny-sparse.
    #[arg(long, value_name = "NAME")]
    shape: String,
    /// The file to write: .fbay is the sparse model with predictors, packed; .gguf is a plain llama of
    /// the same size, for other engines.
    #[arg(long, short, value_name = "OUT.fbay|OUT.gguf")]
    output: PathBuf,
    /// Format of the matrices: q4_0, q8_0 or f16; the same model in each.
    #[arg(long, value_name = "FORMAT", default_value = "q4_0")]
    quant: String,
    /// Another seed is another model.
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
    /// No progress bar.
    #[arg(long, short)]
    quiet: bool,
}

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
        let mut planting = Planting::default();
        if let Some(density) = self.density {
            planting.density = density;
        }
        let options = SynthOptions {
            form,
            format: parse_format(&self.quant)?,
            seed: self.seed,
            layers: self.layers,
            rank: self.rank,
            planting,
            ..SynthOptions::new(Shape::named(&self.shape)?)
        };
        let source = SynthSource::new(&options)?;
        let mut report = writing(self.quiet, "making");
        match form {
            Form::Sparse => pack(&source, &self.output, &PackOptions::default(), &mut report)?,
            Form::Plain => write_gguf(&source, &self.output, &mut report)?,
        }
        if !self.quiet {
            let written = std::fs::metadata(&self.output)
                .with_context(|| format!("cannot look at {}", self.output.display()))?;
            eprintln!(
                "{}: {}; a model for measuring speed, it speaks nonsense",
                self.output.display(),
                format_size(written.len())
            );
        }
        Ok(())
    }
}

fn parse_format(name: &str) -> anyhow::Result<BlockType> {
    let found = FORMATS
        .into_iter()
        .find(|f| f.name().eq_ignore_ascii_case(name));
    found.with_context(|| format!("--quant {name}: choose q4_0, q8_0 or f16"))
}
