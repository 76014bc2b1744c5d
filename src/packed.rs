//! From a model's path to its packed file: packed once, cached, and packed again when the source changes.

use std::fs::{File, FileTimes, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use forebay_models::bundle::{
    Amendment, Bundle, FORMAT_VERSION, PackOptions, PackProgress, SourceIdentity, amend, checksum,
    outline, pack, pack_consuming,
};
use forebay_models::error::ModelError;
use forebay_models::files::folder_of;
use forebay_models::source;
use forebay_models::source::TensorSource;
use forebay_models::tokenizer::{Tokenizer, TokenizerSpec};
use forebay_plans::cache_dir;

use crate::error::Error;

/// A folder's lock is waited for this long before that is reported.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks at a lock that somebody else holds.
const LOOK: Duration = Duration::from_millis(20);

/// What happens while a model is made ready.
#[derive(Clone, Debug)]
pub enum Preparation {
    /// Somebody else writes a packed model into this folder and holds its lock.
    Waiting {
        /// The folder.
        folder: PathBuf,
    },
    /// The source is being converted to this file.
    Packing {
        /// The packed file that will appear.
        target: PathBuf,
        /// Its progress.
        progress: PackProgress,
    },
    /// The packed file is complete.
    Packed {
        /// The packed file.
        target: PathBuf,
    },
    /// The machine is measured for this model, which is done once.
    Measuring,
    /// The model can be used, but the user should know this.
    Doubt(&'static str),
    /// Resident weights are being read, then the hot set.
    Loading {
        /// Bytes read.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
}

/// Whether `path` is a packed file already.
pub fn is_bundle(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "fbay")
}

/// Opens the packed file of a model: the model itself if it is one, else its cached conversion, which is made now if
/// there is none or if the source has changed.
///
/// # Errors
/// The model cannot be read or the cache folder cannot be written.
pub fn open(
    model: &Path,
    cache: Option<&Path>,
    options: &PackOptions,
    report: &mut dyn FnMut(Preparation),
) -> Result<Bundle, Error> {
    open_if(model, cache, options, &|_| Ok(()), report)
}

/// The same, but a source that `fits` refuses is not packed.
///
/// # Errors
/// As [`open`]'s, and those of `fits`.
pub fn open_if(
    model: &Path,
    cache: Option<&Path>,
    options: &PackOptions,
    fits: &dyn Fn(&dyn TensorSource) -> Result<(), Error>,
    report: &mut dyn FnMut(Preparation),
) -> Result<Bundle, Error> {
    check_there(model)?;
    if is_bundle(model) {
        let bundle = Bundle::open(model)?;
        note_use(model);
        return Ok(bundle);
    }
    let (identity, folder, target) = place(model, cache, options)?;
    if let Some(bundle) = ready(&target, &identity) {
        note_use(&target);
        return Ok(bundle);
    }
    let source = source::open(model)?;
    fits(source.as_ref())?;
    let _lock = lock(&target, report)?;
    // Meanwhile it may have been packed, also under another name.
    let (_, _, target) = place(model, cache, options)?;
    if let Some(bundle) = ready(&target, &identity) {
        return Ok(bundle);
    }
    convert_open(source.as_ref(), (model, &target), options, report)?;
    drop(source);
    remove_outdated(&folder, &target, &identity);
    for version in 1..FORMAT_VERSION {
        // Best effort: an old file that stays only takes up space.
        let _ = std::fs::remove_file(cached_path(&folder, model, &identity, options, version));
    }
    Ok(Bundle::open(&target)?)
}

/// What there is of a model's packed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// All of it.
    Packed,
    /// Nothing: the source would have to be packed.
    Source,
    /// Nothing, and of the source not all either.
    Beginning,
}

/// The same without packing a model that has not been packed: the packed file that it would become, without weights. Of
/// a GGUF file, the header is enough.
///
/// # Errors
/// As [`open`]'s.
pub fn open_or_outline(
    model: &Path,
    cache: Option<&Path>,
    options: &PackOptions,
) -> Result<(Bundle, Found), Error> {
    check_there(model)?;
    if is_bundle(model) {
        return Ok((Bundle::open(model)?, Found::Packed));
    }
    let (identity, _, target) = place(model, cache, options)?;
    if let Some(bundle) = ready(&target, &identity) {
        return Ok((bundle, Found::Packed));
    }
    let (source, is_whole) = source::open_header(model)?;
    let found = match is_whole {
        true => Found::Source,
        false => Found::Beginning,
    };
    Ok((outline(source.as_ref(), &target, options)?, found))
}

pub(crate) fn check_there(model: &Path) -> Result<(), Error> {
    let found = std::fs::metadata(model);
    found.map_err(|e| ModelError::io(model, "find the model (check the path)", e))?;
    Ok(())
}

/// A model's state, the folder for packed models, and its packed file there.
fn place(
    model: &Path,
    cache: Option<&Path>,
    options: &PackOptions,
) -> Result<(SourceIdentity, PathBuf, PathBuf), Error> {
    let identity = SourceIdentity::of(model)?;
    let folder = cache_dir::prepare(cache)?;
    let target = cached_path(&folder, model, &identity, options, FORMAT_VERSION);
    cache_dir::check_owner(&target)?;
    Ok((identity, folder, target))
}

/// The packed file `target`, if it is that of a source in this state.
fn ready(target: &Path, identity: &SourceIdentity) -> Option<Bundle> {
    let bundle = Bundle::open(target).ok();
    bundle.filter(|bundle| bundle.meta.source == *identity)
}

/// Notes that a packed file is used now, for `cache prune`: many systems note an access at most once a day, or never.
fn note_use(path: &Path) {
    let now = FileTimes::new().set_accessed(SystemTime::now());
    // Best effort: the file may be another user's.
    let _ = File::open(path).and_then(|file| file.set_times(now));
}

/// Keeps others, of this process or another, from writing packed models into the folder of `target` at the same time:
/// they would do the same work twice and remove each other's results. The lock ends with the result; `None` where there
/// are no locks, as on some network file systems, or no such folder: files appear whole in any case.
///
/// # Errors
/// A folder that may not be read.
pub fn lock(target: &Path, report: &mut dyn FnMut(Preparation)) -> Result<Option<File>, Error> {
    let folder = folder_of(target);
    let file = match File::open(folder) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            let action = "lock its folder, which has to be readable (chmod u+r, or choose another folder with \
                          FOREBAY_CACHE, --cache or -o)";
            return Err(ModelError::io(target, action, e).into());
        }
        Err(_) => return Ok(None),
    };
    let start = Instant::now();
    while let Err(TryLockError::WouldBlock) = file.try_lock() {
        if start.elapsed() >= PATIENCE {
            report(Preparation::Waiting {
                folder: folder.to_path_buf(),
            });
            let _ = file.lock();
            break;
        }
        std::thread::sleep(LOOK);
    }
    Ok(Some(file))
}

