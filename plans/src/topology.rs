//! Cores, what each is suitable for, and which of them compute.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use crate::cgroup;
use crate::error::PlanError;
use crate::kernel_files::{KernelFiles, field, format_cpu_list, parse_cpu_list};

/// Cores within this share of the strongest of their tier belong to it. Turbo bins of equal cores differ by
/// 2-3 %, and the two A720 clusters of a Snapdragon 8 Gen 3 by 6 %; its X4 is 10 % above them.
const SAME_TIER: f64 = 0.93;

/// Below this share of the strongest core, a core is little: waiting for it costs more than it contributes.
const LITTLE: f64 = 0.5;

/// The same share of frequencies, which hide that little cores also do less per cycle, if there are three tiers. Equal
/// cores of which a chip prefers some are further up: 0.85 of the strongest's.
const LITTLE_BY_FREQUENCY: f64 = 0.75;

/// What a core is suitable for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CoreClass {
    /// As strong as the strongest. On a uniform machine every core is big.
    Big,
    /// Weaker, but worth computing on: performance clusters of phones, efficiency cores of laptops.
    Mid,
    /// For background work.
    Little,
}

/// One logical CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cpu {
    /// The kernel's number of it, for pinning.
    pub id: usize,
    /// Its class.
    pub class: CoreClass,
    /// The physical package (socket) it is on.
    pub package: usize,
    /// The cluster of cores that share a cache; `None` if the kernel does not tell.
    pub cluster: Option<usize>,
    /// All hardware threads of its physical core, itself included, ascending.
    pub siblings: Vec<usize>,
    /// The kernel's measure of its strength, 1024 for the strongest.
    pub capacity: Option<u64>,
    /// Its maximum frequency.
    pub max_khz: Option<u64>,
    /// Whether this process may run on it.
    pub allowed: bool,
}

impl Cpu {
    /// The number that hardware threads of one physical core share.
    pub fn core(&self) -> usize {
        self.siblings.first().copied().unwrap_or(self.id)
    }
}

/// The CPUs that are online and what this process may do with them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Topology {
    /// All online CPUs by ascending number.
    pub cpus: Vec<Cpu>,
    /// CPUs' worth of time that the control groups allow; `None` without a quota.
    pub cpu_quota: Option<f64>,
    /// Bytes of last-level cache that this process's CPUs have, all instances together; `None` if the kernel does not
    /// tell.
    pub last_level_cache_bytes: Option<u64>,
}

impl Topology {
    /// Reads the running system.
    ///
    /// # Errors
    /// `/proc` cannot be read, a list of CPUs cannot be understood, or no online CPU is allowed. Without `/sys`, the
    /// CPUs that the process may use are taken for equal cores.
    pub fn read() -> Result<Self, PlanError> {
        Self::read_kernel(&KernelFiles::live())
    }

