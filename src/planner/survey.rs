//! Surveys the machine: what was measured before, what is measured now, and where it is saved.

use std::io::ErrorKind;
use std::path::Path;

use forebay_actors::io::DriverChoice;
use forebay_actors::io::probe::probe_file;
use forebay_models::block::BlockType;
use forebay_plans::error::PlanError;
use forebay_plans::machine::{DiskProfile, Kernel, KernelCase, MachineProfile};
use forebay_plans::process::forget_peak;
use forebay_plans::topology::{CoreClass, Topology};
use forebay_stages::kernels::KernelTable;

use super::measure::{
    add_kernels, disk_of, identity, measure_cores, measure_disk, measure_memory, remarks,
};
use crate::error::Error;

/// Bytes of the file that is written for measuring the disk if there is no packed model.
const PROBE_BYTES: u64 = 256 << 20;
/// Width of the matrices that represent any model's.
const COLS: usize = 4096;
/// Formats that most models have.
const FORMATS: [BlockType; 4] = [
    BlockType::Q4_0,
    BlockType::Q4_K,
    BlockType::Q6_K,
    BlockType::Q8_0,
];

/// What is measured before the profile is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// What has never been measured, or only while something else used the memory.
    Missing,
    /// That, and what changes from minute to minute: memory and disk.
    Now,
    /// Everything.
    Anew,
}

/// What is known about a machine for one model.
pub(crate) struct Known {
    pub machine: MachineProfile,
    pub disk: DiskProfile,
    /// Why it was not saved, if its folder may only be read.
    pub unsaved: Option<String>,
}

/// A survey of the machine. It always covers all cores that compute by default, regardless of how many a model or a
/// flag uses: there is one profile, and the rates of fewer cores follow from it.
pub(crate) struct Survey<'a> {
    pub kernels: KernelTable,
    /// Where the profile is saved.
    pub folder: &'a Path,
    /// The file with which the disk is measured; if there is none, one is written into the folder.
    pub file: Option<&'a Path>,
    pub driver: DriverChoice,
    pub measure: Measure,
}

impl Survey<'_> {
    /// Measures what is to be measured, and the kernels for `cases` that are missing, and saves it. `progress` receives
    /// the share done.
    ///
    /// # Errors
    /// The machine cannot be measured, or the folder is full.
    pub fn take(
        &self,
        cases: &[KernelCase],
        progress: &mut dyn FnMut(f64),
    ) -> Result<Known, Error> {
        let cores = Topology::read()?.compute_cores(None)?;
        let kept = match self.measure {
            Measure::Anew => None,
            _ => MachineProfile::load(self.folder, &identity(&self.kernels, &cores)),
        };
        let mut machine = match kept {
            Some(mut kept) => {
                if kept.unsteady || self.measure == Measure::Now {
                    measure_memory(&mut kept)?;
                }
                kept
            }
            None => measure_cores(self.kernels, &cores)?,
        };
        progress(0.1);
        let name = disk_of(self.file.unwrap_or(self.folder));
        let disk = match machine.disks.remove(&name) {
            Some(disk) if self.measure == Measure::Missing => disk,
            kept => DiskProfile {
                remarks: kept.map(|disk| disk.remarks).unwrap_or_default(),
                ..self.disk(&mut |share| progress(0.1 + 0.4 * share))?
            },
        };
        machine.disks.insert(name, disk.clone());
        add_kernels(&mut machine, self.kernels, cases, &mut |done, all| {
            progress(0.5 + 0.5 * done as f64 / all as f64);
        })?;
        // What was measured with is no part of a run's memory.
        forget_peak();
        Ok(Known {
            unsaved: save(&machine, self.folder)?,
            machine,
            disk,
        })
    }

    fn disk(&self, progress: &mut dyn FnMut(f64)) -> Result<DiskProfile, Error> {
        with_file(self.folder, self.file, |file| {
            measure_disk(file, self.driver, &mut |done, all| {
                progress(done as f64 / all as f64);
            })
        })
    }
}

/// Saves the profile, or says why not if the folder may only be read: then the machine is measured again the next time.
///
/// # Errors
/// The folder is full, or its disk fails.
fn save(machine: &MachineProfile, folder: &Path) -> Result<Option<String>, Error> {
    match machine.save(folder) {
        Ok(_) => Ok(None),
        Err(PlanError::Write { path, source })
            if matches!(
                source.kind(),
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            let why = format!("{}: {source}", path.display());
            tracing::warn!(why, "what was measured of the machine is not saved");
            Ok(Some(why))
        }
        Err(e) => Err(e.into()),
    }
}

/// What `forebay doctor` shows: cores, common kernels and the disk under `folder` (with reads of `file`, if there is
/// one), measured if they were not before or if `again`, and saved in `folder`. `progress` receives the share done.
///
/// # Errors
/// The machine cannot be measured, or the folder is full.
pub fn survey(
    folder: &Path,
    file: Option<&Path>,
    again: bool,
    progress: &mut dyn FnMut(f64),
) -> Result<(MachineProfile, DiskProfile), Error> {
    let survey = Survey {
        kernels: KernelTable::best(),
        folder,
        file,
        driver: DriverChoice::Auto,
        measure: match again {
            true => Measure::Anew,
            false => Measure::Missing,
        },
    };
    let known = survey.take(&usual_cases(), progress)?;
    let (mut machine, mut disk) = (known.machine, known.disk);
    if disk.remarks.is_empty() {
        let issuers = issuers(&Topology::read()?);
        disk.remarks = with_file(folder, file, |file| {
            Ok(remarks(file, DriverChoice::Auto, &issuers))
        })?;
        let name = disk_of(file.unwrap_or(folder));
        machine.disks.insert(name, disk.clone());
        save(&machine, folder)?;
    }
    Ok((machine, disk))
}

/// Calls `read` with `file`, or with one that is written into `folder` for it.
fn with_file<T>(
    folder: &Path,
    file: Option<&Path>,
    read: impl FnOnce(&Path) -> Result<T, Error>,
) -> Result<T, Error> {
    match file {
        Some(file) => read(file),
        None => {
            let written = probe_file(folder, PROBE_BYTES);
            read(
                written
                    .map_err(|e| Error::system("measure the disk", e))?
                    .path(),
            )
        }
    }
}

/// Kernels that most models need.
fn usual_cases() -> Vec<KernelCase> {
    let kernels = [
        Kernel::Gemv,
        Kernel::Gemm,
        Kernel::DotGathered,
        Kernel::AxpyGathered,
    ];
    let of = |format| {
        kernels.map(|kernel| KernelCase {
            kernel,
            format,
            cols: COLS,
        })
    };
    FORMATS.into_iter().flat_map(of).collect()
}

/// The first core of each class.
fn issuers(topology: &Topology) -> Vec<(String, usize)> {
    let classes = [
        (CoreClass::Big, "big"),
        (CoreClass::Mid, "mid"),
        (CoreClass::Little, "little"),
    ];
    let first = |class| topology.allowed().find(|cpu| cpu.class == class);
    classes
        .into_iter()
        .filter_map(|(class, name)| Some((name.to_string(), first(class)?.id)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_may_only_be_read_is_no_error() {
        let machine = MachineProfile::empty("test".into(), vec![0]);
        // Even the superuser may not make files here.
        let why = save(&machine, Path::new("/sys")).unwrap();
        assert!(why.is_some_and(|why| why.contains("/sys/machine.json")));
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(save(&machine, folder.path()).unwrap(), None);
        assert!(save(&machine, &folder.path().join("none")).is_err());
    }
}