/// Adds what was learned to the packed file `path`. What others added meanwhile stays.
///
/// # Errors
/// The file cannot be read or its folder cannot be written.
pub fn add(path: &Path, learned: &Amendment) -> Result<(), Error> {
    let _lock = lock(path, &mut |_| {})?;
    Ok(amend(&Bundle::open(path)?, path, learned, &mut |_| {})?)
}

/// Converts `model` into the packed file `target`.
///
/// # Errors
/// The model cannot be read or the file cannot be written.
pub fn convert(
    model: &Path,
    target: &Path,
    options: &PackOptions,
    report: &mut dyn FnMut(Preparation),
) -> Result<(), Error> {
    convert_open(
        source::open(model)?.as_ref(),
        (model, target),
        options,
        report,
    )
}

fn convert_open(
    source: &dyn TensorSource,
    (model, target): (&Path, &Path),
    options: &PackOptions,
    report: &mut dyn FnMut(Preparation),
) -> Result<(), Error> {
    check_tokenizer(source.tokenizer().into_owned(), model, report)?;
    pack(source, target, options, &mut packing(target, report))?;
    report(Preparation::Packed {
        target: target.to_path_buf(),
    });
    Ok(())
}

/// The same, while the blocks of `model`, a GGUF file, are given back to the file system: in the end it is gone. Goes
/// on with what was interrupted.
///
/// # Errors
/// As [`convert`]'s; see [`pack_consuming`].
pub fn consume(
    model: &Path,
    target: &Path,
    options: &PackOptions,
    report: &mut dyn FnMut(Preparation),
) -> Result<(), Error> {
    if let Ok(tokenizer) = source::open_tokenizer(model) {
        check_tokenizer(tokenizer, model, report)?;
    }
    pack_consuming(model, target, options, &mut packing(target, report))?;
    report(Preparation::Packed {
        target: target.to_path_buf(),
    });
    Ok(())
}

