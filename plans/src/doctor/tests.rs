use super::*;
use crate::fake_tree::FakeTree;

fn examine(tree: &FakeTree, options: ExamineOptions) -> Doctor {
    let cache_dir = options.cache_dir.or_else(|| Some(tree.path("cache")));
    Doctor::examine_kernel(
        &tree.kernel(),
        &ExamineOptions {
            cache_dir,
            ..options
        },
    )
}

/// A machine with nothing to complain about.
fn healthy() -> FakeTree {
    let tree = FakeTree::new();
    tree.cpus("0-1", "0-1");
    tree.put(
        "sys/kernel/mm/transparent_hugepage/enabled",
        "always [madvise] never\n",
    );
    tree.put(
        "proc/self/limits",
        "Max locked memory         unlimited            unlimited            bytes\n",
    );
    tree.put(
        "proc/self/mountinfo",
        "27 1 259:2 / / rw - ext4 /dev/nvme0n1 rw\n",
    );
    let disk = "sys/dev/block/259:2";
    tree.put(format!("{disk}/queue/rotational"), "0");
    tree.put(format!("{disk}/queue/scheduler"), "[none] bfq");
    tree
}

#[test]
fn as_much_as_is_registered_may_be_locked() {
    let tree = healthy();
    let limit = "Max locked memory   67108864   67108864  bytes\n";
    tree.put("proc/self/limits", limit);
    let doctor = examine(&tree, ExamineOptions::default());
    let locked = find(&doctor, "memory", "lockable (memlock)");
    assert_eq!(locked.status, Status::Good, "{locked:?}");
}

fn find<'a>(doctor: &'a Doctor, area: &str, what: &str) -> &'a Finding {
    let found = doctor
        .findings
        .iter()
        .find(|f| f.area == area && f.what == what);
    found.unwrap_or_else(|| panic!("no finding {area}/{what} in\n{doctor}"))
}

#[test]
fn a_healthy_machine_gets_no_remedies_but_for_its_instructions_and_room() {
    let doctor = examine(&healthy(), ExamineOptions::default());
    // These two are this machine's own.
    let own = ["int8 dot product", "free space"];
    for finding in doctor
        .findings
        .iter()
        .filter(|f| !own.contains(&f.what.as_str()))
    {
        assert_eq!(finding.status, Status::Good, "{finding:?}");
        assert_eq!(finding.remedy, None);
    }
    assert_eq!(find(&doctor, "cores", "classes").value, "2 big (0-1)");
    assert_eq!(
        find(&doctor, "cores", "compute threads").value,
        "2 (CPUs 0-1)"
    );
    assert!(doctor.bandwidth.is_empty(), "0 rounds skip the measurement");
}

/// A file that makes the healthy machine ill, and how the doctor must see it.
struct Ill {
    file: &'static str,
    text: &'static str,
    finding: (&'static str, &'static str, Status),
    remedy: &'static str,
}

const ILLS: [Ill; 10] = [
    Ill {
        file: "sys/kernel/mm/transparent_hugepage/enabled",
        text: "always madvise [never]",
        finding: ("memory", "huge pages", Status::Warn),
        remedy: "madvise",
    },
    Ill {
        file: "proc/self/limits",
        text: "Max locked memory   8388608   8388608  bytes",
        finding: ("memory", "lockable (memlock)", Status::Warn),
        remedy: "ulimit -l",
    },
    Ill {
        file: "proc/self/limits",
        text: "Max address space   8388608   8388608  bytes",
        finding: ("memory", "address space", Status::Warn),
        remedy: "ulimit -v",
    },
    Ill {
        file: "proc/meminfo",
        text: "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\nSwapTotal: 4096 kB",
        finding: ("memory", "swap", Status::Warn),
        remedy: "swapoff",
    },
    Ill {
        file: "proc/meminfo",
        text: "MemTotal: 8000000 kB\nMemAvailable: 100000 kB\nSwapTotal: 0 kB",
        finding: ("memory", "available", Status::Warn),
        remedy: "raise the limit",
    },
    Ill {
        file: "proc/self/mountinfo",
        text: "27 1 0:9 / / rw - tmpfs none rw",
        finding: ("cache disk", "file system", Status::Bad),
        remedy: "FOREBAY_CACHE",
    },
    Ill {
        file: "proc/self/mountinfo",
        text: "27 1 0:9 / / rw - fuse.sshfs host: rw",
        finding: ("cache disk", "file system", Status::Warn),
        remedy: "local disk",
    },
    Ill {
        file: "proc/self/mountinfo",
        text: "27 1 259:2 / / ro - ext4 /dev/sda ro",
        finding: ("cache disk", "writable", Status::Bad),
        remedy: "FOREBAY_CACHE",
    },
    Ill {
        file: "sys/dev/block/259:2/queue/rotational",
        text: "1",
        finding: ("cache disk", "disk", Status::Bad),
        remedy: "solid-state",
    },
    Ill {
        file: "sys/dev/block/259:2/queue/scheduler",
        text: "none [bfq]",
        finding: ("cache disk", "scheduler", Status::Warn),
        remedy: "echo none",
    },
];

