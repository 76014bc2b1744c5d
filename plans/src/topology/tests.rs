use super::*;
use crate::fake_tree::FakeTree;

fn read(tree: &FakeTree) -> Topology {
    Topology::read_kernel(&tree.kernel()).expect("complete tree")
}

fn classes(topology: &Topology, class: CoreClass) -> Vec<usize> {
    let of_class = topology.cpus.iter().filter(|cpu| cpu.class == class);
    of_class.map(|cpu| cpu.id).collect()
}

/// Two virtual CPUs, equal capacities, no cpufreq.
fn small_vm() -> FakeTree {
    let tree = FakeTree::new();
    tree.cpus("0-1", "0-1");
    for cpu in 0..2 {
        tree.core(&[cpu], 0, None);
        tree.cpu(cpu, "cpu_capacity", 1024);
        tree.cpu(cpu, "topology/cluster_id", 65535);
        tree.cpu(cpu, "cache/index0/level", 1);
        tree.cpu(cpu, "cache/index0/size", "48K");
        tree.cpu(cpu, "cache/index0/shared_cpu_list", cpu);
        tree.cpu(cpu, "cache/index1/level", 3);
        tree.cpu(cpu, "cache/index1/size", "32768K");
        tree.cpu(cpu, "cache/index1/shared_cpu_list", "0-1");
    }
    tree
}

/// 1 Cortex-X4, 5 A720 in two clusters, 2 A520: capacities are dmips/MHz x MHz of the public device tree,
/// scaled to 1024.
fn snapdragon_8_gen_3() -> FakeTree {
    let tree = FakeTree::new();
    tree.cpus("0-7", "0-7");
    let cores = [
        (0..2, 380, 2_265_600, 0),
        (2..5, 924, 3_148_800, 1),
        (5..7, 867, 2_956_800, 2),
        (7..8, 1024, 3_302_400, 3),
    ];
    for (cpus, capacity, khz, cluster) in cores {
        for cpu in cpus {
            tree.core(&[cpu], 0, Some(khz));
            tree.cpu(cpu, "cpu_capacity", capacity);
            tree.cpu(cpu, "topology/cluster_id", cluster);
        }
    }
    tree
}

/// 4 performance cores with SMT, one of them favoured by the turbo, and 8 efficiency cores.
fn laptop() -> FakeTree {
    let tree = FakeTree::new();
    tree.cpus("0-15", "0-15");
    for core in 0..4 {
        let khz = if core == 1 { 4_800_000 } else { 4_700_000 };
        tree.core(&[2 * core, 2 * core + 1], 0, Some(khz));
    }
    for cpu in 8..16 {
        tree.core(&[cpu], 0, Some(3_400_000));
    }
    tree.put("sys/devices/cpu_core/cpus", "0-7\n");
    tree.put("sys/devices/cpu_atom/cpus", "8-15\n");
    tree
}

/// Two sockets of 48 cores with two threads each, siblings 96 apart.
fn server() -> FakeTree {
    let tree = FakeTree::new();
    tree.cpus("0-191", "0-191");
    for core in 0..96 {
        tree.core(&[core, core + 96], core / 48, Some(3_700_000));
    }
    tree
}

#[test]
fn a_small_vm_has_only_big_cores() {
    let topology = read(&small_vm());
    assert_eq!(classes(&topology, CoreClass::Big), [0, 1]);
    assert_eq!(topology.cpus[0].cluster, None);
    assert!(!topology.has_smt());
    assert_eq!(
        topology.last_level_cache_bytes,
        Some(32 << 20),
        "one shared instance"
    );
    assert_eq!(topology.compute_cores(None).unwrap(), [0, 1]);
    assert_eq!(topology.compute_cores(Some(1)).unwrap(), [0]);
}

