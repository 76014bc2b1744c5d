//! The GGUF container: metadata and the directory of tensors, validated when opened.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::beginning::stand_in;
use super::header::HeaderReader;
use super::parts;
use super::value::{Metadata, Value};
use crate::block::BlockType;
use crate::error::{ModelError, Result};
use crate::files::open_regular;

/// Alignment of tensor data if `general.alignment` is absent.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Most metadata keys and tensors accepted: the largest models have a hundred keys and some thousand tensors.
const MAX_ENTRIES: u64 = 1 << 16;

/// More bytes than any file has.
const MOST_BYTES: u64 = 1 << 50;

/// The magic of files whose blocks are given back while they are packed: nobody may take what is left for a model.
pub(crate) const CONSUMED: &[u8; 4] = b"FBAY";

/// What of a file has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Whole,
    /// The file may be marked as [`CONSUMED`].
    Consumed,
    /// At least its header: what is missing of the tensors reads as zeros.
    Header,
}

/// A tensor of the file: its place is known to lie inside the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, e.g. `blk.0.attn_q.weight`.
    pub name: String,
    /// Block format.
    pub block: BlockType,
    /// One to four dimensions in elements, all nonzero, fastest first (elements of a row, rows, …).
    pub dims: Vec<usize>,
    /// Which of the model's files it is in.
    pub file: usize,
    /// First byte in the file.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Elements per row and number of rows; `None` for more than two dimensions that are not 1.
    pub fn matrix(&self) -> Option<(usize, usize)> {
        let (cols, rows, others) = self.matrices()?;
        (others == 1).then_some((cols, rows))
    }

    /// Elements per row, rows of a matrix, and number of matrices, one after the other.
    pub fn matrices(&self) -> Option<(usize, usize, usize)> {
        match *self.dims.as_slice() {
            [cols] => Some((cols, 1, 1)),
            [cols, rows, ref rest @ ..] => {
                let n = rest.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
                Some((cols, rows, n))
            }
            [] => None,
        }
    }
}

/// An open GGUF file, or several that are one model. Only headers are in memory; tensors are read on demand.
#[derive(Debug)]
pub struct Gguf {
    /// With their paths; not empty.
    files: Vec<(PathBuf, File)>,
    /// Whether all tensors are there.
    is_whole: bool,
    powerinfer: bool,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
}

impl Gguf {
    /// Reads and checks the header of the file at `path`, and those of the others if it is the first of several.
    ///
    /// # Errors
    /// A file that cannot be read, is not little-endian GGUF v2 or v3, contradicts itself or its
    /// own length, or has a tensor in a format that this engine does not read.
    ///
    /// Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_files(path, Access::Whole)
    }

    /// The same for a file that may be marked as [`CONSUMED`].
    pub(crate) fn open_consumed(path: &Path) -> Result<Self> {
        Self::open_files(path, Access::Consumed)
    }

    /// The same for a file that may end anywhere after its header: what is missing reads as zeros.
    pub(crate) fn open_header(path: &Path) -> Result<Self> {
        Self::open_files(path, Access::Header)
    }

    fn open_files(path: &Path, access: Access) -> Result<Self> {
        let mut gguf = Self::open_one(path, access)?;
        let others = parts::others(path, &gguf.metadata)?;
        let n = others.len() + 1;
        for (i, path) in (1..n).zip(&others) {
            let part = Self::open_one(path, access)?;
            parts::check(path, &part.metadata, i, n)?;
            gguf.tensors.extend(
                part.tensors
                    .into_iter()
                    .map(|tensor| TensorInfo { file: i, ..tensor }),
            );
            gguf.files.extend(part.files);
            gguf.is_whole &= part.is_whole;
        }
        gguf.refuse_repeated()?;
        if n > 1 {
            parts::check_tensors(path, &gguf.metadata, gguf.tensors.len())?;
        }
        Ok(gguf)
    }

    /// Each tensor may be in one of the files only.
    fn refuse_repeated(&self) -> Result<()> {
        let mut names = HashSet::new();
        let Some(again) = self.tensors.iter().find(|t| !names.insert(&t.name)) else {
            return Ok(());
        };
        let (path, problem) = (
            &self.files[again.file].0,
            "the tensor is in two files of the model",
        );
        Err(ModelError::damaged(path, &again.name, problem))
    }

    fn open_one(path: &Path, access: Access) -> Result<Self> {
        let (mut file, file_bytes) = open(path)?;
        let mut header = HeaderReader::new(&file, path, file_bytes);
        let powerinfer = read_magic(&mut header, path, access)?;
        read_version(&mut header, path)?;
        let n_tensors = header.u64("tensor count")?;
        let n_entries = header.u64("metadata count")?;
        let metadata = read_metadata(&mut header, path, n_entries)?;
        let alignment = alignment(&metadata, path)?;
        let mut tensors = read_tensor_infos(&mut header, path, n_tensors)?;
        let data_start = header.position().next_multiple_of(alignment);
        drop(header);
        let room = match access {
            Access::Header => MOST_BYTES,
            Access::Whole | Access::Consumed => file_bytes,
        };
        place_tensors(&mut tensors, path, alignment, data_start, room)?;
        let end = tensors.iter().map(|t| t.start + t.bytes).max();
        let missing = end.filter(|&end| end > file_bytes);
        if let Some(end) = missing {
            let begun = stand_in(&file, data_start.min(file_bytes), end);
            file = begun.map_err(|e| ModelError::io(path, "copy the header", e))?;
        }
        Ok(Self {
            is_whole: missing.is_none(),
            files: vec![(path.to_path_buf(), file)],
            powerinfer,
            metadata,
            tensors,
        })
    }

    /// The file, or the first of them.
    pub fn path(&self) -> &Path {
        &self.files[0].0
    }

    /// Whether the magic is PowerInfer's `PWRI`: a model with ReLU FFNs and predictors.
    pub fn is_powerinfer(&self) -> bool {
        self.powerinfer
    }

    /// Whether all tensors are there, which only [`Self::open_header`] does without.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// All metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Takes the metadata, which is large, out of the file.
    pub fn take_metadata(&mut self) -> Metadata {
        std::mem::take(&mut self.metadata)
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Reads `out.len()` bytes of `tensor` from its byte `offset`.
    ///
    /// # Errors
    /// A range outside the tensor, or a failed read.
    pub fn read(&self, tensor: &TensorInfo, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > tensor.bytes) {
            return Err(ModelError::Parameter {
                field: tensor.name.clone(),
                problem: format!("{} bytes from {offset} are outside the tensor", out.len()),
                remedy: format!("stay within its {} bytes", tensor.bytes),
            });
        }
        let (path, file) = &self.files[tensor.file];
        file.read_exact_at(out, tensor.start + offset)
            .map_err(|e| ModelError::io(path, format!("read tensor {}", tensor.name), e))?;
        if !self.is_whole && tensor.block == BlockType::F32 && out.iter().all(|&b| b == 0) {
            // Factors of positions, which must not be 0, and change no plan.
            let (numbers, _) = out.as_chunks_mut();
            numbers.fill(1f32.to_le_bytes());
        }
        Ok(())
    }

    /// Drops the headers and returns the files with their paths.
    pub(crate) fn into_files(self) -> Vec<(PathBuf, File)> {
        self.files
    }
}

