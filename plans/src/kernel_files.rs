//! Reading the kernel's small text files, from the live system or from a tree set up by a test.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::PlanError;

/// No machine has more CPUs; a longer list means a broken file and must not fill memory.
const MOST_CPUS: usize = 1 << 16;

/// Where `/sys` and `/proc` are.
#[derive(Debug, Clone)]
pub struct KernelFiles {
    sys: PathBuf,
    proc: PathBuf,
}

impl KernelFiles {
    /// The running system's `/sys` and `/proc`.
    pub fn live() -> Self {
        Self::at("/sys", "/proc")
    }

    /// Other roots: the tests' made-up machines.
    pub fn at(sys: impl Into<PathBuf>, proc: impl Into<PathBuf>) -> Self {
        Self {
            sys: sys.into(),
            proc: proc.into(),
        }
    }

    /// The path of `rel` below `/sys`.
    pub fn sys_path(&self, rel: impl AsRef<Path>) -> PathBuf {
        self.sys.join(rel)
    }

    /// The trimmed text of a file below `/sys`; `None` if it is absent or unreadable, which is normal: attributes
    /// differ by architecture, kernel and permission.
    pub fn sys_text(&self, rel: impl AsRef<Path>) -> Option<String> {
        text(&self.sys_path(rel))
    }

    /// The number that is the whole content of a file below `/sys`.
    pub fn sys_number<T: std::str::FromStr>(&self, rel: impl AsRef<Path>) -> Option<T> {
        self.sys_text(rel)?.parse().ok()
    }

    /// The text of a file below `/proc` that exists on every Linux.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn proc_text(&self, rel: &str) -> Result<String, PlanError> {
        let path = self.proc.join(rel);
        fs::read_to_string(&path).map_err(|source| PlanError::Read { path, source })
    }

    /// The path of `rel` below `/proc`.
    pub fn proc_path(&self, rel: &str) -> PathBuf {
        self.proc.join(rel)
    }

    /// Where an absolute path that the kernel names (a mount point) is found.
    pub fn rooted(&self, absolute: &Path) -> PathBuf {
        match absolute.strip_prefix("/sys") {
            Ok(rest) => self.sys.join(rest),
            Err(_) => absolute.to_path_buf(),
        }
    }
}

/// The trimmed text of a file; `None` if it cannot be read.
pub(crate) fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

/// The value after `key:` in a file of `key: value` lines, such as `/proc/self/status`.
pub(crate) fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name == key).then(|| value.trim())
    })
}

/// Bytes of a value that the kernel prints in `kB` (which are KiB).
pub(crate) fn kib_value(value: &str) -> Option<u64> {
    let number = value.strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    number.checked_mul(1024)
}

/// What the kernel calls the machine's CPUs: the name of their model, or on ARM the numbers of maker and parts.
pub fn cpu_model(kernel: &KernelFiles) -> String {
    let text = kernel.proc_text("cpuinfo").unwrap_or_default();
    let mut names: Vec<&str> = Vec::new();
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let named = matches!(key.trim(), "model name" | "CPU implementer" | "CPU part");
        if named && !names.contains(&value.trim()) {
            names.push(value.trim());
        }
    }
    match names.is_empty() {
        true => "an unknown CPU".into(),
        false => names.join(" "),
    }
}

/// CPU numbers of a kernel list such as `0-3,8,10-11`, ascending and without repeats; `None` if the text is not such a
/// list.
pub fn parse_cpu_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.trim().parse().ok()?;
        let last: usize = last.trim().parse().ok()?;
        if first > last || last >= MOST_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// The kernel's notation of ascending CPU numbers: `0-3,8`.
pub fn format_cpu_list(cpus: &[usize]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for run in cpus.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [one] => parts.push(one.to_string()),
            [first, .., last] => parts.push(format!("{first}-{last}")),
            [] => {}
        }
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cpu_lists_of_the_kernel_are_read() {
        assert_eq!(
            parse_cpu_list("0-3,8,10-11\n"),
            Some(vec![0, 1, 2, 3, 8, 10, 11])
        );
        assert_eq!(parse_cpu_list(""), Some(vec![]));
        assert_eq!(parse_cpu_list("3,1,1-2"), Some(vec![1, 2, 3]));
        for bad in ["a", "3-1", "0-", "0-4294967295", "-1"] {
            assert_eq!(parse_cpu_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn cpus_have_a_name_or_numbers() {
        let tree = crate::fake_tree::FakeTree::new();
        assert_eq!(cpu_model(&tree.kernel()), "an unknown CPU");
        for (text, name) in [
            (
                "model name\t: A CPU @ 3 GHz\nflags: x\n\nmodel name\t: A CPU @ 3 GHz\n",
                "A CPU @ 3 GHz",
            ),
            (
                "CPU implementer\t: 0x41\nCPU part\t: 0xd80\n\nCPU implementer\t: 0x41\nCPU part\t: 0xd82\n",
                "0x41 0xd80 0xd82",
            ),
        ] {
            tree.put("proc/cpuinfo", text);
            assert_eq!(cpu_model(&tree.kernel()), name);
        }
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = "VmPeak:\t 3060 kB\nVmHWM:\t    1724 kB\n";
        assert_eq!(
            field(status, "VmHWM").and_then(kib_value),
            Some(1724 * 1024)
        );
        assert_eq!(field(status, "Vm"), None);
        assert_eq!(kib_value("99999999999999999 kB"), None);
        assert_eq!(kib_value("12"), None);
    }

    proptest! {
        #[test]
        fn cpu_lists_round_trip(cpus in proptest::collection::btree_set(0usize..300, 0..80)) {
            let cpus: Vec<usize> = cpus.into_iter().collect();
            prop_assert_eq!(parse_cpu_list(&format_cpu_list(&cpus)), Some(cpus));
        }
    }
}