    /// Reads a system whose `/sys` and `/proc` are elsewhere.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn read_from(sysfs_root: &Path, proc_root: &Path) -> Result<Self, PlanError> {
        Self::read_kernel(&KernelFiles::at(sysfs_root, proc_root))
    }

    pub(crate) fn read_kernel(kernel: &KernelFiles) -> Result<Self, PlanError> {
        let allowed = allowed_cpus(kernel)?;
        let online = online_cpus(kernel, allowed.as_deref())?;
        let allowed = allowed.unwrap_or_else(|| online.clone());
        let mut cpus: Vec<Cpu> = online
            .iter()
            .map(|&id| describe(kernel, id, &allowed))
            .collect();
        if !cpus.iter().any(|cpu| cpu.allowed) {
            return Err(PlanError::NoUsableCpu {
                online: format_cpu_list(&online),
                allowed: format_cpu_list(&allowed),
            });
        }
        let efficiency = kernel
            .sys_text("devices/cpu_atom/cpus")
            .and_then(|list| parse_cpu_list(&list))
            .unwrap_or_default();
        classify(&mut cpus, &efficiency);
        Ok(Self {
            last_level_cache_bytes: last_level_cache(kernel, &cpus),
            cpu_quota: cgroup::cpu_quota(kernel)?,
            cpus,
        })
    }

    /// CPUs that this process may use.
    pub fn allowed(&self) -> impl Iterator<Item = &Cpu> {
        self.cpus.iter().filter(|cpu| cpu.allowed)
    }

    /// Whether any physical core has several hardware threads.
    pub fn has_smt(&self) -> bool {
        self.cpus.iter().any(|cpu| cpu.siblings.len() > 1)
    }

    /// The CPUs to pin compute threads to, the strongest first.
    ///
    /// Without a number: one hardware thread of each big and mid core (of the little ones if there are no others), but
    /// no more than the CPU quota allows. A second thread of a core adds nothing to a loop that is bound by memory, and
    /// a little core makes all others wait.
    ///
    /// With a number: that many, by class, second hardware threads after all first ones of big and mid cores, little
    /// cores last. The number may exceed the CPU quota.
    ///
    /// # Errors
    /// The number is zero or exceeds the CPUs that this process may use.
    pub fn compute_cores(&self, threads: Option<usize>) -> Result<Vec<usize>, PlanError> {
        let ranked = self.ranked();
        let take = match threads {
            Some(0) => return Err(PlanError::NoThreads),
            Some(asked) if asked > ranked.len() => {
                let mut cpus: Vec<usize> = ranked.iter().map(|(_, id)| *id).collect();
                cpus.sort_unstable();
                return Err(PlanError::TooManyThreads {
                    asked,
                    allowed: cpus.len(),
                    cpus: format_cpu_list(&cpus),
                });
            }
            Some(asked) => asked,
            None => self.default_threads(&ranked),
        };
        Ok(ranked.into_iter().take(take).map(|(_, id)| id).collect())
    }

    fn default_threads(&self, ranked: &[(Rank, usize)]) -> usize {
        // The first is the best available; a phone's background set may contain only little cores.
        let best_little = ranked.first().is_some_and(|(rank, _)| rank.little);
        let firsts = ranked
            .iter()
            .filter(|(rank, _)| !rank.second_thread && rank.little == best_little)
            .count();
        // Threads above the quota are all stopped together in each period.
        let fed = self.cpu_quota.map_or(usize::MAX, |quota| quota as usize);
        firsts.min(fed).max(1)
    }

    /// Allowed CPUs in the order in which they should be used.
    fn ranked(&self) -> Vec<(Rank, usize)> {
        let mut seen = BTreeSet::new();
        let mut ranked: Vec<(Rank, usize)> = self
            .allowed()
            .map(|cpu| {
                let rank = Rank {
                    little: cpu.class == CoreClass::Little,
                    // The lowest allowed thread of a core is its first: siblings may be forbidden.
                    second_thread: !seen.insert(cpu.core()),
                    class: cpu.class,
                    package: cpu.package,
                    weakness: u64::MAX - strength(cpu),
                };
                (rank, cpu.id)
            })
            .collect();
        ranked.sort_unstable();
        ranked
    }
}

/// Sort key of a CPU, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    little: bool,
    second_thread: bool,
    class: CoreClass,
    package: usize,
    weakness: u64,
}

fn strength(cpu: &Cpu) -> u64 {
    cpu.capacity.or(cpu.max_khz).unwrap_or(0)
}

/// CPUs that are online; `allowed` where there is no `/sys` to say so.
fn online_cpus(kernel: &KernelFiles, allowed: Option<&[usize]>) -> Result<Vec<usize>, PlanError> {
    let rel = "devices/system/cpu/online";
    let list = kernel.sys_text(rel);
    if let (None, Some(allowed)) = (&list, allowed) {
        return Ok(allowed.to_vec());
    }
    let list = list.unwrap_or_default();
    parse_cpu_list(&list)
        .filter(|cpus| !cpus.is_empty())
        .ok_or_else(|| PlanError::Malformed {
            path: kernel.sys_path(rel),
            field: "online CPUs",
            text: list,
            expected: "a CPU list such as 0-3",
        })
}

/// The CPUs in the process's mask; `None` if the kernel does not list them.
fn allowed_cpus(kernel: &KernelFiles) -> Result<Option<Vec<usize>>, PlanError> {
    let status = kernel.proc_text("self/status")?;
    let Some(list) = field(&status, "Cpus_allowed_list") else {
        return Ok(None);
    };
    parse_cpu_list(list)
        .map(Some)
        .ok_or_else(|| PlanError::Malformed {
            path: kernel.proc_path("self/status"),
            field: "Cpus_allowed_list",
            text: list.to_owned(),
            expected: "a CPU list such as 0-3",
        })
}

