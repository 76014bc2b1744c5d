//! What a process holds of the system.
#![allow(
    dead_code,
    reason = "each test binary uses its own part of this module"
)]

use forebay_plans::process::rss_now;

#[derive(Debug)]
pub struct Holdings {
    pub threads: usize,
    pub files: usize,
    pub mappings: usize,
    pub resident: u64,
}

impl Holdings {
    /// Those of this process now.
    pub fn now() -> Self {
        let entries = |folder: &str| std::fs::read_dir(folder).expect("a folder").count();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("a file");
        Self {
            threads: entries("/proc/self/task"),
            files: entries("/proc/self/fd"),
            mappings: maps.lines().count(),
            resident: rss_now().expect("a size"),
        }
    }
}