/// Checked before gigabytes are written for a model that cannot be prompted.
fn check_tokenizer(
    tokenizer: TokenizerSpec,
    model: &Path,
    report: &mut dyn FnMut(Preparation),
) -> Result<(), Error> {
    let doubt = tokenizer.doubt();
    Tokenizer::from_spec(tokenizer).map_err(|e| e.within(model))?;
    if let Some(doubt) = doubt {
        report(Preparation::Doubt(doubt));
    }
    Ok(())
}

fn packing(target: &Path, report: &mut dyn FnMut(Preparation)) -> impl FnMut(PackProgress) {
    |progress| {
        report(Preparation::Packing {
            target: target.to_path_buf(),
            progress,
        });
    }
}

/// Name of the cached file: it changes with the source's path and state, the options and the format.
fn cached_path(
    folder: &Path,
    model: &Path,
    identity: &SourceIdentity,
    options: &PackOptions,
    version: u32,
) -> PathBuf {
    let importance = options.importance.as_ref();
    let importance = importance.map_or_else(String::new, |i| format!("|{:016x}", i.checksum()));
    let key = format!(
        "{}|{}|{}|{}|{:?}|{version}{}{importance}",
        identity.path,
        identity.len,
        identity.modified_ns,
        identity.state,
        options.quant,
        if options.neurons { "|neurons" } else { "" },
    );
    let hash = checksum(key.as_bytes());
    let path = cache_dir::packed_path(folder, model, hash);
    match path.exists() {
        true => path,
        // The same model may have been packed under another name, as a link to it.
        false => cache_dir::packed_with(folder, hash).unwrap_or(path),
    }
}

