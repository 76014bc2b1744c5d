use super::*;
use crate::fake_tree::FakeTree;

const GIB: u64 = 1 << 30;

fn read(tree: &FakeTree) -> MemoryLimits {
    MemoryLimits::read_from(&tree.kernel()).expect("complete tree")
}

#[test]
fn a_bare_machine_is_limited_by_its_memory() {
    let tree = FakeTree::new();
    tree.put(
        "sys/kernel/mm/transparent_hugepage/enabled",
        "always [madvise] never\n",
    );
    let limits = read(&tree);
    assert_eq!(limits.total_bytes, 8_000_000 * 1024);
    assert_eq!(limits.effective_available(), 6_000_000 * 1024);
    assert_eq!(limits.effective_total(), 8_000_000 * 1024);
    assert!(limits.groups.is_empty() && limits.tightest_group().is_none());
    assert!(limits.lowest_group().is_none());
    assert_eq!(limits.memlock, Rlimit::Bytes(8 << 20));
    assert_eq!(limits.address_space, Rlimit::Unlimited);
    assert_eq!(limits.huge_pages, HugePages::Madvise);
}

#[test]
fn a_kernel_without_control_groups_has_no_limits_of_theirs() {
    let tree = FakeTree::new();
    std::fs::remove_file(tree.path("proc/self/cgroup")).unwrap();
    assert!(read(&tree).groups.is_empty());
}

#[test]
fn the_huge_page_mode_is_the_one_in_brackets() {
    let tree = FakeTree::new();
    assert_eq!(read(&tree).huge_pages, HugePages::Absent);
    for (text, mode) in [
        ("[always] madvise never", HugePages::Always),
        ("always madvise [never]", HugePages::Never),
    ] {
        tree.put("sys/kernel/mm/transparent_hugepage/enabled", text);
        assert_eq!(read(&tree).huge_pages, mode);
    }
}

/// Version 1 with nested groups: the outer one is tighter than the inner.
#[test]
fn nested_v1_groups_limit_together() {
    let tree = FakeTree::new();
    tree.put(
        "proc/self/cgroup",
        "9:name=systemd:/\n4:memory:/outer/in:ner\n1:cpu,cpuacct:/\n0::/\n",
    );
    tree.put(
        "proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
         35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    );
    let memory = "sys/fs/cgroup/memory";
    tree.put(
        format!("{memory}/memory.limit_in_bytes"),
        "9223372036854771712\n",
    );
    tree.put(
        format!("{memory}/outer/memory.limit_in_bytes"),
        &GIB.to_string(),
    );
    tree.put(
        format!("{memory}/outer/memory.usage_in_bytes"),
        &(GIB / 2).to_string(),
    );
    tree.put(
        format!("{memory}/outer/memory.stat"),
        &format!("total_inactive_file {}\ntotal_active_file 0\n", GIB / 4),
    );
    tree.put(
        format!("{memory}/outer/in:ner/memory.limit_in_bytes"),
        &(2 * GIB).to_string(),
    );
    tree.put(format!("{memory}/outer/in:ner/memory.usage_in_bytes"), "0");
    tree.put("sys/fs/cgroup/unified/cgroup.procs", "1\n");

    let limits = read(&tree);
    let of: Vec<u64> = limits
        .groups
        .iter()
        .map(|group| group.limit_bytes)
        .collect();
    assert_eq!(
        of,
        [2 * GIB, GIB],
        "innermost first; the unlimited root drops out"
    );
    assert_eq!(limits.effective_available(), GIB - (GIB / 2 - GIB / 4));
    assert_eq!(limits.effective_total(), GIB);
    let tightest = limits.tightest_group().expect("a group limits");
    assert_eq!(tightest.dir, tree.path(format!("{memory}/outer")));
    assert_eq!(tightest.version, Version::V1);
}

/// A container without a cgroup namespace: its own group is the mount's root, the limit of the groups
/// above shows in `hierarchical_memory_limit` only.
#[test]
fn a_v1_container_sees_the_limit_above_it() {
    let tree = FakeTree::new();
    tree.put("proc/self/cgroup", "4:memory:/docker/abc/job\n");
    tree.put(
        "proc/self/mountinfo",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
    );
    let job = "sys/fs/cgroup/memory/job";
    tree.put(
        format!("{job}/memory.limit_in_bytes"),
        "9223372036854771712",
    );
    tree.put(format!("{job}/memory.usage_in_bytes"), "1000");
    tree.put(
        format!("{job}/memory.stat"),
        "cache 0\nhierarchical_memory_limit 1073741824\n",
    );
    let limits = read(&tree);
    assert_eq!(limits.groups.len(), 1);
    assert_eq!(limits.effective_available(), GIB - 1000);
}

#[test]
fn v2_takes_the_lower_of_max_and_high() {
    let tree = FakeTree::new();
    tree.put("proc/self/cgroup", "0::/user.slice/run\n");
    tree.put(
        "proc/self/mountinfo",
        "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    );
    let run = "sys/fs/cgroup/user.slice/run";
    tree.put(format!("{run}/memory.max"), &(3 * GIB).to_string());
    tree.put(format!("{run}/memory.high"), &(2 * GIB).to_string());
    tree.put(format!("{run}/memory.current"), &GIB.to_string());
    tree.put(
        format!("{run}/memory.stat"),
        "anon 5\ninactive_file 4096\nactive_file 8192\n",
    );
    tree.put("sys/fs/cgroup/user.slice/memory.max", "max\n");
    tree.put("sys/fs/cgroup/user.slice/memory.high", "max\n");
    let limits = read(&tree);
    assert_eq!(limits.groups.len(), 1);
    assert_eq!(limits.effective_available(), GIB + 4096 + 8192);
}

/// In a cgroup namespace, a process moved elsewhere sees `/../other`: only the mount's root is visible.
#[test]
fn a_path_outside_the_namespace_falls_back_to_the_visible_root() {
    let tree = FakeTree::new();
    tree.put("proc/self/cgroup", "0::/../other\n");
    tree.put(
        "proc/self/mountinfo",
        "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    );
    tree.put("sys/fs/cgroup/memory.max", "1048576");
    tree.put("sys/fs/cgroup/memory.current", "2097152");
    let limits = read(&tree);
    assert_eq!(limits.groups.len(), 1);
    assert_eq!(
        limits.effective_available(),
        0,
        "a group over its limit leaves nothing"
    );
}

#[test]
fn a_broken_meminfo_is_named() {
    let tree = FakeTree::new();
    tree.put("proc/meminfo", "MemTotal: lots\n");
    let message = MemoryLimits::read_from(&tree.kernel())
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("meminfo") && message.contains("lots"),
        "{message}"
    );
}

#[test]
fn the_running_machine_is_read() {
    let limits = MemoryLimits::read().expect("a Linux machine");
    assert!(limits.effective_available() > 0);
    assert!(limits.effective_available() <= limits.total_bytes);
    let rss = crate::process::rss_now().expect("status");
    assert!(rss < limits.total_bytes);
}
