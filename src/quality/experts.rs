//! What fewer experts change ([`FewerExperts`]): a text is run with all of them and with fewer, its tokens one by one,
//! since some experts are left out only then. The result is kept beside the packed model.

use std::io::BufWriter;
use std::path::{Path, PathBuf};

use forebay_models::bundle::{Bundle, ffn_identity};
use forebay_models::error::ModelError;
use forebay_models::files::{Partial, read_regular, side_file, write_whole};
use forebay_plans::fewer_experts::FewerExperts;
use serde::{Deserialize, Serialize};

use super::Divergence;
use super::divergence::Sums;
use super::saved_logits::{Header, LogitsReader, LogitsWriter};
use crate::engine::{Decoded, Engine, checked, chunks_to_score};
use crate::error::Error;

/// Measurements that are kept; the oldest give way.
const MOST_KEPT: usize = 64;
/// A measurement takes less than a kilobyte.
const MOST_BYTES: u64 = MOST_KEPT as u64 * 2048;

/// How far a run with fewer experts is from the run with all, and what either reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExpertsDivergence {
    /// What was given up.
    pub fewer_experts: FewerExperts,
    /// The budget of both runs.
    pub memory_bytes: u64,
    /// How far it is.
    pub divergence: Divergence,
    /// The run with all experts.
    pub all: Decoded,
    /// The run with fewer.
    pub fewer: Decoded,
}

/// The run with all experts: a file of its logits, which is removed with this.
#[derive(Debug)]
pub struct AllExperts {
    file: Partial,
    decoded: Decoded,
}

