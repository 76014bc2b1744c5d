//! The tensors of a source by role: where each one is, and whether it has the shape that the network requires.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::arch::Names;
use crate::block::BlockType;
use crate::error::{ModelError, Result};
use crate::network::{Content, Network, Shape};
use crate::tensor::{LayerTensor as T, TensorId, TensorMeta};

/// Bytes compared at a time.
const CHUNK: usize = 4 << 20;

struct Placed {
    meta: TensorMeta,
    file: usize,
    start: u64,
    plus_one: bool,
}

/// A tensor of a file, in any role.
pub(crate) struct Found {
    pub(crate) meta: TensorMeta,
    /// Its file's number, from [`Inventory::add_file`].
    pub(crate) file: usize,
    /// Its first byte; all its bytes are inside the file.
    pub(crate) start: u64,
}

/// The error for a tensor without a known role.
pub(crate) fn unknown_tensor(path: &Path, name: String) -> ModelError {
    ModelError::unsupported(
        path,
        name,
        "a tensor this engine would ignore, which would change the result,",
        "use a model of the plain architecture, as its makers published it",
    )
}

/// The tensors of an open model.
pub(crate) struct Inventory {
    files: Vec<(PathBuf, File)>,
    placed: BTreeMap<TensorId, Placed>,
    names: Names,
}

impl Inventory {
    /// An empty inventory; `names` are for messages.
    pub(crate) fn new(names: Names) -> Self {
        Self {
            files: Vec::new(),
            placed: BTreeMap::new(),
            names,
        }
    }

    /// Adds a file; the number is for [`Found`].
    pub(crate) fn add_file(&mut self, path: PathBuf, file: File) -> usize {
        self.files.push((path, file));
        self.files.len() - 1
    }

    /// Records that `found` contains `ids`, row after row, and whether 1 is to be added to its elements.
    ///
    /// # Errors
    /// A second tensor in the same role; several roles whose rows are not those of the tensor.
    pub(crate) fn place(
        &mut self,
        network: &Network,
        ids: &[TensorId],
        plus_one: bool,
        found: Found,
    ) -> Result<()> {
        let rows = match ids {
            [_] => vec![found.meta.rows],
            _ => self.rows_of_parts(network, ids, &found)?,
        };
        let mut start = found.start;
        for (&id, rows) in ids.iter().zip(rows) {
            let placed = Placed {
                meta: TensorMeta {
                    rows,
                    ..found.meta.clone()
                },
                file: found.file,
                start,
                plus_one,
            };
            start += placed.meta.bytes() as u64;
            if let Some(first) = self.placed.insert(id, placed) {
                let problem = format!("it has the role of {} again", first.meta.name);
                return Err(self.wrong(&found.meta.name, problem));
            }
        }
        Ok(())
    }

    /// Rows of each part of a tensor that contains several.
    fn rows_of_parts(
        &self,
        network: &Network,
        ids: &[TensorId],
        found: &Found,
    ) -> Result<Vec<usize>> {
        let rows = |&id| network.shape(id).and_then(|s| s.rows);
        let rows: Option<Vec<usize>> = ids.iter().map(rows).collect();
        let Some(rows) = rows else {
            return Err(self.out_of_place(network, ids[0], &found.meta.name));
        };
        let sum: usize = rows.iter().sum();
        if sum != found.meta.rows {
            let shape = network.shape(ids[0]).unwrap_or(Shape {
                rows: None,
                cols: None,
            });
            let whole = Shape {
                rows: Some(sum),
                ..shape
            };
            return Err(self.misshapen(&found.meta, whole));
        }
        Ok(rows)
    }

    pub(crate) fn meta(&self, id: TensorId) -> Option<&TensorMeta> {
        self.placed.get(&id).map(|p| &p.meta)
    }

    /// [`crate::tensor::TensorSource::added`].
    pub(crate) fn added(&self, id: TensorId) -> f32 {
        let plus_one = self.placed.get(&id).is_some_and(|p| p.plus_one);
        f32::from(u8::from(plus_one))
    }

    /// [`crate::tensor::TensorSource::read`].
    pub(crate) fn read(&self, id: TensorId, offset: usize, out: &mut [u8]) -> Result<()> {
        let Some(p) = self.placed.get(&id) else {
            return Err(ModelError::Parameter {
                field: self.names.name_of(id),
                problem: "the model has no such tensor".into(),
                remedy: "ask meta() first".into(),
            });
        };
        if offset
            .checked_add(out.len())
            .is_none_or(|end| end > p.meta.bytes())
        {
            return Err(ModelError::Parameter {
                field: p.meta.name.clone(),
                problem: format!("{} bytes from {offset} are outside the tensor", out.len()),
                remedy: format!("stay within its {} bytes", p.meta.bytes()),
            });
        }
        let (path, file) = &self.files[p.file];
        file.read_exact_at(out, p.start + offset as u64)
            .map_err(|e| ModelError::io(path, format!("read tensor {}", p.meta.name), e))
    }

