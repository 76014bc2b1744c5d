//! The tensors of a source by role: where each one is, and whether it has the shape that the network requires
//! (`checks`), and the values (`unit_head`).

mod checks;
mod unit_head;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::latent::ups_by_head;
use super::placed::{Extent, Found, Piece, Place, Placed};
use crate::arch::{Form, InFile, Names};
use crate::error::{ModelError, Result};
use crate::network::{Network, Shape};
use crate::tensor::{LayerTensor as T, Stored, TensorId, TensorMeta};

/// Bytes compared at a time.
const CHUNK: usize = 4 << 20;

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
    /// [`crate::arch::Description::unit_head`].
    unit_head: Option<&'static str>,
}

impl Inventory {
    /// An empty inventory; `names` are for messages.
    pub(crate) fn new(names: Names, unit_head: Option<&'static str>) -> Self {
        Self {
            files: Vec::new(),
            placed: BTreeMap::new(),
            names,
            unit_head,
        }
    }

    /// Adds a file; the number is for [`Found`].
    pub(crate) fn add_file(&mut self, path: PathBuf, file: File) -> usize {
        self.files.push((path, file));
        self.files.len() - 1
    }

    /// Records that `found` contains `ids`, stored like this, unless the network has no need of it.
    ///
    /// # Errors
    /// A second tensor in the same role; several roles whose rows are not those of the tensor.
    pub(crate) fn place(
        &mut self,
        network: &Network,
        ids: &[TensorId],
        kept: InFile,
        found: Found,
    ) -> Result<()> {
        if ids.iter().all(|&id| network.is_superfluous(id)) {
            return Ok(());
        }
        let stored = kept.elements;
        let parts = match kept.form {
            Form::Numbered(number) => return self.place_share(ids, number, stored, found),
            Form::Rows => self.rows(network, ids, &found)?,
            Form::ByGroup => self.rows_by_group(network, ids, &found)?,
            Form::UpsByHead => self.ups_by_head(network, ids, &found)?,
            Form::Columns => self.columns(network, ids, &found)?,
        };
        for (&id, (meta, place)) in ids.iter().zip(parts) {
            let placed = Placed {
                meta,
                place,
                stored,
            };
            if let Some(first) = self.placed.insert(id, placed) {
                return Err(self.twice(&found, &first.meta.name));
            }
        }
        Ok(())
    }

    /// Records that `found` is the share `number` of the tensors `ids`, of which there is one.
    fn place_share(
        &mut self,
        ids: &[TensorId],
        number: usize,
        stored: Stored,
        found: Found,
    ) -> Result<()> {
        let piece = Piece {
            file: found.file,
            start: found.start,
            bytes: found.meta.bytes(),
        };
        for &id in ids {
            let placed = self.placed.entry(id).or_insert_with(|| Placed {
                meta: TensorMeta {
                    rows: 0,
                    ..found.meta.clone()
                },
                place: Place::Pieces(BTreeMap::new()),
                stored,
            });
            let (block, cols) = (placed.meta.block, placed.meta.cols);
            let first = placed.meta.name.clone();
            placed.meta.rows += found.meta.rows;
            let known = match &mut placed.place {
                Place::Pieces(pieces) => pieces.insert(number, piece).is_some(),
                Place::Columns { .. } | Place::Transposed(_) => true,
            };
            if known {
                return Err(self.twice(&found, &first));
            }
            if (block, cols) != (found.meta.block, found.meta.cols) {
                let problem = format!("its type or length is not that of {first}");
                return Err(self.wrong(&found.meta.name, problem));
            }
        }
        Ok(())
    }

    /// The parts of a tensor that contains them one after the other.
    fn rows(
        &self,
        network: &Network,
        ids: &[TensorId],
        found: &Found,
    ) -> Result<Vec<(TensorMeta, Place)>> {
        let mut start = found.start;
        let parts = self.cut(network, ids, &found.meta)?;
        let placed = parts.into_iter().map(|meta| {
            let piece = Piece {
                file: found.file,
                start,
                bytes: meta.bytes(),
            };
            start += piece.bytes as u64;
            (meta, Place::whole(piece))
        });
        Ok(placed.collect())
    }

    /// The parts of a tensor that contains a share of each of them for every key head, or for every expert.
    fn rows_by_group(
        &self,
        network: &Network,
        ids: &[TensorId],
        found: &Found,
    ) -> Result<Vec<(TensorMeta, Place)>> {
        let parts = self.cut(network, ids, &found.meta)?;
        let groups = match ids[0] {
            TensorId::Layer(layer, T::ExpertGate) => network.experts(layer).map_or(1, |e| e.count),
            TensorId::Layer(layer, _) if layer < network.n_layers() => {
                network.mixer(layer).n_key_heads()
            }
            _ => 1,
        };
        let of_group = found.meta.bytes() / groups;
        let mut before = 0;
        let placed = parts.into_iter().map(|meta| {
            let bytes = meta.bytes() / groups;
            let piece = |group: usize| Piece {
                file: found.file,
                start: found.start + (group * of_group + before) as u64,
                bytes,
            };
            let pieces = (0..groups).map(|group| (group, piece(group))).collect();
            before += bytes;
            (meta, Place::Pieces(pieces))
        });
        Ok(placed.collect())
    }

