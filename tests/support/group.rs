//! A memory control group around a child process: the kernel's own check of a budget.
#![allow(
    dead_code,
    reason = "each test binary uses its own part of this module"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_plans::cgroup::{Version, groups};
use forebay_plans::kernel_files::KernelFiles;

/// A control group below the test's own one, with a limit; removed when dropped.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
    version: Version,
}

impl Group {
    /// Makes a group with a limit of `bytes`. `None`, and a line that says so, where the system does not
    /// let this process make one.
    pub fn new(bytes: u64) -> Option<Self> {
        static GROUPS: AtomicU32 = AtomicU32::new(0);
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-test-{}-{number}", std::process::id());
        let parents = groups(&KernelFiles::live(), "memory").unwrap_or_default();
        let mut reasons = Vec::new();
        for parent in &parents {
            let group = Self {
                folder: parent.dir.join(&name),
                version: parent.version,
            };
            match std::fs::create_dir(&group.folder).and_then(|()| group.limit(bytes)) {
                Ok(()) => return Some(group),
                Err(e) => reasons.push(format!("{}: {e}", group.folder.display())),
            }
        }
        eprintln!(
            "SKIPPED: no memory control group can be made here ({})",
            reasons.join("; ")
        );
        None
    }

    fn limit(&self, bytes: u64) -> std::io::Result<()> {
        // Without swap limits a machine with swap would page out instead of killing.
        let (limit, swap) = match self.version {
            Version::V1 => (
                "memory.limit_in_bytes",
                ("memory.memsw.limit_in_bytes", bytes),
            ),
            Version::V2 => ("memory.max", ("memory.swap.max", 0)),
        };
        write_existing(&self.folder.join(limit), bytes)?;
        if self.folder.join(swap.0).exists() {
            write_existing(&self.folder.join(swap.0), swap.1)?;
        }
        Ok(())
    }

    /// The command as a member of the group from its first instruction on.
    pub fn run(&self, command: &Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        shell.arg(self.folder.join("cgroup.procs"));
        shell.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell
    }

    /// How often the limit was hit (the kernel then reclaims page cache before anything else).
    pub fn times_at_limit(&self) -> u64 {
        match self.version {
            Version::V1 => self.number("memory.failcnt"),
            Version::V2 => self.counter("memory.events", "max "),
        }
    }

    /// The most that was ever charged to the group, page cache and kernel memory included, in bytes;
    /// 0 where the kernel does not say.
    pub fn peak(&self) -> u64 {
        self.number(match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        })
    }

    /// Members that the kernel has killed for memory; 0 where the kernel does not say.
    pub fn kills(&self) -> u64 {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        self.counter(file, "oom_kill ")
    }

    fn number(&self, file: &str) -> u64 {
        self.text(file).trim().parse().unwrap_or(0)
    }

    fn counter(&self, file: &str, key: &str) -> u64 {
        let text = self.text(file);
        let value = text.lines().find_map(|line| line.strip_prefix(key));
        value.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
    }

    fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.join(file)).unwrap_or_default()
    }
}

/// Writes to an interface file, which must not be created where it is absent.
fn write_existing(file: &Path, value: u64) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new().write(true).open(file)?;
    file.write_all(value.to_string().as_bytes())
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel may still be taking the last member out.
        let end = Instant::now() + Duration::from_secs(5);
        while self.folder.exists()
            && std::fs::remove_dir(&self.folder).is_err()
            && Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
