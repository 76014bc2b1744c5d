//! Models in several GGUF files, as llama.cpp's `gguf-split` writes them: `NAME-00001-of-00003.gguf` and so on. Only
//! the first of them has the model's metadata.

use std::path::{Path, PathBuf};

use super::value::Metadata;
use crate::error::{ModelError, Result};

/// Most files of a model.
const MAX_PARTS: usize = 1024;

/// All files of the model whose first one is at `path`, if its name says that there are several; else only `path`.
pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    let Some((name, n)) = first_of(path) else {
        return vec![path.to_path_buf()];
    };
    let part = |i| path.with_file_name(format!("{name}-{i:05}-of-{n:05}.gguf"));
    (1..=n).map(part).collect()
}

/// The name without numbers, and the number of files, if `path` is named like the first one of several.
fn first_of(path: &Path) -> Option<(&str, usize)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (first, count) = stem.rsplit_once("-of-")?;
    let digits = count.len() == 5 && count.bytes().all(|b| b.is_ascii_digit());
    let n = count.parse().ok().filter(|n| (1..=MAX_PARTS).contains(n))?;
    digits.then_some((first.strip_suffix("-00001")?, n))
}

/// The other files of the model whose first one, at `path`, has this metadata.
///
/// # Errors
/// A file that is not the first of several, or has another name, and one that says another number than its name.
pub(super) fn others(path: &Path, metadata: &Metadata) -> Result<Vec<PathBuf>> {
    let mut all = files(path);
    match metadata.u64(COUNT).filter(|&n| n > 1) {
        _ if all.len() > 1 => check(path, metadata, 0, all.len()).map(|()| all.split_off(1)),
        None => Ok(Vec::new()),
        Some(n) => Err(ModelError::Format {
            path: path.into(),
            field: COUNT.into(),
            problem: format!("one of {n} files of a model, and not named as the first of them"),
            remedy: format!("put all of them into one folder and give NAME-00001-of-{n:05}.gguf"),
        }),
    }
}

/// Checks that the file at `path` is number `i` of `n`, counted from 0.
///
/// # Errors
/// It is another one.
pub(super) fn check(path: &Path, metadata: &Metadata, i: usize, n: usize) -> Result<()> {
    let says = [NUMBER, COUNT].map(|key| metadata.u64(key));
    if says == [i, n].map(|number| Some(number as u64)) {
        return Ok(());
    }
    let [number, count] = says.map(|said| said.map_or("?".to_owned(), |said| said.to_string()));
    Err(ModelError::Format {
        path: path.into(),
        field: format!("{NUMBER} and {COUNT}"),
        problem: format!(
            "by them the file is number {number} of {count}, counted from 0, by its name {i} of {n}"
        ),
        remedy: "give the files of a model their own names again, or download them again".into(),
    })
}

/// Checks that the files of a model have as many tensors as the first one, at `path`, says.
///
/// # Errors
/// They have more or fewer: one of them is another model's.
pub(super) fn check_tensors(path: &Path, metadata: &Metadata, tensors: usize) -> Result<()> {
    match metadata.u64(TENSORS) {
        Some(said) if said != tensors as u64 => Err(ModelError::Format {
            path: path.into(),
            field: TENSORS.into(),
            problem: format!("it says {said} tensors where the model's files have {tensors}"),
            remedy: "one of the files is not this model's: download all of them again".into(),
        }),
        _ => Ok(()),
    }
}

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_of_several_has_others() {
        let all = files(Path::new("a/b-of-c-00001-of-00003.gguf"));
        let second = PathBuf::from("a/b-of-c-00002-of-00003.gguf");
        assert_eq!((all.len(), &all[1]), (3, &second));
        for alone in [
            "a-00002-of-00003.gguf",
            "a-00001-of-3.gguf",
            "a-00001-of-00000.gguf",
            "a-00001-of-99999.gguf",
            "a-00001-of-00003.bin",
            "a.gguf",
        ] {
            assert_eq!(files(Path::new(alone)), [Path::new(alone)], "{alone}");
        }
    }
}