#[test]
fn more_threads_than_cpus_is_an_error_with_a_remedy() {
    let topology = read(&small_vm());
    let message = topology.compute_cores(Some(3)).unwrap_err().to_string();
    for part in ["3 threads", "2 CPUs", "0-1", "use 2 or fewer", "taskset"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(matches!(
        topology.compute_cores(Some(0)),
        Err(PlanError::NoThreads)
    ));
}

#[test]
fn a_phone_has_one_big_five_mid_two_little() {
    let topology = read(&snapdragon_8_gen_3());
    assert_eq!(classes(&topology, CoreClass::Big), [7]);
    assert_eq!(classes(&topology, CoreClass::Mid), [2, 3, 4, 5, 6]);
    assert_eq!(classes(&topology, CoreClass::Little), [0, 1]);
    assert_eq!(topology.compute_cores(None).unwrap(), [7, 2, 3, 4, 5, 6]);
    assert_eq!(topology.compute_cores(Some(2)).unwrap(), [7, 2]);
    assert_eq!(
        topology.compute_cores(Some(7)).unwrap(),
        [7, 2, 3, 4, 5, 6, 0]
    );
    assert_eq!(topology.cpus[5].cluster, Some(2));
}

#[test]
fn a_phone_without_capacities_still_has_little_cores() {
    let tree = snapdragon_8_gen_3();
    for cpu in 0..8 {
        tree.cpu(cpu, "cpu_capacity", 1024);
    }
    assert_eq!(classes(&read(&tree), CoreClass::Little), [0, 1]);
}

/// Found by reading: turbo steps of one chip's equal cores make more than two tiers.
#[test]
fn preferred_cores_leave_no_little_ones() {
    let tree = FakeTree::new();
    tree.cpus("0-7", "0-7");
    for (cpu, khz) in [5_881, 5_881, 5_600, 5_450, 5_300, 5_150, 5_070, 5_000]
        .into_iter()
        .enumerate()
    {
        tree.core(&[cpu], 0, Some(khz * 1000));
    }
    let topology = read(&tree);
    assert!(classes(&topology, CoreClass::Little).is_empty());
    assert_eq!(topology.compute_cores(None).unwrap().len(), 8);
}

/// Found by reading: a small container on a large machine was to measure beyond the caches of all sockets.
#[test]
fn only_caches_of_allowed_cpus_count() {
    let tree = FakeTree::new();
    tree.cpus("0-3", "2");
    for cpu in 0..4 {
        tree.cpu(cpu, "cache/index0/level", 3);
        tree.cpu(cpu, "cache/index0/size", "98304K");
        let shared = ["0-1", "2-3"][cpu / 2];
        tree.cpu(cpu, "cache/index0/shared_cpu_list", shared);
    }
    assert_eq!(read(&tree).last_level_cache_bytes, Some(96 << 20));
}

#[test]
fn a_process_confined_to_little_cores_computes_there() {
    let tree = snapdragon_8_gen_3();
    tree.cpus("0-7", "0-1");
    let topology = read(&tree);
    assert_eq!(topology.compute_cores(None).unwrap(), [0, 1]);
    assert!(topology.compute_cores(Some(3)).is_err());
}

#[test]
fn a_laptop_uses_one_thread_per_core_and_siblings_on_request() {
    let topology = read(&laptop());
    assert_eq!(
        classes(&topology, CoreClass::Big),
        (0..8).collect::<Vec<_>>()
    );
    assert_eq!(
        classes(&topology, CoreClass::Mid),
        (8..16).collect::<Vec<_>>()
    );
    let default = topology.compute_cores(None).unwrap();
    assert_eq!(
        default,
        [2, 0, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15],
        "the favoured core first"
    );
    let all = topology.compute_cores(Some(16)).unwrap();
    assert_eq!(all[..12], default[..]);
    assert_eq!(all[12..], [3, 1, 5, 7]);
    assert!(topology.has_smt());
}

#[test]
fn efficiency_cores_are_never_big_even_at_the_same_frequency() {
    let tree = laptop();
    for cpu in 8..16 {
        tree.cpu(cpu, "cpufreq/cpuinfo_max_freq", 4_800_000);
    }
    assert_eq!(
        classes(&read(&tree), CoreClass::Mid),
        (8..16).collect::<Vec<_>>()
    );
}

#[test]
fn an_allowed_sibling_counts_as_the_first_thread_of_its_core() {
    let tree = laptop();
    tree.cpus("0-15", "1,3,8");
    let topology = read(&tree);
    assert_eq!(topology.compute_cores(None).unwrap(), [3, 1, 8]);
    assert!(topology.compute_cores(Some(4)).is_err());
}

#[test]
fn a_server_fills_one_socket_before_the_next() {
    let topology = read(&server());
    assert_eq!(
        topology.compute_cores(None).unwrap(),
        (0..96).collect::<Vec<_>>()
    );
    assert_eq!(topology.compute_cores(Some(97)).unwrap()[96], 96);
    assert_eq!(topology.compute_cores(Some(192)).unwrap().len(), 192);
    let packages: BTreeSet<usize> = topology.cpus.iter().map(|cpu| cpu.package).collect();
    assert_eq!(packages, BTreeSet::from([0, 1]));
}

#[test]
fn a_cpu_quota_limits_the_default_but_not_a_wish() {
    for (membership, mount, files, quota) in [
        (
            "1:cpu,cpuacct:/job\n",
            "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
            [
                ("cpu/job/cpu.cfs_quota_us", "350000"),
                ("cpu/job/cpu.cfs_period_us", "100000"),
                ("cpu/cpu.cfs_quota_us", "-1"),
            ],
            3.5,
        ),
        (
            "0::/a/job\n",
            "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            [
                ("a/job/cpu.max", "max 100000"),
                ("a/cpu.max", "50000 100000"),
                ("cpu.weight", "1"),
            ],
            0.5,
        ),
    ] {
        let tree = server();
        tree.put("proc/self/cgroup", membership);
        tree.put("proc/self/mountinfo", mount);
        for (file, text) in files {
            tree.put(format!("sys/fs/cgroup/{file}"), text);
        }
        let topology = read(&tree);
        assert_eq!(topology.cpu_quota, Some(quota));
        let default = topology.compute_cores(None).unwrap();
        assert_eq!(default.len(), (quota as usize).max(1));
        assert_eq!(topology.compute_cores(Some(8)).unwrap().len(), 8);
    }
}

