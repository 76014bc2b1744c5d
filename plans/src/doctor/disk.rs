//! Findings about the disks of packed models and of the given model.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::{Doctor, ExamineOptions, Finding};
use crate::cache_dir::{self, Candidate};
use crate::error::PlanError;
use crate::kernel_files::KernelFiles;
use crate::size::format_size;
use crate::storage::{BlockDevice, Storage, nearest_existing};

/// Space that should be free if no model is given: a packed 7B model at 4 bits.
const USUAL_NEED: u64 = 5 << 30;

/// Packing pads bundles to pages.
const PACKED_PER_SOURCE_PERCENT: u64 = 110;

pub(super) fn examine(doctor: &mut Doctor, kernel: &KernelFiles, options: &ExamineOptions) {
    let area = "cache disk";
    match cache_folder(options) {
        Ok(folder) => {
            if let Some(storage) = describe(doctor, kernel, area, &folder) {
                let estimated = || {
                    let bytes = options.model.as_deref().and_then(source_bytes);
                    bytes.map(|bytes| bytes / 100 * PACKED_PER_SOURCE_PERCENT)
                };
                let needed = options.packing_bytes.or_else(estimated);
                doctor.findings.push(writable(area, &storage));
                doctor.findings.push(room(area, &storage, needed));
            }
        }
        Err(error) => doctor
            .findings
            .push(Finding::bad(area, "folder", error.to_string())),
    }
    if let Some(model) = &options.model {
        describe(doctor, kernel, "model disk", model);
    }
}

/// The folder that would be used; unlike a run, this does not create it.
fn cache_folder(options: &ExamineOptions) -> Result<PathBuf, PlanError> {
    if let Some(dir) = &options.cache_dir {
        return Ok(dir.clone());
    }
    let found = likely(cache_dir::candidates());
    found.map_or_else(|| cache_dir::prepare(None), Ok)
}

/// The first of the folders that is writable or could be made, else one that is there, else the first.
fn likely(candidates: Vec<Candidate>) -> Option<PathBuf> {
    let writable = |c: &&Candidate| {
        let above = nearest_existing(&c.dir);
        let in_the_way = c.dir.ancestors().any(Path::is_file);
        !in_the_way
            && above.is_ok_and(|dir| access(&dir, Access::WRITE_OK | Access::EXEC_OK).is_ok())
    };
    let found = candidates.iter().find(writable);
    let found = found.or_else(|| candidates.iter().find(|c| c.dir.is_dir()));
    found
        .or(candidates.first())
        .map(|candidate| candidate.dir.clone())
}

/// Bytes of a model file, or of the files in a model's folder.
fn source_bytes(model: &Path) -> Option<u64> {
    let meta = model.metadata().ok()?;
    if meta.is_file() {
        return Some(meta.len());
    }
    let files = model.read_dir().ok()?.filter_map(|entry| {
        let meta = entry.ok()?.path().metadata().ok()?;
        meta.is_file().then_some(meta.len())
    });
    Some(files.fold(0, u64::saturating_add))
}

fn describe(doctor: &mut Doctor, kernel: &KernelFiles, area: &str, path: &Path) -> Option<Storage> {
    let storage = match Storage::of(kernel, path) {
        Ok(storage) => storage,
        Err(error) => {
            doctor
                .findings
                .push(Finding::bad(area, "folder", error.to_string()));
            return None;
        }
    };
    doctor
        .findings
        .push(Finding::good(area, "folder", path.display().to_string()));
    doctor.findings.push(file_system(area, &storage));
    if let Some(device) = &storage.device {
        doctor.findings.push(disk(area, device));
        doctor.findings.extend(scheduler(area, device));
    }
    doctor.storage.push(storage.clone());
    Some(storage)
}

