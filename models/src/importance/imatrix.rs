//! Importance matrices in GGUF files, as llama.cpp's `llama-imatrix` writes them and its quantiser reads them: for a
//! matrix NAME, `NAME.in_sum2`, `[n_experts, columns]`, and `NAME.counts`, `[n_experts, 1]`, both F32.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use super::{Importance, InputSquares};
use crate::block::{BlockType, dequantize};
use crate::error::{ModelError, Result};
use crate::files::write_output;
use crate::gguf::encoded::{Encoded, Entry, header, padding};
use crate::gguf::{Gguf, TensorInfo};

const TYPE: &str = "general.type";
const DATASETS: &str = "imatrix.datasets";
const CHUNKS: &str = "imatrix.chunk_count";
const CHUNK_TOKENS: &str = "imatrix.chunk_size";
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// Where such files come from.
const REMEDY: &str = "make one with `forebay profile MODEL -f TEXT --importance OUT` or with llama.cpp's llama-imatrix";

/// Reads an importance matrix.
///
/// # Errors
/// A file that cannot be read or is not an importance matrix in GGUF; sums without counts or of another shape; values
/// that are negative or not finite.
pub fn read_imatrix(path: &Path) -> Result<Importance> {
    let gguf = Gguf::open(path)?;
    let metadata = gguf.metadata();
    let wrong = |field: &str, problem: String| ModelError::Format {
        path: path.into(),
        field: field.into(),
        problem,
        remedy: REMEDY.into(),
    };
    match metadata.str(TYPE) {
        Some("imatrix") => {}
        Some(other) => return Err(wrong(TYPE, format!("{other:?} instead of \"imatrix\""))),
        None => return Err(wrong(TYPE, "it does not say \"imatrix\"".into())),
    }
    let tensors: BTreeMap<&str, &TensorInfo> = gguf
        .tensors()
        .iter()
        .map(|t| (t.name.as_str(), t))
        .collect();
    let mut inputs = BTreeMap::new();
    for (name, sums) in &tensors {
        let Some(name) = name.strip_suffix(SUMS) else {
            continue;
        };
        let Some(counts) = tensors.get(format!("{name}{COUNTS}").as_str()) else {
            return Err(wrong(
                &sums.name,
                "there are no counts of its tokens".into(),
            ));
        };
        let squares = InputSquares {
            sums: values(&gguf, sums)?,
            tokens: values(&gguf, counts)?,
        };
        let experts: usize = sums.dims[1..].iter().product();
        if experts != squares.tokens.len() {
            let n = squares.tokens.len();
            return Err(wrong(&counts.name, format!("{n} counts of {experts} sums")));
        }
        inputs.insert(name.to_owned(), squares);
    }
    if inputs.is_empty() {
        return Err(wrong(
            "tensor count",
            format!("there is no NAME{SUMS} in it"),
        ));
    }
    let number = |key| u32::try_from(metadata.u64(key).unwrap_or(0)).unwrap_or(0);
    Ok(Importance {
        path: path.to_path_buf(),
        datasets: metadata.strings(DATASETS).unwrap_or_default().to_vec(),
        chunks: number(CHUNKS),
        chunk_tokens: number(CHUNK_TOKENS),
        inputs,
    })
}

/// The values of a tensor, which are sums or counts.
fn values(gguf: &Gguf, tensor: &TensorInfo) -> Result<Vec<f32>> {
    let wrong = |problem| ModelError::damaged(gguf.path(), &tensor.name, problem);
    if tensor.block != BlockType::F32 {
        return Err(wrong(format!("{} instead of F32", tensor.block)));
    }
    // It lies inside the file.
    let mut bytes = vec![0; tensor.bytes as usize];
    gguf.read(tensor, 0, &mut bytes)?;
    let mut values = vec![0.0; bytes.len() / size_of::<f32>()];
    dequantize(tensor.block, &bytes, &mut values);
    match values.iter().find(|v| !v.is_finite() || **v < 0.0) {
        Some(value) => Err(wrong(format!("{value} is not a sum of squares or a count"))),
        None => Ok(values),
    }
}

/// Writes `importance` to `out`. The file appears under its name only when it is whole (written beside it, synced,
/// renamed).
///
/// # Errors
/// What the system says (a full disk says so).
pub fn write_imatrix(importance: &Importance, out: &Path) -> Result<()> {
    let mut metadata = Encoded::default();
    metadata.string(TYPE, "imatrix");
    metadata.strings(DATASETS, &importance.datasets);
    metadata.number(CHUNKS, importance.chunks);
    metadata.number(CHUNK_TOKENS, importance.chunk_tokens);
    let tensors = importance.inputs.iter().flat_map(|(name, inputs)| {
        let experts = inputs.tokens.len();
        let columns = inputs.sums.len() / experts.max(1);
        let sums = (format!("{name}{SUMS}"), [columns, experts], &inputs.sums);
        let counts = (format!("{name}{COUNTS}"), [1, experts], &inputs.tokens);
        [sums, counts]
    });
    let tensors: Vec<(String, [usize; 2], &Vec<f32>)> = tensors.collect();
    let entry = |(name, dims, values): &'_ (String, [usize; 2], &Vec<f32>)| Entry {
        name: name.clone(),
        dims: dims.to_vec(),
        block: BlockType::F32,
        bytes: size_of_val(values.as_slice()) as u64,
    };
    let entries: Vec<Entry> = tensors.iter().map(entry).collect();
    let mut bytes = header(&metadata, &entries);
    for (_, _, values) in &tensors {
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        bytes.extend(padding(bytes.len() as u64));
    }
    write_output(out, |mut file| file.write_all(&bytes))
        .map_err(|e| ModelError::not_written(out, e))
}