fn describe(kernel: &KernelFiles, id: usize, allowed: &[usize]) -> Cpu {
    let dir = format!("devices/system/cpu/cpu{id}");
    let attribute = |name: &str| format!("{dir}/{name}");
    let number = |name: &str| kernel.sys_number::<i64>(attribute(name));
    let siblings = kernel
        .sys_text(attribute("topology/thread_siblings_list"))
        .and_then(|list| parse_cpu_list(&list))
        .filter(|siblings| siblings.contains(&id))
        .unwrap_or_else(|| vec![id]);
    // The kernel prints -1, on x86 also 65535, if it knows no package or cluster.
    let known = |value: i64| usize::try_from(value).ok().filter(|&v| v != 65535);
    Cpu {
        id,
        class: CoreClass::Big,
        package: number("topology/physical_package_id")
            .and_then(known)
            .unwrap_or(0),
        cluster: number("topology/cluster_id").and_then(known),
        siblings,
        capacity: kernel.sys_number(attribute("cpu_capacity")),
        max_khz: kernel.sys_number(attribute("cpufreq/cpuinfo_max_freq")),
        allowed: allowed.contains(&id),
    }
}

/// Sets the class of each CPU from its capacity, or from its frequency if capacities do not differ.
///
/// `efficiency` are the CPUs that a hybrid x86 kernel lists as such; they are never big.
fn classify(cpus: &mut [Cpu], efficiency: &[usize]) {
    let capacities = measure(cpus, |cpu| cpu.capacity).filter(|values| !all_equal(values));
    let by_capacity = capacities.is_some();
    let Some(values) = capacities.or_else(|| measure(cpus, |cpu| cpu.max_khz)) else {
        return;
    };
    let tiers = tiers(&values);
    let strongest = tiers.first().copied().unwrap_or(1);
    for (cpu, &value) in cpus.iter_mut().zip(&values) {
        // Each value is at most its tier's head, and the tiers cover all values.
        let tier = tiers.iter().rposition(|&head| value <= head).unwrap_or(0);
        let share = value as f64 / strongest as f64;
        let last_of_many = !by_capacity && tiers.len() > 2 && tier + 1 == tiers.len();
        let little = match last_of_many {
            true => LITTLE_BY_FREQUENCY,
            false => LITTLE,
        };
        cpu.class = if tier == 0 {
            CoreClass::Big
        } else if share < little {
            CoreClass::Little
        } else {
            CoreClass::Mid
        };
        if efficiency.contains(&cpu.id) {
            cpu.class = cpu.class.max(CoreClass::Mid);
        }
    }
}

/// One value per CPU, if all have it.
fn measure(cpus: &[Cpu], of: impl Fn(&Cpu) -> Option<u64>) -> Option<Vec<u64>> {
    cpus.iter().map(|cpu| of(cpu).filter(|&v| v > 0)).collect()
}

fn all_equal(values: &[u64]) -> bool {
    values.windows(2).all(|pair| pair[0] == pair[1])
}

/// The strongest value of each tier, descending.
fn tiers(values: &[u64]) -> Vec<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let mut heads: Vec<u64> = Vec::new();
    for value in sorted {
        match heads.last() {
            Some(&head) if value as f64 >= head as f64 * SAME_TIER => {}
            _ => heads.push(value),
        }
    }
    heads
}

/// Bytes of those instances of the highest cache level that allowed CPUs share.
fn last_level_cache(kernel: &KernelFiles, cpus: &[Cpu]) -> Option<u64> {
    let mut instances: BTreeSet<(u32, String, u64)> = BTreeSet::new();
    for cpu in cpus.iter().filter(|cpu| cpu.allowed) {
        for index in 0..8 {
            let dir = format!("devices/system/cpu/cpu{}/cache/index{index}", cpu.id);
            let Some(level) = kernel.sys_number::<u32>(format!("{dir}/level")) else {
                break;
            };
            let size = kernel.sys_text(format!("{dir}/size"));
            let bytes = size.and_then(|size| crate::size::parse_size(&size).ok());
            let shared = kernel.sys_text(format!("{dir}/shared_cpu_list"));
            if let (Some(bytes), Some(shared)) = (bytes, shared) {
                instances.insert((level, shared, bytes));
            }
        }
    }
    let top = instances.iter().map(|(level, ..)| *level).max()?;
    let last = instances.iter().filter(|(level, ..)| *level == top);
    Some(last.map(|(.., bytes)| bytes).sum())
}

#[cfg(test)]
mod tests;
