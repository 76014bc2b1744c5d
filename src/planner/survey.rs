//! The hardware profile without a model: what `forebay doctor` measures and keeps.

use std::path::Path;

use forebay_actors::io::DriverChoice;
use forebay_actors::io::probe::probe_file;
use forebay_models::block::BlockType;
use forebay_plans::machine::{DiskProfile, Kernel, KernelCase, MachineProfile};
use forebay_plans::topology::{CoreClass, Topology};
use forebay_stages::kernels::KernelTable;

use super::measure::{add_kernels, disk_of, identity, measure_cores, measure_disk, remarks};
use crate::error::Error;

/// Bytes of a file that is written to be read where there is no packed model.
const PROBE_BYTES: u64 = 256 << 20;
/// Width of the matrices that stand for any model's.
const COLS: usize = 4096;
/// Formats that most models have.
const FORMATS: [BlockType; 4] = [
    BlockType::Q4_0,
    BlockType::Q4_K,
    BlockType::Q6_K,
    BlockType::Q8_0,
];

/// Measures cores, usual kernels and the disk under `folder` (with reads of `file`, if there is one), unless that was
/// done before and not `anew`; keeps it in `folder`. `progress` is told the share that is done.
///
/// # Errors
/// The machine cannot be measured, or the folder cannot be written.
pub fn survey(
    folder: &Path,
    file: Option<&Path>,
    threads: Option<usize>,
    anew: bool,
    progress: &mut dyn FnMut(f64),
) -> Result<(MachineProfile, DiskProfile), Error> {
    let kernels = KernelTable::best();
    let topology = Topology::read()?;
    let cores = topology.compute_cores(threads)?;
    let kept = MachineProfile::load(folder, &identity(&kernels, &cores)).filter(|_| !anew);
    let mut machine = match kept {
        Some(kept) => kept,
        None => measure_cores(kernels, &cores)?,
    };
    progress(0.1);
    let name = disk_of(file.unwrap_or(folder));
    let disk = match machine.disks.get(&name).filter(|_| !anew) {
        Some(disk) => disk.clone(),
        None => {
            let written = match file {
                Some(_) => None,
                None => {
                    let written = probe_file(folder, PROBE_BYTES);
                    Some(written.map_err(|e| Error::Request(e.to_string()))?)
                }
            };
            let path = written
                .as_ref()
                .map(|f| f.path())
                .or(file)
                .unwrap_or(folder);
            let mut disk = measure_disk(path, DriverChoice::Auto, &mut |done, all| {
                progress(0.1 + 0.4 * done as f64 / all as f64);
            })?;
            disk.remarks = remarks(path, DriverChoice::Auto, &issuers(&topology));
            disk
        }
    };
    machine.disks.insert(name, disk.clone());
    let cases: Vec<KernelCase> = FORMATS
        .into_iter()
        .flat_map(|format| {
            [
                Kernel::Gemv,
                Kernel::Gemm,
                Kernel::DotGathered,
                Kernel::AxpyGathered,
            ]
            .map(|kernel| KernelCase {
                kernel,
                format,
                cols: COLS,
            })
        })
        .collect();
    add_kernels(&mut machine, kernels, &cases, &mut |done, all| {
        progress(0.5 + 0.5 * done as f64 / all as f64);
    })?;
    machine.save(folder)?;
    Ok((machine, disk))
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
