//! The metadata section: the network, formats and where the file came from (JSON).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::geometry::FfnGeometry;
use crate::block::BlockType;
use crate::chat_templates::template_files;
use crate::error::{ModelError, Result};
use crate::files::{folder_of, open_regular};
use crate::gguf;
use crate::network::{Content, Network};
use crate::tensor::TensorId;

/// A matrix that is stored in clusters of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredMatrix {
    /// Its role.
    pub tensor: TensorId,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// Block format of each row.
    pub block: BlockType,
    /// Rows of a cluster, whole panels; the last cluster, of the matrix or of a head, may have fewer.
    pub rows_per_cluster: usize,
}

/// Activation predictor of one layer: neuron i is computed if `fc2[i] · relu(fc1 · x) >=
/// threshold`, where `x` is the residual stream before the FFN's norm (PowerInfer's rule), or before the layer if the
/// FFN's `predictor_before_layer` says so.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerPredictor {
    /// Rows of fc1, `[rank, d_model]`, and columns of fc2, `[d_ff, rank]`.
    pub rank: usize,
    /// The cut.
    pub threshold: f32,
}

/// Sizes of activated gates over a text, from which thresholds for skipping neurons are chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateCalibration {
    /// Number of measured tokens.
    pub tokens: usize,
    /// By layer, ascending: entry `i` is the size below which a part `i / (len - 1)` of the layer's gates is,
    /// `[n_layers][at least 2]`.
    pub quantiles: Vec<Vec<f32>>,
    /// Part of the neurons to compute, if it was fitted to a perplexity.
    #[serde(default)]
    pub density: Option<f64>,
}

impl GateCalibration {
    /// Thresholds with which a part `density` of each layer's neurons is computed, `[n_layers]`.
    pub fn thresholds(&self, density: f64) -> Vec<f32> {
        let at = |q: &Vec<f32>| {
            let place = (1.0 - density.clamp(0.0, 1.0)) * (q.len() - 1) as f64;
            let (low, high) = (q[place.floor() as usize], q[place.ceil() as usize]);
            low + (high - low) * place.fract() as f32
        };
        self.quantiles.iter().map(at).collect()
    }
}

/// The identity of a source's state: if any of it changes, a cached packed file is stale.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceIdentity {
    /// Canonical path; of a model in several files only that of their folder is, since the names of links tell which
    /// files belong together.
    pub path: String,
    /// Sum of the lengths of the source's files.
    pub len: u64,
    /// Latest modification time among them, nanoseconds since 1970.
    pub modified_ns: u64,
    /// Checksum over names, lengths, times and samples of the contents.
    pub state: u64,
}

impl SourceIdentity {
    /// Looks at a model's file or files, or at the model files of a folder: lengths, times of contents and inodes, and
    /// 64 KiB from the start, the middle and the end of each.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of(path: &Path) -> Result<Self> {
        let canonical = path
            .canonicalize()
            .map_err(|e| ModelError::io(path, "find the model", e))?;
        if !canonical.is_dir() && !canonical.is_file() {
            // Checked before opening, since opening a pipe would wait for its writer.
            return Err(ModelError::Format {
                path: path.into(),
                field: "model".into(),
                problem: "neither a file nor a folder".into(),
                remedy: "give a .gguf or .fbay file, or a safetensors folder".into(),
            });
        }
        // Names are those of the path as given: where downloads are cached, they are links to files without any.
        let names = gguf::files(path);
        let n = names.len();
        let find = |file: PathBuf| match file.canonicalize() {
            Err(e) if n > 1 && e.kind() == ErrorKind::NotFound => Err(ModelError::Format {
                path: file,
                field: "(whole file)".into(),
                problem: format!("one of the model's {n} files is missing"),
                remedy: "download it into the folder of the first".into(),
            }),
            found => found.map_err(|e| ModelError::io(&file, "find the model", e)),
        };
        let mut files: Vec<PathBuf> = names.into_iter().map(find).collect::<Result<_>>()?;
        let known = match (n, path.file_name()) {
            (2.., Some(name)) => find(folder_of(path).into())?.join(name),
            _ => canonical.clone(),
        };
        if canonical.is_dir() {
            files = std::fs::read_dir(&canonical)
                .and_then(|dir| dir.map(|e| e.map(|e| e.path())).collect())
                .map_err(|e| ModelError::io(path, "list the model's folder", e))?;
            files.retain(|f| {
                f.extension()
                    .is_some_and(|x| x == "json" || x == "safetensors")
            });
            files.extend(template_files(&canonical)?);
            files.sort();
        }
        let (mut len, mut modified_ns, mut digest) = (0u64, 0u64, Vec::new());
        for file in &files {
            let (l, m) = sample(file, &mut digest)
                .map_err(|e| ModelError::io(file, "read the model's identity", e))?;
            len += l;
            modified_ns = modified_ns.max(m);
        }
        let state = super::checksum(&digest);
        Ok(Self {
            path: known.to_string_lossy().into_owned(),
            len,
            modified_ns,
            state,
        })
    }
}

