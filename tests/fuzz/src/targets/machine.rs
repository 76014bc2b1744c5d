//! The machine's profile, and what is looked up in it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use forebay_models::block::BlockType;
use forebay_plans::machine::{Kernel, KernelCase, MACHINE_VERSION, MachineProfile};
use serde_json::json;

use crate::mutate;
use crate::random::Random;
use crate::target::{Placed, Target};

const IDENTITY: &str = "avx2";

struct Machine {
    folder: PathBuf,
    file: Placed,
}

/// Makes the target.
pub fn make(folder: &Path) -> Result<Box<dyn Target>> {
    let file = Placed::new(folder, "machine.json")?;
    Ok(Box::new(Machine {
        folder: folder.into(),
        file,
    }))
}

impl Target for Machine {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let rate =
            json!({"alone": 20e9, "together": 32e9, "read_alone": 30e9, "read_together": 40e9});
        let disk = |size: u64, depth: u64| json!({"block_bytes": size, "depth": depth, "bytes_per_second": 1e9});
        let profile = json!({
            "version": MACHINE_VERSION, "identity": IDENTITY, "cores": [0, 1, 2], "memory": [30e9, 36e9, 40e9],
            "int8": 1e11, "f32": 1e10,
            "kernels": {"gemv/Q4_K/1536": rate, "gemm/F16/64": rate},
            "disks": {"/": {"rates": [disk(4096, 16), disk(65536, 16), disk(4096, 64), disk(1 << 20, 64)]}},
        });
        vec![profile.to_string().into_bytes()]
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        mutate::json::change(input, other, random);
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        self.file.put(input, 0).map_err(|e| e.to_string())?;
        let Some(profile) = MachineProfile::load(&self.folder, IDENTITY) else {
            // A damaged one is replaced by a new measurement; only this tells why.
            let why = serde_json::from_slice::<MachineProfile>(input).err();
            return Err(why.map_or_else(|| "another machine".into(), |e| e.to_string()));
        };
        for threads in [0, 1, 2, 3, usize::MAX] {
            profile.memory_rate(threads);
            for (kernel, format, cols) in [
                (Kernel::Gemv, BlockType::Q4_K, 1536),
                (Kernel::Gemm, BlockType::F16, 64),
            ] {
                let case = KernelCase {
                    kernel,
                    format,
                    cols,
                };
                profile.kernel_rate(&case, threads);
            }
        }
        for disk in profile.disks.values() {
            for (bytes, depth) in [(0.0, 0), (5000.0, 16), (1e5, 64), (1e12, usize::MAX)] {
                disk.seconds_per_read(bytes, depth);
            }
        }
        Ok(())
    }
}
