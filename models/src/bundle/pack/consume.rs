//! Packing a GGUF file whose blocks go back to the file system meanwhile: for a model that a device holds once, not
//! twice.
//!
//! The order is what makes it safe. First the source is marked, so that nobody takes what is left of it for a model.
//! Then, again and again: some contents are written and synced, the journal says so and is synced, and only then their
//! blocks are given back. Whatever ends the process, every matrix is in the source or in the unfinished packed file,
//! and the journal knows in which. The vectors are written last, and stay in the source until then.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::journal::Journal;
use super::outline::outline;
use super::{
    PackOptions, PackProgress, Packer, StoredContents, Weighing, source_bytes, tensors_of,
};
use crate::bundle::{ALIGN, Bundle, SourceIdentity, Vectors, room};
use crate::error::{ModelError, Result};
use crate::files::{Partial, give_back, may_give_back, remove_stale_partials};
use crate::gguf::CONSUMED;
use crate::network::Content;
use crate::source::GgufSource;
use crate::source::TensorSource;
use crate::source::first_bytes;
use crate::source::placed::Extent;
use crate::tensor::TensorId;

/// Blocks are given back whenever this part of the source has been packed.
const STEPS: u64 = 64;

/// Packs the GGUF file at `path`, or the several of which it is the first, into `out`, which needs little more room
/// than the source has: what has been packed is given back to the file system, and in the end the source is removed,
/// with the links that name it. If it is interrupted, the next call goes on.
///
/// # Errors
/// As [`super::pack`]'s; a source that is not GGUF, or on a file system that takes no blocks back; a conversion that
/// was begun with another `out` or other `options`.
pub fn pack_consuming(
    path: &Path,
    out: &Path,
    options: &PackOptions,
    progress: &mut dyn FnMut(PackProgress),
) -> Result<()> {
    let _span = tracing::info_span!("pack, giving back").entered();
    let journal = Journal::of(path)?;
    // A whole source may be another one of that name.
    let left = !path.exists() || is_marked(path)?;
    if let Some(journal) = journal.filter(|_| left)
        && let Some(bundle) = finished(&journal)?
    {
        check_whole(&bundle)?;
        return remove_source(path, journal);
    }
    if !path.exists() {
        return Err(gone(path, out));
    }
    let marked = is_marked(path)?;
    let source = match marked {
        true => GgufSource::open_consumed(path)?,
        false => open_whole(path)?,
    };
    if let Some(importance) = &options.importance {
        Weighing::of(&source, options, importance)?;
    }
    // Before anything is done to the files.
    let identity = SourceIdentity::of(path)?;
    let files = Consumed::open(&source)?;
    if is_marked(path)? != marked {
        return Err(changed(path, "another process has begun to give it back"));
    }
    // Of the packed file, and of the journal.
    remove_stale_partials(out);
    remove_stale_partials(path);
    let mut journal = match marked {
        true => go_on(path, &source, (out, options))?,
        // What an earlier file of that name left does not count.
        false => begin(&source, identity, (out, options))?,
    };
    if journal.stored().n == 0 {
        files.mark()?;
    }
    let writer = journal.writer(room::least_bytes(&source, options))?;
    if marked {
        writer.check_written()?;
    }
    let contents = source.network().contents(source.has_predictors());
    // It may have ended before that.
    files.give_back(&source, &contents, 0..journal.stored().n)?;
    let stored = journal.stored().clone();
    let mut given = stored.n;
    let mut packer = Packer::new(&source, options, (writer, stored), progress);
    let step = packer.total / STEPS;
    let mut done = packer.done;
    for (i, &content) in contents.iter().enumerate().skip(given) {
        packer.content(content)?;
        if packer.done - done >= step || i + 1 == contents.len() {
            done = packer.done;
            journal.advance(&packer.writer, &packer.stored)?;
            files.give_back(&source, &contents, given..i + 1)?;
            given = i + 1;
        }
    }
    packer.finish(journal.source().clone(), &Vectors::read(&source)?)?;
    if finished(&journal)?.is_none() {
        let problem = "it is not what was written; what is left of the source stays";
        return Err(ModelError::damaged(out, "packed model", problem));
    }
    remove_source(path, journal)
}

/// Opens a source of which nothing has been given back.
fn open_whole(path: &Path) -> Result<GgufSource> {
    let refuse = |problem: &str| {
        let remedy = "pack it without giving it back";
        Err(ModelError::unsupported(path, "model", problem, remedy))
    };
    if path.is_dir() {
        return refuse("a folder whose files are given back");
    }
    let source = GgufSource::open(path)?;
    if first_bytes(path)? != b"GGUF" {
        return refuse("a PowerInfer file that is given back");
    }
    for file in source.inventory().files() {
        refuse_other_names(file)?;
    }
    Ok(source)
}