/// Opens the file and tells its length.
fn open(path: &Path) -> Result<(File, u64)> {
    let opened = open_regular(path).and_then(|f| f.metadata().map(|m| (f, m.len())));
    opened.map_err(|e| ModelError::io(path, "open the model", e))
}

fn read_magic(header: &mut HeaderReader<'_>, path: &Path, access: Access) -> Result<bool> {
    match &header.four_bytes("magic")? {
        b"GGUF" => Ok(false),
        CONSUMED if access == Access::Consumed => Ok(false),
        CONSUMED => Err(ModelError::unsupported(
            path,
            "magic",
            "a model that is being packed and whose blocks are given back meanwhile",
            "run `forebay pack --consume` again, as before: it goes on where it was",
        )),
        b"PWRI" => Ok(true),
        b"lmgg" | b"fmgg" | b"tjgg" | b"algg" => Err(ModelError::unsupported(
            path,
            "magic",
            "a GGML file from before GGUF",
            "convert the original model with llama.cpp's convert_hf_to_gguf.py",
        )),
        other => Err(ModelError::Format {
            path: path.into(),
            field: "magic".into(),
            problem: format!(
                "\"{}\" instead of \"GGUF\" or \"PWRI\"",
                other.escape_ascii()
            ),
            remedy: "give a .gguf file".into(),
        }),
    }
}

fn read_version(header: &mut HeaderReader<'_>, path: &Path) -> Result<()> {
    match header.u32("version")? {
        2 | 3 => Ok(()),
        // The version is the first multi-byte number, so it shows the byte order.
        v if v & 0xffff == 0 && v != 0 => Err(ModelError::unsupported(
            path,
            "version",
            "a big-endian file",
            "convert it with gguf-convert-endian from the Python package gguf",
        )),
        v => Err(ModelError::unsupported(
            path,
            "version",
            format!("GGUF version {v}"),
            "versions 2 and 3 are: convert the model again with a current llama.cpp",
        )),
    }
}

fn read_metadata(header: &mut HeaderReader<'_>, path: &Path, count: u64) -> Result<Metadata> {
    // A key's length, the value's type, and at least one byte of value.
    header.expect_room(count, 8 + 4 + 1, "metadata count")?;
    header.expect_at_most(count, MAX_ENTRIES, "metadata count", "keys")?;
    let mut entries = BTreeMap::new();
    for i in 0..count {
        let key = header.string(&format!("metadata key {i}"))?;
        let value = header.value(&key)?;
        if entries.contains_key(&key) {
            return Err(ModelError::damaged(
                path,
                key,
                "the metadata key occurs twice",
            ));
        }
        entries.insert(key, value);
    }
    Ok(Metadata { entries })
}