    /// KUp and VUp from a tensor that has both for every head.
    fn ups_by_head(
        &self,
        network: &Network,
        ids: &[TensorId],
        found: &Found,
    ) -> Result<Vec<(TensorMeta, Place)>> {
        let attention = match ids[0] {
            TensorId::Layer(layer, _) if layer < network.n_layers() => network.attention(layer),
            _ => None,
        };
        let Some((a, latent)) = attention.and_then(|a| Some((a, a.latent?))) else {
            return Err(self.out_of_place(network, ids[0], &found.meta.name));
        };
        match ups_by_head(a, &latent, found) {
            Ok(parts) => Ok(parts.into()),
            Err(shape) => Err(self.misshapen(&found.meta, shape)),
        }
    }

    /// The parts of a matrix whose columns are their rows, one part after the other.
    fn columns(
        &self,
        network: &Network,
        ids: &[TensorId],
        found: &Found,
    ) -> Result<Vec<(TensorMeta, Place)>> {
        let width = found.meta.cols;
        let transposed = TensorMeta {
            rows: width,
            cols: found.meta.rows,
            ..found.meta.clone()
        };
        let parts = self.cut(network, ids, &transposed)?;
        let mut first = 0;
        let placed = parts.into_iter().map(|meta| {
            let place = Place::Columns {
                file: found.file,
                start: found.start,
                first,
                width,
            };
            first += meta.rows;
            (meta, place)
        });
        Ok(placed.collect())
    }

    /// The parts of a tensor: its rows, or its elements if it is a vector, are those of its parts.
    fn cut(
        &self,
        network: &Network,
        ids: &[TensorId],
        meta: &TensorMeta,
    ) -> Result<Vec<TensorMeta>> {
        if let [_] = ids {
            return Ok(vec![meta.clone()]);
        }
        let vector = ids[0].is_vector();
        if vector {
            self.check_plain(meta)?;
        }
        let part = |n: usize| match vector {
            true => TensorMeta {
                cols: n,
                ..meta.clone()
            },
            false => TensorMeta {
                rows: n,
                ..meta.clone()
            },
        };
        let len = |&id| {
            network
                .shape(id)
                .and_then(|s| if vector { s.cols } else { s.rows })
        };
        let lens: Option<Vec<usize>> = ids.iter().map(len).collect();
        let Some(lens) = lens else {
            return Err(self.out_of_place(network, ids[0], &meta.name));
        };
        let sum: usize = lens.iter().sum();
        if sum != if vector { meta.cols } else { meta.rows } {
            let shape = network.shape(ids[0]).unwrap_or(Shape {
                rows: None,
                cols: None,
            });
            let whole = match vector {
                true => Shape {
                    cols: Some(sum),
                    ..shape
                },
                false => Shape {
                    rows: Some(sum),
                    ..shape
                },
            };
            return Err(self.misshapen(meta, whole));
        }
        Ok(lens.into_iter().map(part).collect())
    }

    /// The error for a tensor in a role that another one has.
    fn twice(&self, found: &Found, first: &str) -> ModelError {
        let problem = match first == found.meta.name {
            true => "it is in two files of the model".to_owned(),
            false => format!("it has the role of {first} again"),
        };
        self.wrong(&found.meta.name, problem)
    }

    pub(crate) fn meta(&self, id: TensorId) -> Option<&TensorMeta> {
        self.placed.get(&id).map(|p| &p.meta)
    }

    /// The tensors, each with the bytes of files that it takes.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (TensorId, Vec<Extent>)> {
        let placed = self.placed.iter();
        placed.map(|(&id, p)| (id, p.place.extents(&p.meta)))
    }

    /// The model's files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// [`crate::source::TensorSource::gguf_names`].
    pub(crate) fn gguf_names(&self, network: &Network, id: TensorId) -> Vec<String> {
        let recurrent = match id {
            TensorId::Layer(layer, _) => network.mixer(layer).is_recurrent(),
            _ => false,
        };
        self.names.in_gguf(id, recurrent)
    }

    /// [`crate::source::TensorSource::stored`].
    pub(crate) fn stored(&self, id: TensorId) -> Stored {
        let placed = self.placed.get(&id);
        placed.map_or(Stored::AsIs, |p| p.stored)
    }

    /// [`crate::source::TensorSource::read`].
    pub(crate) fn read(&self, id: TensorId, offset: usize, out: &mut [u8]) -> Result<()> {
        let Some(p) = self.placed.get(&id) else {
            return Err(ModelError::Parameter {
                field: self.names.name_of(id, false),
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
        let read = p.read(&self.files, offset, out);
        let path = &self.files[p.place.file()].0;
        read.map_err(|e| ModelError::io(path, format!("read tensor {}", p.meta.name), e))
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

    fn wrong(&self, name: &str, problem: String) -> ModelError {
        ModelError::damaged(self.path_of(name), name, problem)
    }

    /// The file that holds the tensor `name`, or the first one.
    fn path_of(&self, name: &str) -> PathBuf {
        let holder = self
            .placed
            .values()
            .find(|p| p.meta.name == name)
            .map_or(0, |p| p.place.file());
        self.files
            .get(holder)
            .map(|f| f.0.clone())
            .unwrap_or_default()
    }
}
