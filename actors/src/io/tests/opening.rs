use std::time::Duration;

use super::super::probe::{ReadLoad, measure_read, probe_file};
use super::*;

fn refusal(path: &Path, depth: usize) -> String {
    match open_driver(path, DriverChoice::Auto, depth, &[]) {
        Ok((_, info)) => panic!("opened {info}"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn refusals_name_path_and_remedy() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let missing = folder.path().join("missing.fbay");
    let text = refusal(&missing, 4);
    assert!(
        text.contains("missing.fbay") && text.contains("forebay pack"),
        "{text}"
    );

    let text = refusal(folder.path(), 4);
    assert!(
        text.contains("not a regular file") && text.contains(".fbay"),
        "{text}"
    );
    let text = refusal(Path::new("/dev/null"), 4);
    assert!(text.contains("/dev/null: not a regular file"), "{text}");

    let file = test_file(10);
    for depth in [0, MAX_DEPTH + 1, usize::MAX] {
        let text = refusal(file.path(), depth);
        assert!(text.contains("choose 1 to 1024"), "{text}");
    }
    let text = refusal(&file.path().join("below"), 4);
    assert!(text.contains("Not a directory"), "{text}");
}

#[test]
fn an_unreadable_file_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let file = test_file(10);
    let none = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(file.path(), none).expect("own file");
    match open_driver(file.path(), DriverChoice::Auto, 1, &[]) {
        Err(e) => {
            let text = e.to_string();
            let path = file.path().display().to_string();
            assert!(text.contains(&path) && text.contains("chmod u+r"), "{text}");
        }
        // The superuser may read everything: then it must be the file that was asked for.
        Ok((_, info)) => assert_eq!(info.file_bytes, 10),
    }
}

#[test]
fn an_empty_file_opens_and_every_read_of_it_is_short() {
    let file = test_file(0);
    for mut driver in every_driver(file.path(), 1) {
        driver
            .submit(read_op(0, 0, PAGE, slot(PAGE)), 0)
            .expect("room");
        let done = collect(driver.as_mut(), 1).remove(0);
        let kind = done.result.map_err(|f| f.kind);
        assert_eq!(kind, Err(FaultKind::ShortRead { got: 0 }));
    }
}

#[test]
fn the_choice_of_driver_is_kept() {
    let file = test_file(10);
    let (driver, info) = open_driver(file.path(), DriverChoice::Pread, 3, &[]).expect("threads");
    assert_eq!(
        (driver.name(), info.driver, info.depth),
        ("pread", "pread", 3)
    );
    let auto = open_driver(file.path(), DriverChoice::Auto, 3, &[]).expect("some driver");
    let uring = open_driver(file.path(), DriverChoice::Uring, 3, &[]);
    match uring_available() {
        Ok(()) => {
            assert_eq!((auto.0.name(), auto.1.driver), ("io_uring", "io_uring"));
            assert!(uring.is_ok());
        }
        Err(refusal) => {
            assert!(
                auto.1
                    .notes
                    .iter()
                    .any(|n| n.contains(&refusal.to_string()))
            );
            assert!(uring.is_err());
        }
    }
}

#[test]
fn system_errors_become_remedies() {
    let text = |errno| UringRefusal::from(std::io::Error::from_raw_os_error(errno)).to_string();
    assert!(text(libc::ENOSYS).contains("Linux 5.11"));
    assert!(text(libc::EPERM).contains("io_uring_disabled"));
    assert!(text(libc::ENOMEM).contains("ulimit -l"));
    assert!(text(libc::EMFILE).contains("cannot be set up"));
}

#[test]
fn the_probe_counts_its_reads_and_refuses_impossible_blocks() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut load = ReadLoad {
        block_bytes: 2 * ALIGNMENT,
        depth: 4,
        memory: 10 * 2 * ALIGNMENT as usize,
        bytes: 200 * u64::from(ALIGNMENT),
        duration: Duration::from_secs(20),
        range: 0,
        choice: DriverChoice::Auto,
    };
    let file = probe_file(folder.path(), 1 << 20).expect("space");
    let rate = measure_read(file.path(), &load).expect("readable");
    drop(file);
    assert_eq!(rate.reads, 100);
    let bytes = rate.bytes_per_second * rate.seconds;
    assert!((bytes - load.bytes as f64).abs() < 1.0, "{rate:?}");
    let left = std::fs::read_dir(folder.path()).expect("folder").count();
    assert_eq!(left, 0, "the test file is removed");

    let file = test_file(3 * PAGE as u64);
    load.duration = Duration::ZERO;
    assert_eq!(measure_read(file.path(), &load).expect("readable").reads, 0);
    for block_bytes in [0, 100, 4 * ALIGNMENT] {
        load.block_bytes = block_bytes;
        let text = measure_read(file.path(), &load)
            .expect_err("refused")
            .to_string();
        assert!(
            text.contains(&format!("blocks of {block_bytes} bytes")),
            "{text}"
        );
    }
}