/// Appends name, length, times and checksummed samples of `file` to `digest`. The inode's time changes with every write
/// and, unlike that of the contents, cannot be set back; a change of permissions or links counts as one, too.
fn sample(file: &Path, digest: &mut Vec<u8>) -> std::io::Result<(u64, u64)> {
    use std::os::unix::fs::{FileExt, MetadataExt};
    const SAMPLE: u64 = 64 << 10;
    let handle = open_regular(file)?;
    let info = handle.metadata()?;
    let modified = info
        .modified()?
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let modified_ns = u64::try_from(modified.as_nanos()).unwrap_or(u64::MAX);
    digest.extend(file.as_os_str().as_encoded_bytes());
    digest.extend(info.len().to_le_bytes());
    digest.extend(modified_ns.to_le_bytes());
    digest.extend(info.ctime().to_le_bytes());
    digest.extend(info.ctime_nsec().to_le_bytes());
    let mut buffer = vec![0; SAMPLE as usize];
    let last = info.len().saturating_sub(SAMPLE);
    for at in [0, last / 2, last] {
        let n = handle.read_at(&mut buffer, at)?;
        digest.extend(super::checksum(&buffer[..n]).to_le_bytes());
    }
    Ok((info.len(), modified_ns))
}

/// The metadata section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BundleMeta {
    /// What the model computes.
    pub network: Network,
    /// Every matrix that is stored by rows, in the order of the directory: attention's, head and embedding,
    /// predictors'.
    pub matrices: Vec<StoredMatrix>,
    /// How hot neurons are stored, `[n_layers]`; `None` in layers that have none. Empty if no layer has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hot: Vec<Option<FfnGeometry>>,
    /// How other neurons that every token uses are stored, `[n_layers]`; `None` in layers that have none.
    pub ffns: Vec<Option<FfnGeometry>>,
    /// How experts are stored, `[n_layers]`; `None` in layers without.
    pub experts: Vec<Option<FfnGeometry>>,
    /// Activation predictors, `[n_layers]`, if the model has them.
    pub predictors: Option<Vec<LayerPredictor>>,
    /// How large activated gates are, if that was measured.
    pub gates: Option<GateCalibration>,
    /// Where the file came from.
    pub source: SourceIdentity,
    /// Whether its neurons are in another order than there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sorted: bool,
    /// Version of the engine that packed it.
    pub packed_by: String,
}

impl BundleMeta {
    /// How a matrix is stored; `None` if it is not stored, or not by rows. This is a search, not
    /// for hot paths.
    pub fn matrix(&self, tensor: TensorId) -> Option<&StoredMatrix> {
        self.matrices.iter().find(|m| m.tensor == tensor)
    }

    /// How the neurons of a content are stored; `None` for another content.
    pub fn geometry(&self, content: Content) -> Option<&FfnGeometry> {
        match content {
            Content::HotNeurons(layer) => self.hot.get(layer)?.as_ref(),
            Content::Neurons(layer) => self.ffns.get(layer)?.as_ref(),
            Content::Experts(layer) => self.experts.get(layer)?.as_ref(),
            Content::Rows(_) | Content::Table(_) => None,
        }
    }

    /// How all neurons are stored.
    pub fn geometries(&self) -> impl Iterator<Item = &FfnGeometry> {
        let all = [&self.ffns, &self.experts, &self.hot];
        all.into_iter().flatten().flatten()
    }

    /// Whether any layer has experts.
    pub fn has_experts(&self) -> bool {
        self.experts.iter().any(Option::is_some)
    }
}