fn alignment(metadata: &Metadata, path: &Path) -> Result<u64> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(a)) if a.is_power_of_two() => Ok(a.into()),
        Some(v) => Err(ModelError::damaged(
            path,
            KEY,
            format!("{v:?} is not a u32 power of two"),
        )),
    }
}

/// Tensor infos with offsets relative to the data section.
fn read_tensor_infos(
    header: &mut HeaderReader<'_>,
    path: &Path,
    count: u64,
) -> Result<Vec<TensorInfo>> {
    // A name's length, the number of dimensions, one dimension, type, offset.
    header.expect_room(count, 8 + 4 + 8 + 4 + 8, "tensor count")?;
    header.expect_at_most(count, MAX_ENTRIES, "tensor count", "tensors")?;
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for i in 0..count {
        let info = read_tensor_info(header, path, i)?;
        if !names.insert(info.name.clone()) {
            return Err(ModelError::damaged(
                path,
                info.name,
                "the tensor name occurs twice",
            ));
        }
        tensors.push(info);
    }
    Ok(tensors)
}

fn read_tensor_info(header: &mut HeaderReader<'_>, path: &Path, index: u64) -> Result<TensorInfo> {
    let name = header.string(&format!("name of tensor {index}"))?;
    let n_dims = header.u32(&name)?;
    if !(1..=4).contains(&n_dims) {
        return Err(ModelError::damaged(
            path,
            name,
            format!("{n_dims} dimensions, expected 1 to 4"),
        ));
    }
    let mut dims = Vec::with_capacity(4);
    for _ in 0..n_dims {
        let d = header.u64(&name)?;
        match usize::try_from(d) {
            Ok(d) if d > 0 => dims.push(d),
            _ => {
                return Err(ModelError::damaged(
                    path,
                    name,
                    format!("a dimension of {d}"),
                ));
            }
        }
    }
    let type_id = header.u32(&name)?;
    let start = header.u64(&name)?;
    let Some(block) = BlockType::from_ggml(type_id) else {
        return Err(ModelError::unsupported(
            path,
            name,
            format!("tensor type {type_id} ({})", foreign_type_name(type_id)),
            format!(
                "get the model in another quantisation; supported are {}",
                BlockType::ALL.map(BlockType::name).join(", ")
            ),
        ));
    };
    if !dims[0].is_multiple_of(block.block_len()) {
        let problem = format!("rows of {} elements are not whole {block} blocks", dims[0]);
        return Err(ModelError::damaged(path, name, problem));
    }
    let rows = dims[1..]
        .iter()
        .try_fold(1usize, |rows, &d| rows.checked_mul(d));
    let bytes = rows.and_then(|rows| block.row_bytes(dims[0])?.checked_mul(rows));
    let Some(bytes) = bytes else {
        return Err(ModelError::damaged(
            path,
            name,
            format!("the size of {dims:?} elements overflows"),
        ));
    };
    Ok(TensorInfo {
        name,
        block,
        dims,
        file: 0,
        start,
        bytes: bytes as u64,
    })
}

/// ggml's name of a type this engine does not read, for the message.
fn foreign_type_name(id: u32) -> &'static str {
    match id {
        4 => "Q4_2, removed from ggml",
        5 => "Q4_3, removed from ggml",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31..=33 => "Q4_0 repacked for ARM",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36..=38 => "IQ4_NL repacked",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => "unknown",
    }
}

/// Turns relative offsets into absolute ones; tensors must be aligned, inside the file and
/// disjoint.
fn place_tensors(
    tensors: &mut [TensorInfo],
    path: &Path,
    alignment: u64,
    data_start: u64,
    file_bytes: u64,
) -> Result<()> {
    for t in &mut *tensors {
        if !t.start.is_multiple_of(alignment) {
            let problem = format!(
                "offset {} is not a multiple of the alignment {alignment}",
                t.start
            );
            return Err(ModelError::damaged(path, &t.name, problem));
        }
        let start = data_start.checked_add(t.start);
        let end = start.and_then(|s| s.checked_add(t.bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_bytes => t.start = start,
            _ => {
                let problem = format!(
                    "{} bytes at offset {} end beyond the file's {file_bytes} bytes",
                    t.bytes, t.start
                );
                return Err(ModelError::damaged(path, &t.name, problem));
            }
        }
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.start);
    for pair in order.windows(2) {
        if pair[0].start + pair[0].bytes > pair[1].start {
            let problem = format!("its data overlap those of {}", pair[1].name);
            return Err(ModelError::damaged(path, &pair[0].name, problem));
        }
    }
    Ok(())
}