fn file_system(area: &str, storage: &Storage) -> Finding {
    let what = "file system";
    let name = format!("{} on {}", storage.fs_type, storage.source);
    if storage.in_memory() {
        return Finding::bad(area, what, format!("{name}: its files are held in memory"))
            .remedy("set FOREBAY_CACHE, or move the model, to a folder on a disk");
    }
    if storage.is_remote() {
        return Finding::warn(
            area,
            what,
            format!("{name}: reached through a network or another process"),
        )
        .remedy("set FOREBAY_CACHE, or move the model, to a folder on a local disk");
    }
    match storage.fs_type.as_str() {
        "overlay" => Finding::warn(area, what, format!("{name}: a container's layers"))
            .remedy("mount a volume for models (docker -v) and set FOREBAY_CACHE to it"),
        "btrfs" | "zfs" => Finding::warn(
            area,
            what,
            format!("{name}: checksums and compression interfere with direct reads"),
        )
        .remedy("use ext4, xfs or f2fs, or on btrfs a folder with chattr +C"),
        _ => Finding::good(area, what, name),
    }
}

fn disk(area: &str, device: &BlockDevice) -> Finding {
    let mut value = device.name.clone();
    match (device.rotational, device.is_virtual) {
        (true, true) => value.push_str(", virtual (its rotational flag means nothing)"),
        (false, true) => value.push_str(", virtual"),
        (false, false) => value.push_str(", solid state"),
        (true, false) => {
            value.push_str(", rotational: random reads are a thousand times slower than on flash");
            return Finding::bad(area, "disk", value).remedy("use a solid-state disk");
        }
    }
    if let Some(kib) = device.read_ahead_kib {
        value.push_str(&format!(", read-ahead {kib} KiB (not for direct reads)"));
    }
    Finding::good(area, "disk", value)
}

fn scheduler(area: &str, device: &BlockDevice) -> Option<Finding> {
    let name = device.scheduler.as_deref()?;
    if name != "bfq" {
        return Some(Finding::good(area, "scheduler", name));
    }
    let finding = Finding::warn(area, "scheduler", "bfq: costs time for every small read");
    let remedy = format!(
        "echo none | sudo tee /sys/block/{}/queue/scheduler",
        device.name
    );
    Some(finding.remedy(remedy))
}

fn writable(area: &str, storage: &Storage) -> Finding {
    let folder = storage.folder.display();
    let result = access(&storage.folder, Access::WRITE_OK | Access::EXEC_OK);
    match result {
        Ok(()) if !storage.read_only => Finding::good(area, "writable", "yes"),
        result => {
            let why = result.map_or_else(
                |error| std::io::Error::from(error).to_string(),
                |()| "the file system is mounted read-only".to_owned(),
            );
            Finding::bad(area, "writable", format!("no, {folder}: {why}"))
                .remedy("set FOREBAY_CACHE to a writable folder, or pack with `forebay pack -o`")
        }
    }
}

fn room(area: &str, storage: &Storage, needed: Option<u64>) -> Finding {
    let free = storage.free_bytes;
    let remedy = "free space there, or set FOREBAY_CACHE to a folder on another disk";
    match needed {
        Some(need) if free < need => {
            let value = format!(
                "{}, but packing this model needs about {}",
                format_size(free),
                format_size(need)
            );
            Finding::bad(area, "free space", value).remedy(remedy)
        }
        None if free < USUAL_NEED => {
            Finding::warn(area, "free space", format_size(free)).remedy(remedy)
        }
        _ => Finding::good(area, "free space", format_size(free)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_that_a_run_would_take_is_examined() {
        let dir = tempfile::tempdir().unwrap();
        let of = |dir: PathBuf| Candidate {
            dir,
            variable: "HOME",
        };
        let file = dir.path().join("file");
        std::fs::write(&file, "in the way").unwrap();
        let (impossible, good) = (file.join("forebay"), dir.path().join("a/b"));
        let all = vec![of(impossible.clone()), of(good.clone())];
        assert_eq!(likely(all), Some(good));
        assert_eq!(likely(vec![of(impossible.clone())]), Some(impossible));
        assert_eq!(likely(Vec::new()), None);
    }
}
