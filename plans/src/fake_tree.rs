//! Made-up `/sys` and `/proc` trees for tests: machines that are not available.

use std::fs;
use std::path::Path;

use crate::kernel_files::{KernelFiles, format_cpu_list};

/// A tree that vanishes when dropped.
pub(crate) struct FakeTree {
    dir: tempfile::TempDir,
}

impl FakeTree {
    /// A machine with 8 GB, of which 6 are available, and no control groups.
    pub(crate) fn new() -> Self {
        let tree = Self {
            dir: tempfile::tempdir().expect("temporary folder"),
        };
        tree.put(
            "proc/meminfo",
            "MemTotal:        8000000 kB\nMemFree:          100 kB\n\
             MemAvailable:    6000000 kB\nSwapTotal:             0 kB\n",
        );
        tree.put(
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max locked memory         8388608              unlimited            bytes     \n\
             Max address space         unlimited            unlimited            bytes     \n",
        );
        tree.put("proc/self/cgroup", "");
        tree.put("proc/self/mountinfo", "");
        tree
    }

    /// Writes `text` to a file below the tree's root (`proc/...`, `sys/...`).
    pub(crate) fn put(&self, path: impl AsRef<Path>, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("has a parent")).expect("folder");
        fs::write(path, text).expect("file");
    }

    /// The real path of a file of the tree.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> std::path::PathBuf {
        self.dir.path().join(path)
    }

    /// The tree as the kernel's roots.
    pub(crate) fn kernel(&self) -> KernelFiles {
        KernelFiles::at(self.path("sys"), self.path("proc"))
    }

    /// Sets which CPUs are online and which the process may use.
    pub(crate) fn cpus(&self, online: &str, allowed: &str) {
        self.put("sys/devices/system/cpu/online", &format!("{online}\n"));
        let status = format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\n");
        self.put("proc/self/status", &status);
    }

    /// Writes an attribute of a CPU, such as `cpu_capacity`.
    pub(crate) fn cpu(&self, cpu: usize, attribute: &str, value: impl ToString) {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/{attribute}");
        self.put(path, &format!("{}\n", value.to_string()));
    }

    /// Describes one physical core: its hardware threads, package and maximum frequency.
    pub(crate) fn core(&self, threads: &[usize], package: usize, khz: Option<u64>) {
        for &cpu in threads {
            self.cpu(cpu, "topology/core_id", threads[0]);
            self.cpu(cpu, "topology/physical_package_id", package);
            self.cpu(
                cpu,
                "topology/thread_siblings_list",
                format_cpu_list(threads),
            );
            if let Some(khz) = khz {
                self.cpu(cpu, "cpufreq/cpuinfo_max_freq", khz);
            }
        }
    }
}