#[test]
fn offline_and_missing_pieces_are_told_apart() {
    let tree = FakeTree::new();
    tree.cpus("0,2", "0-3");
    let topology = read(&tree);
    assert_eq!(
        topology.compute_cores(None).unwrap(),
        [0, 2],
        "no topology files at all"
    );
    tree.cpus("0,2", "1,3");
    let error = Topology::read_kernel(&tree.kernel()).unwrap_err();
    assert!(matches!(error, PlanError::NoUsableCpu { .. }), "{error}");
    tree.cpus("none", "0");
    let message = Topology::read_kernel(&tree.kernel())
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("online") && message.contains("none"),
        "{message}"
    );
}

#[test]
fn without_sys_the_allowed_cpus_are_equal_cores() {
    let tree = FakeTree::new();
    tree.cpus("0-3", "1-2");
    let sys = tree.path("sys");
    std::fs::remove_dir_all(sys).expect("a made-up one");
    let topology = read(&tree);
    assert_eq!(topology.compute_cores(None).unwrap(), [1, 2]);
    assert_eq!(classes(&topology, CoreClass::Big), [1, 2]);
}

#[test]
fn the_running_machine_agrees_with_the_standard_library() {
    let topology = Topology::read().expect("a Linux machine");
    let parallelism = std::thread::available_parallelism().expect("known").get();
    let fed = topology
        .cpu_quota
        .map_or(usize::MAX, |quota| (quota as usize).max(1));
    assert_eq!(topology.allowed().count().min(fed), parallelism);
    assert!(!topology.compute_cores(None).unwrap().is_empty());
}
