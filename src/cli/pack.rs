//! `forebay pack`

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use forebay::learn::Profile;
use forebay::models::block::BlockType;
use forebay::models::bundle::{Bundle, PackOptions, pack};
use forebay::models::sorted::{SortedNeurons, hot_first};
use forebay::models::source;
use forebay::models::tensor::TensorSource;
use forebay::packed;
use forebay::plans::size::format_size;

use tracing_chrome::{ChromeLayerBuilder, FlushGuard};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::progress::{reporter, writing};

#[derive(Debug, Args)]
pub struct Pack {
    /// A .gguf file or a safetensors folder.
    source: PathBuf,
    /// The packed file to write; ends in .fbay.
    #[arg(long, short, value_name = "OUT.fbay")]
    output: PathBuf,
    /// Format for matrices stored as F32, F16 or BF16: f16, bf16, q8_0, q4_0, q4_1, q5_0 or q5_1.
    #[arg(long, value_name = "FORMAT")]
    quant: Option<String>,
    /// Sort the FFN's neurons, the most wanted first, by a profile of this model (`forebay profile`).
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Write a chrome trace of the conversion.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// No progress bar.
    #[arg(long, short)]
    quiet: bool,
}

impl Pack {
    pub fn execute(self) -> anyhow::Result<()> {
        if !packed::is_bundle(&self.output) {
            bail!(
                "{}: the packed file's name must end in .fbay",
                self.output.display()
            );
        }
        let quant = self.quant.as_deref().map(parse_format).transpose()?;
        let options = PackOptions {
            quant,
            ..PackOptions::default()
        };
        let _written_on_drop = self.trace.as_deref().map(record_spans).transpose()?;
        match &self.profile {
            Some(profile) => {
                let source = sorted(source::open(&self.source)?, profile)?;
                let mut report = writing(self.quiet, "packing");
                pack(&source, &self.output, &options, &mut report)?;
            }
            None => packed::convert(
                &self.source,
                &self.output,
                &options,
                &mut reporter(self.quiet),
            )?,
        }
        let bundle = Bundle::open(&self.output)?;
        if !self.quiet {
            eprintln!(
                "{}: {} clusters, {} of weights",
                self.output.display(),
                bundle.clusters.len(),
                format_size(bundle.weight_bytes())
            );
        }
        Ok(())
    }
}

/// A source with its neurons sorted by a profile.
pub fn sorted(source: Box<dyn TensorSource>, profile: &Path) -> anyhow::Result<SortedNeurons> {
    let counts = Profile::read(profile)?.counts;
    let sorted = SortedNeurons::new(source, hot_first(&counts));
    sorted.with_context(|| format!("{} does not fit", profile.display()))
}

/// Records spans until the guard is dropped. Packing has few and long ones, so their cost does not
/// matter; the hot path has its own recorder.
fn record_spans(path: &Path) -> anyhow::Result<FlushGuard> {
    let file = std::fs::File::create(path)
        .with_context(|| format!("cannot write the trace {}", path.display()))?;
    let writer = std::io::BufWriter::new(file);
    let (layer, guard) = ChromeLayerBuilder::new()
        .writer(writer)
        .include_args(true)
        .build();
    tracing_subscriber::registry().with(layer).init();
    Ok(guard)
}

fn parse_format(name: &str) -> anyhow::Result<BlockType> {
    let found = BlockType::ALL
        .into_iter()
        .find(|b| b.name().eq_ignore_ascii_case(name));
    found.with_context(|| {
        format!("--quant {name}: there is no such format; choose f16, bf16, q8_0, q4_0, q4_1, q5_0 or q5_1")
    })
}
