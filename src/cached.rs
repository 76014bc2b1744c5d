//! What the cache folder holds: the packed models, how large they are, and which of them nobody can use any more.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use forebay_models::bundle::{Bundle, SourceIdentity, hot_set_path};
use forebay_models::error::ModelError;
use forebay_models::files::{folder_of, remove_stale_partials};
use forebay_plans::cache_dir::{self, PACKED_EXTENSION};

use crate::demo;
use crate::error::Error;
use crate::packed::{self, Preparation};
use crate::profiles::profile_path;
use crate::quality::divergence_path;

/// A packed model in the cache folder.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// The packed file.
    pub path: PathBuf,
    /// Bytes of the file, and of what is kept beside it.
    pub bytes: u64,
    /// The model that was packed, if the file says so.
    pub source: Option<PathBuf>,
    /// Whether it would be used.
    pub state: State,
    /// When it was last read or written. File systems may count only the first read of a day.
    pub used: SystemTime,
}

/// Whether a packed model would be used if its source were run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its source is as it was.
    Current,
    /// Its source has changed since.
    SourceChanged,
    /// Its source is gone.
    SourceMissing,
    /// Another version of the program wrote it, or it is damaged.
    Unreadable,
}

/// The folder that is meant: `named`, else the first that the environment suggests and that exists, or what there is
/// instead of a folder.
pub fn folder(named: Option<&Path>) -> Option<PathBuf> {
    match named {
        Some(named) => Some(named.to_path_buf()),
        None => {
            let named = cache_dir::candidates().into_iter().map(|c| c.dir);
            let existing: Vec<_> = named.filter(|folder| folder.exists()).collect();
            let folder = existing.iter().find(|folder| folder.is_dir());
            folder.or(existing.first()).cloned()
        }
    }
}

