//! `forebay pack`

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use forebay::models::block::BlockType;
use forebay::models::bundle::{Bundle, PackOptions};
use forebay::packed;
use forebay::plans::size::format_size;

use super::progress::reporter;

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
    /// No progress bar.
    #[arg(long, short)]
    quiet: bool,
}

impl Pack {
    pub fn execute(self) -> anyhow::Result<()> {
        if self.output.extension().is_none_or(|e| e != "fbay") {
            bail!("{}: the packed file's name must end in .fbay", self.output.display());
        }
        let quant = self.quant.as_deref().map(parse_format).transpose()?;
        let options = PackOptions { quant };
        packed::convert(&self.source, &self.output, &options, &mut reporter(self.quiet))?;
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

fn parse_format(name: &str) -> anyhow::Result<BlockType> {
    let found = BlockType::ALL.into_iter().find(|b| b.name().eq_ignore_ascii_case(name));
    found.with_context(|| format!("--quant {name}: there is no such format"))
}