/// Refuses a file that has several names: they all would lose the contents.
fn refuse_other_names(file: &Path) -> Result<()> {
    let info = file.metadata();
    let names = info
        .map_err(|e| ModelError::io(file, "look at the model", e))?
        .nlink();
    if names <= 1 {
        return Ok(());
    }
    Err(ModelError::Format {
        path: file.into(),
        field: "hard links".into(),
        problem: format!(
            "the file has {names} names, and would lose its contents under all of them"
        ),
        remedy: "remove the other names (`find -samefile` finds them), or pack without --consume"
            .into(),
    })
}

/// The journal of a conversion that begins.
fn begin(
    source: &GgufSource,
    identity: SourceIdentity,
    (out, options): (&Path, &PackOptions),
) -> Result<Journal> {
    room::check(out, most_beside(source, &outline(source, out, options)?))?;
    let stored = StoredContents::none(source.network());
    let mut journal = Journal::new(source.path(), identity, stored.clone(), (out, options))?;
    journal.advance(&journal.writer(0)?, &stored)?;
    Ok(journal)
}

/// The journal of a conversion that was interrupted.
fn go_on(
    path: &Path,
    source: &GgufSource,
    (out, options): (&Path, &PackOptions),
) -> Result<Journal> {
    let Some(journal) = Journal::of(path)? else {
        return Err(ModelError::Format {
            path: path.into(),
            field: "model".into(),
            problem: "a part was given back while it was packed, and the journal of that is not beside it".into(),
            remedy: "name the model as when it was begun: the journal is there, under the same name with .packing; if \
                     it is lost, download the model again"
                .into(),
        });
    };
    journal.check(out, options)?;
    if journal.stored().n == 0 {
        // Perhaps it ended before all files were marked.
        return Ok(journal);
    }
    for file in source.inventory().files() {
        if !is_marked(file)? {
            return Err(changed(
                file,
                "it was replaced while the model was being packed",
            ));
        }
    }
    let unfinished = Partial::lasting_path(out);
    if !unfinished.exists() {
        let problem = "it is missing, and what it had was given back by the source";
        return Err(ModelError::damaged(
            unfinished,
            "unfinished packed model",
            problem,
        ));
    }
    Ok(journal)
}

fn changed(path: &Path, problem: &str) -> ModelError {
    ModelError::Format {
        path: path.into(),
        field: "model".into(),
        problem: problem.into(),
        remedy: "wait for the other process, or download all files of the model again".into(),
    }
}

/// How many bytes the packed file and what is left of the source take together at most, beyond those of the source:
/// what has been packed is given back in steps, and may be larger than it was.
fn most_beside(source: &GgufSource, outlined: &Bundle) -> u64 {
    // Only whole blocks are given back.
    let lost = 2 * ALIGN as u64;
    let mut packed_bytes: BTreeMap<Content, u64> = BTreeMap::new();
    for entry in &outlined.clusters {
        *packed_bytes.entry(entry.content).or_default() += entry.padded_len() as u64;
    }
    let contents = source.network().contents(source.has_predictors());
    let step = source_bytes(source, &contents) / STEPS;
    let (mut written, mut given, mut kept, mut most) = (ALIGN as u64, 0, 0, 0);
    for content in &contents {
        let n_tensors = tensors_of(source.network(), *content).len() as u64;
        written += packed_bytes.get(content).copied().unwrap_or(0);
        kept += source_bytes(source, &[*content]).saturating_sub(lost * n_tensors);
        most = most.max(written.saturating_sub(given));
        if kept >= step {
            (given, kept) = (given + kept, 0);
        }
    }
    most.max(outlined.file_bytes().saturating_sub(given + kept))
}

/// The packed file, if it has its name: then the conversion had only to end.
fn finished(journal: &Journal) -> Result<Option<Bundle>> {
    let out = journal.out();
    if Partial::lasting_path(out).exists() || !out.exists() {
        return Ok(None);
    }
    match Bundle::open(out) {
        Ok(bundle) => Ok(Some(bundle).filter(|b| b.meta.source == *journal.source())),
        // It may be whole nevertheless.
        Err(e @ ModelError::Io { .. }) => Err(e),
        Err(_) => Ok(None),
    }
}