/// Removes cached conversions of earlier states of the same source file, but none that somebody named.
fn remove_outdated(folder: &Path, keep: &Path, identity: &SourceIdentity) {
    if identity.path.contains('\u{FFFD}') {
        // What of a name is not UTF-8 is not kept: they may be another file's.
        return;
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path == keep || !cache_dir::is_packed_path(&path) {
            continue;
        }
        let outdated = Bundle::open(&path).is_ok_and(|bundle| {
            bundle.meta.source.path == identity.path && bundle.meta.source != *identity
        });
        if outdated {
            // Best effort: an old file that stays only takes up space.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_models::bundle::{GateCalibration, PackedPredictor};

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a writable folder");
        folder
    }

    /// Each of two at once adds to what the other leaves.
    #[test]
    fn what_two_learn_at_once_is_kept() {
        let folder = folder("learned");
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/hf");
        let path = folder.join("demo.fbay");
        // The two meet in most rounds.
        for _ in 0..8 {
            convert(&model, &path, &PackOptions::default(), &mut |_| {}).expect("packed");
            let network = Bundle::open(&path).expect("a sound file").meta.network;
            let (d_model, d_ff) = (network.d_model, network.ffn(0).d_ff);
            let predictor = || {
                let (fc1, fc2) = (vec![0.5; 32 * d_model], vec![0.5; d_ff * 32]);
                PackedPredictor::new(32, &fc1, &fc2, 0.1)
            };
            let predictors = Amendment {
                predictors: Some((0..network.n_layers()).map(|_| predictor()).collect()),
                ..Amendment::default()
            };
            let gates = Amendment {
                gates: Some(GateCalibration {
                    tokens: 1,
                    quantiles: vec![vec![0.0, 1.0]; network.n_layers()],
                    density: None,
                }),
                ..Amendment::default()
            };
            std::thread::scope(|scope| {
                for learned in [&predictors, &gates] {
                    scope.spawn(|| add(&path, learned).expect("added"));
                }
            });
            let meta = Bundle::open(&path).expect("a sound file").meta;
            assert!(meta.predictors.is_some() && meta.gates.is_some());
        }
        std::fs::remove_dir_all(&folder).expect("removable");
    }

    /// Its source may have been given back for it, and another one of that name downloaded.
    #[test]
    fn what_somebody_named_stays_when_the_source_changes() {
        let folder = folder("named");
        let (model, cache) = (folder.join("model"), folder.join("cache"));
        for made in [&model, &cache] {
            std::fs::create_dir_all(made).expect("writable");
        }
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/hf");
        for entry in std::fs::read_dir(demo).expect("the demo").flatten() {
            std::fs::copy(entry.path(), model.join(entry.file_name())).expect("copied");
        }
        let options = PackOptions::default();
        let named = cache.join("mine.fbay");
        convert(&model, &named, &options, &mut |_| {}).expect("packed");
        let ours = open(&model, Some(&cache), &options, &mut |_| {}).expect("packed");
        std::fs::write(model.join("more.json"), "{}").expect("writable");
        open(&model, Some(&cache), &options, &mut |_| {}).expect("packed again");
        let left = (named.exists(), ours.path().exists());
        std::fs::remove_dir_all(&folder).expect("removable");
        assert_eq!(left, (true, false));
    }

    #[test]
    fn a_model_is_packed_once_under_all_its_names() {
        let folder = folder("names");
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/hf");
        let link = folder.join("another");
        std::os::unix::fs::symlink(&demo, &link).expect("a link");
        let of = |model: &Path| {
            let bundle = open(model, Some(&folder), &PackOptions::default(), &mut |_| {});
            bundle.expect("packed").path().to_path_buf()
        };
        let (first, second) = (of(&demo), of(&link));
        std::fs::remove_dir_all(&folder).expect("removable");
        assert_eq!(first, second);
    }

    /// Found by a test of `cache prune`: most systems would not note the access here.
    #[test]
    fn each_use_is_noted() {
        let folder = folder("use");
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/hf");
        let used = || {
            let bundle = open(&demo, Some(&folder), &PackOptions::default(), &mut |_| {});
            let file = File::open(bundle.expect("packed").path()).expect("a file");
            (
                file.metadata().and_then(|m| m.accessed()).expect("a time"),
                file,
            )
        };
        let (_, file) = used();
        let hour = |n: u64| SystemTime::now() - Duration::from_secs(3600 * n);
        let times = FileTimes::new().set_accessed(hour(2)).set_modified(hour(3));
        file.set_times(times).expect("an own file");
        let (accessed, _) = used();
        std::fs::remove_dir_all(&folder).expect("removable");
        assert!(accessed > hour(1), "{accessed:?}");
    }

    #[test]
    fn files_of_earlier_versions_make_way() {
        let folder = folder("versions");
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/hf");
        let identity = SourceIdentity::of(&model).expect("the demo");
        let options = PackOptions::default();
        let old = cached_path(&folder, &model, &identity, &options, FORMAT_VERSION - 1);
        let of_another = folder.join("hf-0123456789abcdef.fbay");
        for path in [&old, &of_another] {
            std::fs::write(path, b"FOREBAY\0\x01\0\0\0").expect("writable");
        }
        let mut packed = 0;
        for _ in 0..2 {
            let mut count = |p| packed += usize::from(matches!(p, Preparation::Packed { .. }));
            let bundle = open(&model, Some(&folder), &options, &mut count).expect("packed again");
            assert_eq!(bundle.meta.source, identity);
        }
        let left = (old.exists(), of_another.exists());
        std::fs::remove_dir_all(&folder).expect("removable");
        assert_eq!((packed, left), (1, (false, true)));
    }
}
