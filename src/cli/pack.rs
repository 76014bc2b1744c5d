//! `forebay pack`

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use forebay::packed;
use forebay_models::block::BlockType;
use forebay_models::bundle::{Bundle, PackOptions, Weighing, for_narrow_rows, pack};
use forebay_models::files::write_output;
use forebay_models::importance::Importance;
use forebay_models::importance::read_imatrix;
use forebay_models::source;
use forebay_plans::size::format_size;
use parking_lot::Mutex;
use tracing_chrome::{ChromeLayerBuilder, FlushGuard};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::hot::{HotBorder, Sorting};
use super::output::{check_targets, say};
use super::progress::{reporter, writing};

#[derive(Debug, Args)]
pub struct Pack {
    /// A .gguf file or a safetensors folder.
    source: PathBuf,
    /// The packed file to write; ends in .fbay.
    #[arg(long, short, value_name = "OUT.fbay")]
    output: PathBuf,
    /// Format for matrices stored as F32, F16 or BF16, such as f16, q8_0, q6_k, q5_k, q4_k or q4_0.
    #[arg(long, value_name = "FORMAT")]
    quant: Option<String>,
    /// With --quant: spare what matters to a text, by an importance matrix of this model (`forebay profile
    /// --importance`, or llama.cpp's llama-imatrix).
    #[arg(long, value_name = "FILE", requires = "quant")]
    importance: Option<PathBuf>,
    /// Sort the FFN's neurons, the most wanted first, by a profile of this model (`forebay profile`).
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// With --profile: neurons that at least this part of the tokens wanted are hot, or auto for what makes this
    /// machine fastest. They stay in memory and are computed for every token, by a GPU beside the cold ones on the
    /// cores: without one they cost more than they save. Their Down is quantised again, which changes the model a
    /// little.
    #[arg(long, value_name = "auto|PART", requires = "profile")]
    hot: Option<HotBorder>,
    /// Store the neurons of ReLU models one by one even where the source has quantised them together: Down is quantised
    /// again, by columns, which changes the model a little. Then only live ones are computed, and read.
    #[arg(long)]
    by_neuron: bool,
    /// Give the blocks of the source, a GGUF file, back to the file system while it is packed, and remove it in the
    /// end: for a model that the disk cannot hold twice. If it is interrupted, the same command goes on.
    #[arg(long, conflicts_with_all = ["profile", "importance"])]
    consume: bool,
    /// Write a Chrome trace of the conversion.
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
        self.check_output()?;
        let quant = self.quant.as_deref().map(parse_format).transpose()?;
        let importance = self.importance.as_deref().map(read_imatrix).transpose()?;
        let options = PackOptions {
            quant,
            importance: importance.map(Arc::new),
            neurons: self.by_neuron,
        };
        self.check_trace()?;
        let recording = self.trace.as_deref().map(Recording::start).transpose()?;
        let converted = self.convert(&options);
        // A conversion that fails leaves its trace too.
        let recorded = recording.map_or(Ok(()), Recording::finish);
        converted.and(recorded)?;
        let bundle = Bundle::open(&self.output)?;
        if let Some(note) = quant.and_then(|quant| narrow_rows(&bundle, quant)) {
            say(format_args!("{note}"));
        }
        if !self.quiet {
            let network = &bundle.meta.network;
            let hot: usize = network.layers.iter().map(|l| l.ffn.body.hot).sum();
            let hot = match self.hot {
                Some(_) => format!("; {hot} of {} neurons are hot", network.n_neurons()),
                None => String::new(),
            };
            say(format_args!(
                "{}: {} clusters, {} of weights{hot}",
                self.output.display(),
                bundle.clusters.len(),
                format_size(bundle.weight_bytes())
            ));
        }
        Ok(())
    }

    /// A packed file is replaced, but not the only copy of another model.
    fn check_output(&self) -> anyhow::Result<()> {
        let output = self.output.display();
        if self.output.is_dir() {
            bail!("{output}: -o is a directory; name a file in it");
        }
        let Ok(packed) = Bundle::open(&self.output) else {
            return Ok(());
        };
        let of = Path::new(&packed.meta.source.path);
        let own = std::path::absolute(&self.source)?;
        let own = own.canonicalize().unwrap_or(own);
        if of != own && !of.exists() {
            bail!(
                "{output}: -o is the packed file of another model, {}, which is gone: this may be its only copy; \
                 remove it if it is not needed, or give another name",
                of.display()
            );
        }
        Ok(())
    }

    /// The trace is beside what is read and written.
    fn check_trace(&self) -> anyhow::Result<()> {
        let Some(trace) = &self.trace else {
            return Ok(());
        };
        let mut others = vec![("the source", &*self.source), ("-o", &*self.output)];
        others.extend(
            self.importance
                .as_deref()
                .map(|file| ("--importance", file)),
        );
        others.extend(self.profile.as_deref().map(|file| ("--profile", file)));
        check_targets(&[("--trace", trace)], &others)
    }

    fn convert(&self, options: &PackOptions) -> anyhow::Result<()> {
        if let Some(importance) = &options.importance {
            let source = source::open(&self.source)?;
            let weighing = Weighing::of(source.as_ref(), options, importance)?;
            left_out(&weighing, importance).for_each(|note| say(format_args!("{note}")));
        }
        let _lock = packed::lock(&self.output, &mut reporter(self.quiet))?;
        match &self.profile {
            Some(profile) => {
                let hot = self.hot;
                let open = || Ok(source::open(&self.source)?);
                let source = Sorting { profile, hot }.sort(open, (&self.output, options))?;
                let mut report = writing(self.quiet, "packing");
                pack(&source, &self.output, options, &mut report)?;
            }
            None if self.consume => {
                let mut report = reporter(self.quiet);
                packed::consume(&self.source, &self.output, options, &mut report)?;
            }
            None => {
                let mut report = reporter(self.quiet);
                packed::convert(&self.source, &self.output, options, &mut report)?;
            }
        }
        Ok(())
    }
}