#[test]
fn each_ill_is_found_with_its_remedy() {
    for ill in &ILLS {
        let tree = healthy();
        tree.put(ill.file, ill.text);
        let doctor = examine(&tree, ExamineOptions::default());
        let (area, what, status) = ill.finding;
        let finding = find(&doctor, area, what);
        assert_eq!(finding.status, status, "{finding:?}");
        let given = finding.remedy.as_deref().unwrap_or_default();
        assert!(given.contains(ill.remedy), "{finding:?}");
    }
}

#[test]
fn what_cannot_be_read_is_a_finding() {
    let tree = healthy();
    tree.cpus("", "0");
    std::fs::remove_file(tree.path("proc/meminfo")).unwrap();
    std::fs::remove_file(tree.path("proc/self/mountinfo")).unwrap();
    let options = ExamineOptions {
        bandwidth_rounds: 1,
        ..ExamineOptions::default()
    };
    let doctor = examine(&tree, options);
    for (area, what) in [
        ("cores", "topology"),
        ("memory", "limits"),
        ("cache disk", "folder"),
    ] {
        assert_eq!(find(&doctor, area, what).status, Status::Bad);
    }
    assert!(doctor.topology.is_none() && doctor.memory.is_none() && doctor.bandwidth.is_empty());
}

#[test]
fn too_many_threads_is_bad_and_a_quota_warns() {
    let tree = healthy();
    tree.put("proc/self/cgroup", "0::/\n");
    tree.put(
        "proc/self/mountinfo",
        "27 1 259:2 / / rw - ext4 /dev/sda rw\n30 24 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n",
    );
    tree.put("sys/fs/cgroup/cpu.max", "150000 100000\n");
    tree.put("sys/fs/cgroup/memory.max", "4294967296\n");
    tree.put("sys/fs/cgroup/memory.current", "1073741824\n");
    let options = ExamineOptions {
        threads: Some(3),
        ..ExamineOptions::default()
    };
    let doctor = examine(&tree, options);
    assert_eq!(
        find(&doctor, "cores", "compute threads").status,
        Status::Bad
    );
    assert_eq!(find(&doctor, "cores", "CPU quota").status, Status::Warn);
    let group = find(&doctor, "memory", "control group");
    assert!(
        group.value.starts_with("3.00 GiB of 4.00 GiB left"),
        "{group:?}"
    );
}

#[test]
fn room_for_the_packed_model_is_checked() {
    let tree = healthy();
    let folder = tree.path("model");
    std::fs::create_dir_all(&folder).unwrap();
    // Sparse: more bytes than any disk of a test machine has free, none of them written.
    let file = std::fs::File::create(folder.join("model.safetensors")).unwrap();
    file.set_len(8 << 40).unwrap();
    let options = ExamineOptions {
        model: Some(folder),
        ..ExamineOptions::default()
    };
    // What has been packed needs no more.
    let packed = ExamineOptions {
        packing_bytes: Some(0),
        ..options.clone()
    };
    let room = examine(&tree, packed);
    let room = find(&room, "cache disk", "free space");
    assert_eq!(room.status, Status::Good, "{room:?}");
    let doctor = examine(&tree, options);
    let room = find(&doctor, "cache disk", "free space");
    assert_eq!(room.status, Status::Bad);
    assert!(room.value.contains("8.80 TiB"), "{room:?}");
    assert_eq!(
        find(&doctor, "model disk", "file system").value,
        "ext4 on /dev/nvme0n1"
    );
    assert_eq!(doctor.storage.len(), 2);
}

#[test]
fn the_table_and_the_json_carry_all_findings() {
    let extra = vec![
        Finding::warn("ring", "io_uring", "missing").remedy("use Linux 5.11 or later"),
        Finding::good("ring", "depth", "64"),
    ];
    let options = ExamineOptions {
        extra,
        ..ExamineOptions::default()
    };
    let doctor = examine(&healthy(), options);
    let table = doctor.to_string();
    let width = doctor.findings.iter().map(|f| f.what.len()).max().unwrap();
    let expected = format!(
        "ring\n  warn  {:width$}  missing\n        {:width$}  -> use Linux 5.11 or later\n  \
         ok    {:width$}  64\n",
        "io_uring", "", "depth"
    );
    assert!(table.contains(&expected), "{table}");
    let json = serde_json::to_value(&doctor).unwrap();
    let findings = json["findings"].as_array().unwrap();
    assert_eq!(findings.len(), doctor.findings.len());
    let ring = &findings[findings.len() - 2];
    assert_eq!(ring["status"], "warn");
    assert_eq!(ring["remedy"], "use Linux 5.11 or later");
    assert_eq!(json["memory"]["huge_pages"], "madvise");
    assert_eq!(json["topology"]["cpus"][0]["class"], "big");
}