impl AllExperts {
    /// Runs chunks of `ctx` of the `tokens`, of each the first half as a prompt, by an engine that uses all experts, to
    /// be compared with one that uses `fewer`. `progress` is told the chunks done and their number.
    ///
    /// # Errors
    /// The model cannot use `fewer`, or they are all; as [`Engine::perplexity`]'s; the logits cannot be written beside
    /// the packed model.
    pub fn run(
        engine: &Engine,
        fewer: FewerExperts,
        (tokens, ctx): (&[u32], usize),
        chunks: Option<usize>,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Self, Error> {
        if checked(fewer, engine.network())?.is_off() {
            let problem =
                "these are all that the model uses; give fewer, or leave out or prefer some";
            return Err(Error::parameter("experts", problem));
        }
        let chunks = chunks_to_score(tokens.len(), ctx, chunks)?;
        let header = Header {
            ctx,
            vocabulary: engine.network().vocab_size,
            tokens: tokens[..chunks * ctx].to_vec(),
        };
        let path = divergence_path(engine.bundle_path());
        let io = |e| ModelError::io(&path, "write the logits beside the packed model", e);
        let file = Partial::beside(&path).map_err(io)?;
        let mut writer = LogitsWriter::new(BufWriter::new(file.file()), &header).map_err(io)?;
        let mut decoded = Decoded::default();
        for (chunk, tokens) in header.tokens.chunks_exact(ctx).enumerate() {
            let mut written = Ok(());
            decoded += run_chunk(engine, tokens, |_, logits| {
                if written.is_ok() {
                    written = writer.row(logits);
                }
            })?;
            written.map_err(io)?;
            progress(chunk + 1, chunks);
        }
        writer.finish().map_err(io)?;
        Ok(Self { file, decoded })
    }

    /// Runs the same chunks by an engine that uses fewer experts.
    ///
    /// # Errors
    /// A fault, or the logits cannot be read.
    pub fn compare(
        &self,
        engine: &Engine,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<ExpertsDivergence, Error> {
        let mut saved = LogitsReader::open(self.file.path())?;
        let header = saved.header().clone();
        let (mut sums, mut decoded) = (Sums::default(), Decoded::default());
        for (chunk, tokens) in header.tokens.chunks_exact(header.ctx).enumerate() {
            let mut read = Ok(());
            decoded += run_chunk(engine, tokens, |next, logits| {
                if read.is_ok() {
                    read = saved.row().map(|row| sums.add(row, logits, next as usize));
                }
            })?;
            read?;
            progress(chunk + 1, header.chunks());
        }
        Ok(ExpertsDivergence {
            fewer_experts: engine.plan().fewer_experts,
            memory_bytes: engine.budget().total_bytes(),
            divergence: sums.result(),
            all: self.decoded,
            fewer: decoded,
        })
    }
}

/// Calls `each` with the rows of a chunk that are scored: the token after it, and its logits.
fn run_chunk(
    engine: &Engine,
    tokens: &[u32],
    mut each: impl FnMut(u32, &[f32]),
) -> Result<Decoded, Error> {
    let tokens = engine.tokenizer().piece(tokens);
    engine.decoded_logits(&tokens, tokens.len() / 2, |position, logits| {
        if let Some(&next) = tokens.get(position + 1) {
            each(next, logits);
        }
    })
}

/// Name of the measurements of the packed model at `path`.
pub(crate) fn divergence_path(path: &Path) -> PathBuf {
    side_file(path, ".experts")
}

/// What is in the file: measurements, the newest last, and the identity of the model.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Stored {
    /// [`ffn_identity`] of the model.
    ffn: u64,
    measured: Vec<ExpertsDivergence>,
}

impl Stored {
    /// What is kept of a model; nothing if the file is damaged, or of another.
    fn read(path: &Path, ffn: u64) -> Self {
        let empty = Self {
            ffn,
            measured: Vec::new(),
        };
        let bytes = read_regular(path, MOST_BYTES).unwrap_or_default();
        let stored = serde_json::from_slice(&bytes).ok();
        stored.filter(|s: &Self| s.ffn == ffn).unwrap_or(empty)
    }
}

impl ExpertsDivergence {
    /// Keeps the measurement beside the packed model, as `NAME.fbay.experts`, in place of an earlier one under the same
    /// options and budget.
    ///
    /// # Errors
    /// The packed model cannot be read again, or the file not be written.
    pub fn save(&self, engine: &Engine) -> Result<PathBuf, Error> {
        let path = divergence_path(engine.bundle_path());
        let ffn = ffn_identity(&Bundle::open(engine.bundle_path())?);
        let mut stored = Stored::read(&path, ffn);
        let options = self.fewer_experts;
        let is_older = |m: &Self| {
            let same_memory = m.memory_bytes == self.memory_bytes;
            m.fewer_experts == options && (same_memory || !options.depends_on_memory())
        };
        stored.measured.retain(|m| !is_older(m));
        stored.measured.push(self.clone());
        let surplus = stored.measured.len().saturating_sub(MOST_KEPT);
        stored.measured.drain(..surplus);
        let bytes = serde_json::to_vec(&stored).map_err(std::io::Error::other);
        bytes
            .and_then(|bytes| write_whole(&path, &bytes))
            .map_err(|e| {
                let action = "write the measurement beside the packed model (check free space and permissions)";
                ModelError::io(&path, action, e)
            })?;
        Ok(path)
    }

    /// What was measured of an engine's options: where the result depends on the memory, under the budget that is
    /// nearest to the engine's.
    pub fn load(engine: &Engine) -> Option<Self> {
        let path = divergence_path(engine.bundle_path());
        let ffn = ffn_identity(&Bundle::open(engine.bundle_path()).ok()?);
        let (options, budget) = (engine.plan().fewer_experts, engine.budget().total_bytes());
        let measured = Stored::read(&path, ffn).measured.into_iter().rev();
        let same = measured.filter(|m| m.fewer_experts == options);
        same.min_by_key(|m| match options.depends_on_memory() {
            true => m.memory_bytes.abs_diff(budget),
            // The newest.
            false => 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::divergence::Sums;

    #[test]
    fn figures_are_read_back_bit_for_bit() {
        for i in 1..5_000 {
            let mut written = Sums::default().result();
            written.mean = f64::from(i).recip().sqrt();
            let text = serde_json::to_string(&written).expect("JSON");
            let read: super::Divergence = serde_json::from_str(&text).expect("its own text");
            assert_eq!(written.mean.to_bits(), read.mean.to_bits(), "{text}");
        }
    }
}