/// Records spans. Packing has few and long ones, so their cost does not matter. They are kept in memory, because the
/// recorder's thread would panic if it wrote to a full device. The hot path has its own recorder.
struct Recording {
    path: PathBuf,
    spans: Spans,
    /// Flushes the recorder when dropped.
    guard: FlushGuard,
}

impl Recording {
    /// Starts recording; a file that cannot be written is noticed at once.
    fn start(path: &Path) -> anyhow::Result<Self> {
        let spans = Spans::default();
        save_spans(path, b"[]")?;
        let (layer, guard) = ChromeLayerBuilder::new()
            .writer(spans.clone())
            .include_args(true)
            .build();
        tracing_subscriber::registry().with(layer).init();
        Ok(Self {
            path: path.into(),
            spans,
            guard,
        })
    }

    fn finish(self) -> anyhow::Result<()> {
        drop(self.guard);
        save_spans(&self.path, &self.spans.0.lock())
    }
}

fn save_spans(path: &Path, spans: &[u8]) -> anyhow::Result<()> {
    write_output(path, |mut file| file.write_all(spans)).with_context(|| {
        let path = path.display();
        format!("cannot write the trace {path} (give --trace a writable file name)")
    })
}

/// What the recorder writes.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<u8>>>);

impl Write for Spans {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Says which matrices were not written as `quant` because their rows are not whole blocks.
fn narrow_rows(bundle: &Bundle, quant: BlockType) -> Option<String> {
    let narrow = for_narrow_rows(quant);
    let matrices = bundle.meta.matrices.iter().map(|m| m.block);
    let ffns = bundle.meta.geometries();
    let ffns = ffns.flat_map(|g| [Some(g.gate), g.up, Some(g.down)].into_iter().flatten());
    let formats: Vec<BlockType> = matrices.chain(ffns).collect();
    let n = formats.iter().filter(|&&block| block == narrow).count();
    (narrow != quant && n > 0).then(|| {
        format!(
            "{n} of {} matrices are {narrow} instead of {quant}: their rows are not whole blocks of {}",
            formats.len(),
            quant.block_len()
        )
    })
}

/// Says what is quantised without regard to importance.
fn left_out(weighing: &Weighing, importance: &Importance) -> impl Iterator<Item = String> {
    const NAMED: usize = 3;
    let Weighing {
        matrices,
        missing,
        experts,
        unseen,
        foreign,
    } = weighing;
    let file = importance.path.display();
    let named = missing.iter().take(NAMED).map(String::as_str);
    let named = named.collect::<Vec<_>>().join(", ");
    let more = if missing.len() > NAMED { ", …" } else { "" };
    let missing = (!missing.is_empty()).then(|| {
        let n = missing.len();
        format!("{file} has nothing about {n} of {matrices} matrices, which are quantised without it: {named}{more}")
    });
    let unseen = (*unseen > 0).then(|| {
        format!("{file}: no token used {unseen} of {experts} matrices of experts, which are quantised without it")
    });
    let foreign = (*foreign > 0)
        .then(|| format!("{file} has {foreign} matrices that this model does not have"));
    [missing, unseen, foreign].into_iter().flatten()
}

fn parse_format(name: &str) -> anyhow::Result<BlockType> {
    let found = BlockType::ALL
        .into_iter()
        .find(|b| b.name().eq_ignore_ascii_case(name));
    found.with_context(|| {
        let names = BlockType::ALL.map(|b| b.name().to_lowercase()).join(", ");
        format!("--quant {name}: there is no such format; choose one of {names}")
    })
}
