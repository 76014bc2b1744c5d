//! What a driver has pinned is free again when the driver is gone: a control group counts pinned pages although they
//! are no longer mapped. Alone in its process, which has one count of pinned pages.

use forebay_actors::io::{ALIGNMENT, DriverChoice, ReadOp, open_driver};
use forebay_queues::slab::Slab;

const BYTES: usize = 4 << 20;
const ROUNDS: usize = 50;

/// Bytes that the process has pinned.
fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok())
        .expect("a number")
        << 10
}

#[test]
fn registered_memory_is_free_again_when_the_driver_is_gone() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), vec![1; 1 << 16]).expect("writable");
    let before = pinned();
    for _ in 0..ROUNDS {
        let mut slab = Slab::new(BYTES).expect("memory");
        let mut slot = slab.carve(BYTES).expect("room");
        slot.fill(1);
        let spans = [slot.span()];
        let Ok((mut driver, info)) = open_driver(file.path(), DriverChoice::Uring, 4, &spans)
        else {
            return eprintln!("SKIPPED: the system has no io_uring");
        };
        if info.registered_bytes == 0 {
            return eprintln!("SKIPPED: the system lets no memory be pinned");
        }
        assert!(pinned() >= before + BYTES as u64);
        let read = ReadOp {
            client: 0,
            tag: 0,
            offset: 0,
            len: ALIGNMENT,
            slot,
            slot_offset: 0,
        };
        driver.submit(read, 0).expect("room");
        let mut done = Vec::new();
        while driver.poll(0, &mut done) == 0 {
            driver.flush().expect("a ring");
            driver.wait(None).expect("a ring");
        }
        assert!(done.iter().all(|read| read.result.is_ok()));
        drop(driver);
        assert_eq!(pinned(), before);
    }
}