/// All packed models in `folder`, the one that was used last first.
///
/// # Errors
/// The folder cannot be listed.
pub fn list(folder: &Path) -> Result<Vec<CachedModel>, Error> {
    let paths = files(folder)?.into_iter().filter(|p| packed::is_bundle(p));
    let mut models: Vec<CachedModel> = paths.filter_map(describe).collect();
    models.sort_by(|a, b| (b.used, &a.path).cmp(&(a.used, &b.path)));
    Ok(models)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let io = |e| ModelError::io(folder, "list the folder of packed models", e);
    let entries = std::fs::read_dir(folder).map_err(io)?;
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io)?;
        // A link to a packed file is used as well.
        let path = entry.path();
        if path.is_file() {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// `None` if the file was removed meanwhile.
fn describe(path: PathBuf) -> Option<CachedModel> {
    let (mut bytes, mut used) = (0, SystemTime::UNIX_EPOCH);
    let own = std::fs::metadata(&path).ok()?;
    let beside = side_files(&path)
        .into_iter()
        .filter_map(|p| std::fs::metadata(p).ok());
    for info in std::iter::once(own).chain(beside) {
        bytes += info.len();
        let times = [info.accessed(), info.modified()];
        used = times.into_iter().flatten().fold(used, SystemTime::max);
    }
    let identity = Bundle::open(&path).ok().map(|bundle| bundle.meta.source);
    Some(CachedModel {
        state: identity.as_ref().map_or(State::Unreadable, state_of),
        source: identity.map(|identity| identity.path.into()),
        path,
        bytes,
        used,
    })
}

/// What belongs to a packed model, and may not be there.
fn side_files(packed: &Path) -> [PathBuf; 3] {
    [
        hot_set_path(packed),
        profile_path(packed),
        divergence_path(packed),
    ]
}

fn state_of(packed: &SourceIdentity) -> State {
    let source = Path::new(&packed.path);
    match SourceIdentity::of(source) {
        Ok(now) if now == *packed => State::Current,
        // What of a name is not UTF-8 is not in the packed file: it may be this one's.
        Err(_) if packed.path.contains('\u{FFFD}') => State::Current,
        Err(_) if !source.exists() => State::SourceMissing,
        _ => State::SourceChanged,
    }
}

/// Removes a packed model with what is kept beside it: hot set, profile, measurements, and the demo's own files. A
/// program that runs it goes on: it has the file open.
///
/// # Errors
/// The file cannot be removed.
pub fn remove(model: &CachedModel, report: &mut dyn FnMut(Preparation)) -> Result<(), Error> {
    let _lock = packed::lock(&model.path, report)?;
    std::fs::remove_file(&model.path)
        .map_err(|e| ModelError::io(&model.path, "remove the packed model", e))?;
    for path in side_files(&model.path) {
        // There may be none.
        let _ = std::fs::remove_file(path);
    }
    let folder = folder_of(&model.path);
    let demo = folder.join(demo::NAME).canonicalize();
    let is_demo = demo.is_ok_and(|demo| model.source.as_ref() == Some(&demo));
    if is_demo && cache_dir::is_packed_path(&model.path) {
        demo::remove(folder);
    }
    Ok(())
}

/// Removes what killed programs left in `folder`: files that were never finished, and hot sets, profiles and
/// measurements without their model.
///
/// # Errors
/// The folder cannot be listed.
pub fn remove_remains(folder: &Path, report: &mut dyn FnMut(Preparation)) -> Result<(), Error> {
    let any = folder.join(format!("any.{PACKED_EXTENSION}"));
    let _lock = packed::lock(&any, report)?;
    remove_stale_partials(&any);
    for path in files(folder)? {
        let model = path.with_extension("");
        let is_side_file = packed::is_bundle(&model) && side_files(&model).contains(&path);
        if is_side_file && !model.exists() {
            // Best effort: what stays only takes up space.
            let _ = std::fs::remove_file(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn states_and_sizes_are_told_and_all_of_a_model_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("model");
        std::fs::create_dir(&source).expect("a folder");
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/hf");
        for entry in std::fs::read_dir(demo).expect("the demo").flatten() {
            std::fs::copy(entry.path(), source.join(entry.file_name())).expect("copied");
        }
        let cache = folder.path().join("cache");
        let options = packed_options();
        let bundle = packed::open(&source, Some(&cache), &options, &mut |_| {}).expect("packed");
        let path = bundle.path().to_path_buf();
        std::fs::write(cache.join("old-0123456789abcdef.fbay"), "old").expect("written");
        std::fs::write(format!("{}.hot", path.display()), [0; 100]).expect("written");
        std::fs::write(cache.join("gone.fbay.profile"), [0; 10]).expect("written");

        let states = || -> Vec<(State, u64)> {
            let mut models = list(&cache).expect("a list");
            models.sort_by_key(|m| m.bytes);
            models.iter().map(|m| (m.state, m.bytes)).collect()
        };
        let bytes = std::fs::metadata(&path).expect("a file").len() + 100;
        assert_eq!(states(), [(State::Unreadable, 3), (State::Current, bytes)]);
        let weights = source.join("model.safetensors");
        let mut changed = std::fs::read(&weights).expect("weights");
        *changed.last_mut().expect("weights") ^= 1;
        std::fs::write(&weights, changed).expect("written");
        assert_eq!(states()[1].0, State::SourceChanged);
        std::fs::remove_dir_all(&source).expect("removed");
        assert_eq!(states()[1].0, State::SourceMissing);

        for model in list(&cache).expect("a list") {
            remove(&model, &mut |_| {}).expect("removed");
        }
        remove_remains(&cache, &mut |_| {}).expect("removed");
        assert_eq!(files(&cache).expect("a list"), Vec::<PathBuf>::new());
    }

    /// The packed file names it in UTF-8 only.
    #[test]
    fn a_model_with_another_name_than_utf8_is_not_taken_for_missing() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = std::ffi::OsStr::from_bytes(b"model\xff");
        let source = folder.path().join(name);
        std::fs::create_dir(&source).expect("a folder");
        std::fs::write(source.join("config.json"), "{}").expect("written");
        let identity = SourceIdentity::of(&source).expect("a folder");
        assert_eq!(state_of(&identity), State::Current);
    }

    fn packed_options() -> forebay_models::bundle::PackOptions {
        forebay_models::bundle::PackOptions::default()
    }
}