    /// Whether there is a head that differs from the embedding. A copy of the embedding is dropped: transformers ties a
    /// missing head, and keeps a stored one.
    ///
    /// # Errors
    /// A failed read.
    pub(crate) fn has_head_of_its_own(&mut self) -> Result<bool> {
        let ids = [TensorId::OutputHead, TensorId::TokenEmbedding];
        let [Some(head), Some(embedding)] = ids.map(|id| self.meta(id)) else {
            return Ok(self.meta(TensorId::OutputHead).is_some());
        };
        let shape = |m: &TensorMeta| (m.block, m.rows, m.cols);
        if shape(head) != shape(embedding) {
            return Ok(true);
        }
        let len = head.bytes();
        let mut chunks = [vec![0; CHUNK.min(len)], vec![0; CHUNK.min(len)]];
        for start in (0..len).step_by(CHUNK) {
            let n = CHUNK.min(len - start);
            for (id, chunk) in ids.into_iter().zip(&mut chunks) {
                self.read(id, start, &mut chunk[..n])?;
            }
            if chunks[0][..n] != chunks[1][..n] {
                return Ok(true);
            }
        }
        self.placed.remove(&TensorId::OutputHead);
        Ok(false)
    }

    /// Checks that every needed tensor is there and that every shape follows from `network`.
    ///
    /// # Errors
    /// The first missing or misshapen tensor, by name.
    pub(crate) fn check(&self, network: &Network) -> Result<()> {
        for (&id, p) in &self.placed {
            self.check_shape(network, id, &p.meta)?;
        }
        let predictors = self.placed.keys().any(|id| id.is_predictor());
        for content in network.contents(predictors) {
            match content {
                Content::Rows(id) => self.require(id)?,
                Content::Embedding => self.require(TensorId::TokenEmbedding)?,
                Content::Neurons(layer) => self.check_ffn(network, layer)?,
            }
        }
        for (id, _) in network.vectors() {
            self.require(id)?;
        }
        let layers = 0..network.n_layers();
        layers
            .filter(|_| predictors)
            .try_for_each(|l| self.check_predictor(l))
    }

    fn check_ffn(&self, network: &Network, layer: usize) -> Result<()> {
        let id = |t| TensorId::Layer(layer, t);
        for &t in network.ffn(layer).row_matrices() {
            self.require(id(t))?;
        }
        match (self.meta(id(T::Down)), self.meta(id(T::DownT))) {
            (Some(_), Some(t)) => {
                Err(self.wrong(&t.name, "the down projection is there twice".into()))
            }
            (None, None) => self.require(id(T::Down)),
            _ => Ok(()),
        }
    }

    fn check_predictor(&self, layer: usize) -> Result<()> {
        let id = |t| TensorId::Layer(layer, t);
        let fc1 = self.require_meta(id(T::PredictorFc1))?;
        let fc2 = self.require_meta(id(T::PredictorFc2))?;
        if fc1.rows == fc2.cols {
            return Ok(());
        }
        let problem = format!(
            "the predictor's rank is {} here and {} in {}",
            fc2.cols, fc1.rows, fc1.name
        );
        Err(self.wrong(&fc2.name, problem))
    }

    fn check_shape(&self, network: &Network, id: TensorId, meta: &TensorMeta) -> Result<()> {
        let Some(shape) = network.shape(id) else {
            return Err(self.out_of_place(network, id, &meta.name));
        };
        if shape.rows.is_some_and(|r| r != meta.rows) || shape.cols.is_some_and(|c| c != meta.cols)
        {
            return Err(self.misshapen(meta, shape));
        }
        let plain = matches!(
            meta.block,
            BlockType::F32 | BlockType::F16 | BlockType::BF16
        );
        if id.is_vector() && !plain {
            return Err(ModelError::unsupported(
                self.path_of(&meta.name),
                &meta.name,
                format!("a {} norm or bias", meta.block),
                "norms and biases are read as F32, F16 or BF16",
            ));
        }
        Ok(())
    }

    /// The error for a tensor in a role that the network does not have.
    fn out_of_place(&self, network: &Network, id: TensorId, name: &str) -> ModelError {
        let problem = match id {
            TensorId::Layer(layer, _) if layer >= network.n_layers() => {
                format!("the model has only {} layers", network.n_layers())
            }
            TensorId::Layer(_, t) if t.is_bias() => {
                "a bias where the model has none elsewhere".into()
            }
            _ => "a tensor where the configuration asks for none".into(),
        };
        self.wrong(name, problem)
    }

    fn misshapen(&self, meta: &TensorMeta, shape: Shape) -> ModelError {
        let show = |n: Option<usize>| n.map_or("any".into(), |n| n.to_string());
        let problem = format!(
            "{} rows of {} elements where the configuration asks for {} rows of {}",
            meta.rows,
            meta.cols,
            show(shape.rows),
            show(shape.cols)
        );
        self.wrong(&meta.name, problem)
    }

    fn require(&self, id: TensorId) -> Result<()> {
        self.require_meta(id).map(drop)
    }

    fn require_meta(&self, id: TensorId) -> Result<&TensorMeta> {
        self.meta(id)
            .ok_or_else(|| self.wrong(&self.names.name_of(id), "the tensor is missing".into()))
    }

    fn wrong(&self, name: &str, problem: String) -> ModelError {
        ModelError::damaged(self.path_of(name), name, problem)
    }

    /// The file that holds the tensor `name`, or the first one.
    fn path_of(&self, name: &str) -> PathBuf {
        let holder = self
            .placed
            .values()
            .find(|p| p.meta.name == name)
            .map_or(0, |p| p.file);
        self.files
            .get(holder)
            .map(|f| f.0.clone())
            .unwrap_or_default()
    }
}