/// Reads all clusters: nobody has seen them since they were written, and the source is about to go.
fn check_whole(bundle: &Bundle) -> Result<()> {
    let mut bytes = Vec::new();
    let mut clusters = bundle.clusters.iter();
    clusters.try_for_each(|entry| bundle.read_cluster(entry, &mut bytes))
}

/// Why there is no source.
fn gone(path: &Path, out: &Path) -> ModelError {
    let absolute = std::path::absolute(path).unwrap_or_default();
    let packed = Bundle::open(out).ok();
    match packed.filter(|bundle| Path::new(&bundle.meta.source.path) == absolute) {
        None => ModelError::io(
            path,
            "find the model (check the path)",
            ErrorKind::NotFound.into(),
        ),
        Some(_) => ModelError::Format {
            path: path.into(),
            field: "model".into(),
            problem: format!(
                "it was given back when it was packed into {}",
                out.display()
            ),
            remedy: "run that file".into(),
        },
    }
}

/// Removes what is left of the source, its first file last, and then the journal: that tells what to do if it ends
/// here.
fn remove_source(path: &Path, journal: Journal) -> Result<()> {
    for file in crate::gguf::files(path).into_iter().rev() {
        // Where downloads are cached, it is a link: the file goes first, since only the link tells where it is.
        let own = file.canonicalize().ok();
        for file in own.into_iter().chain([file]) {
            match std::fs::remove_file(&file) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    let action = "remove what is left of the model after it was packed";
                    return Err(ModelError::io(file, action, e));
                }
                _ => {}
            }
        }
    }
    journal.remove()
}

/// Whether a file is marked as one that is being given back.
fn is_marked(path: &Path) -> Result<bool> {
    Ok(!path.is_dir() && first_bytes(path)? == CONSUMED)
}

/// The files of a source, to be written to; nobody else gives them back meanwhile.
struct Consumed(Vec<(PathBuf, File)>);

impl Consumed {
    fn open(source: &GgufSource) -> Result<Self> {
        let open = |path: &Path| {
            let io = |action: &str, e| ModelError::io(path, action, e);
            let file = File::options().read(true).write(true).open(path);
            let file = file.map_err(|e| io("write to the model, which is to be given back", e))?;
            let locked = file.try_lock();
            locked.map_err(|e| io("lock the model, which another process may use", e.into()))?;
            let action = "give blocks back on this file system (pack without --consume)";
            may_give_back(&file).map_err(|e| io(action, e))?;
            Ok((path.to_path_buf(), file))
        };
        let files: Result<_> = source.inventory().files().map(open).collect();
        Ok(Self(files?))
    }

    /// Marks all files, the first one first: as long as it is not marked, all are whole.
    fn mark(&self) -> Result<()> {
        for (path, file) in &self.0 {
            let marked = file.write_all_at(CONSUMED, 0);
            let synced = marked.and_then(|()| file.sync_data());
            synced.map_err(|e| ModelError::io(path, "mark the model as being given back", e))?;
        }
        Ok(())
    }

    /// Gives back what only the contents `0..packed.end` are made from, as far as `packed` are made from it.
    fn give_back(
        &self,
        source: &GgufSource,
        contents: &[Content],
        packed: Range<usize>,
    ) -> Result<()> {
        let tensors = |contents: &[Content]| -> BTreeSet<TensorId> {
            let network = source.network();
            let tensors = contents.iter().flat_map(|&c| tensors_of(network, c));
            tensors.collect()
        };
        let (before, after) = contents.split_at(packed.end);
        let (used, now, later) = (
            tensors(before),
            tensors(&before[packed.start..]),
            tensors(after),
        );
        let mut needed = Vec::new();
        let mut free = Vec::new();
        for (id, extents) in source.inventory().extents() {
            if !used.contains(&id) || later.contains(&id) {
                needed.extend(extents);
            } else if now.contains(&id) {
                free.extend(extents);
            }
        }
        // Several tensors may share an extent, but none has a part of another's.
        needed.sort_by_key(|e| (e.file, e.range.start));
        for Extent { file, range } in free {
            let before = needed.partition_point(|e| (e.file, e.range.start) < (file, range.end));
            let last = before.checked_sub(1).map(|i| &needed[i]);
            if last.is_some_and(|e| e.file == file && e.range.end > range.start) {
                continue;
            }
            let (path, file) = &self.0[file];
            let given = give_back(file, &range);
            given.map_err(|e| ModelError::io(path, "give blocks back to the file system", e))?;
        }
        Ok(())
    }
}
