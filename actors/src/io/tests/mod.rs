//! Proofs about the drivers and the actor, on real files and on a driver that the test steers.

mod actor;
mod drivers;
mod faults;
mod opening;
mod wakeups;

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use forebay_queues::slab::{Slab, Slot};
use forebay_stages::contract::Turn;
use tempfile::NamedTempFile;

use super::driver::Driver;
use super::file::ReadFile;
use super::pread::PreadDriver;
use super::probe::uring_available;
use super::uring::UringDriver;
use super::*;

/// One page, as `usize`.
const PAGE: usize = ALIGNMENT as usize;

/// The byte that the test files hold at `position`: no two pages are equal.
fn byte_at(position: u64) -> u8 {
    let page = position / u64::from(ALIGNMENT);
    (position.wrapping_mul(31) ^ page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

/// What a read of `len` bytes at `offset` must bring from a file of `file_bytes`: zeros behind its end.
fn expected(offset: u64, len: u32, file_bytes: u64) -> Vec<u8> {
    (offset..offset + u64::from(len))
        .map(|p| if p < file_bytes { byte_at(p) } else { 0 })
        .collect()
}

fn test_file(bytes: u64) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("temporary folder");
    let content: Vec<u8> = (0..bytes).map(byte_at).collect();
    file.write_all(&content).expect("space for the test file");
    file.as_file().sync_all().expect("written");
    file
}

fn slots(count: usize, bytes: usize) -> Vec<Slot> {
    let mut slab = Slab::new(count * bytes).expect("memory");
    (0..count)
        .map(|_| slab.carve(bytes).expect("room for every slot"))
        .collect()
}

fn slot(bytes: usize) -> Slot {
    slots(1, bytes).remove(0)
}

fn read_op(tag: u64, offset: u64, len: usize, slot: Slot) -> ReadOp {
    ReadOp {
        client: 0,
        tag,
        offset,
        len: len as u32,
        slot,
        slot_offset: 0,
    }
}

/// Every driver that this system has, on `path`: direct and through the page cache.
fn every_driver(path: &Path, depth: u16) -> Vec<Box<dyn Driver>> {
    let direct = || ReadFile::open(path, &mut Vec::new()).expect("readable");
    let buffered = || ReadFile {
        file: File::open(path).expect("readable"),
        bytes: path.metadata().expect("readable").len(),
        direct: false,
    };
    let mut drivers: Vec<Box<dyn Driver>> = Vec::new();
    for file in [direct(), buffered()] {
        drivers.push(Box::new(PreadDriver::new(file, depth).expect("threads")));
    }
    match uring_available() {
        Ok(()) => {
            for file in [direct(), buffered()] {
                let driver = UringDriver::new(file, depth, &[]).map_err(|(refusal, _)| refusal);
                drivers.push(Box::new(driver.expect("io_uring is available")));
            }
        }
        Err(refusal) => eprintln!("SKIPPED: io_uring was NOT tested: {refusal}"),
    }
    drivers
}

/// Waits until `count` reads are back.
fn collect(driver: &mut dyn Driver, count: usize) -> Vec<ReadDone> {
    let mut done = Vec::with_capacity(count);
    let started = Instant::now();
    while done.len() < count {
        driver.flush().expect("driver works");
        if driver.poll(0, &mut done) == 0 {
            let timeout = std::time::Duration::from_millis(100);
            driver.wait(Some(timeout)).expect("driver works");
        }
        assert!(started.elapsed().as_secs() < 30, "{} hangs", driver.name());
    }
    done
}

/// Requests prepared by a test.
#[derive(Default)]
struct Requests {
    urgent: VecDeque<ReadOp>,
    prefetch: VecDeque<ReadOp>,
    closed: bool,
}

impl RequestSource for Requests {
    fn next_urgent(&mut self) -> Option<ReadOp> {
        self.urgent.pop_front()
    }

    fn next_prefetch(&mut self) -> Option<ReadOp> {
        self.prefetch.pop_front()
    }

    fn closed(&self) -> bool {
        self.closed
    }
}

/// Completions kept for a test.
#[derive(Default)]
struct Kept(Vec<ReadDone>);

impl CompletionSink for Kept {
    fn complete(&mut self, done: ReadDone, _so_far: &IoTally) -> std::io::Result<()> {
        self.0.push(done);
        Ok(())
    }
}

/// Drives the actor until it has nothing more to do.
fn run<D: Driver>(actor: &mut IoActor<D, Requests, Kept>) -> Vec<ReadDone> {
    actor.source_mut().closed = true;
    let started = Instant::now();
    loop {
        match actor.turn(started.elapsed().as_nanos() as u64) {
            Ok(Turn::Progress) => {}
            Ok(Turn::Blocked(_)) => actor
                .wait(Some(std::time::Duration::from_millis(100)))
                .expect("driver works"),
            Ok(Turn::Finished) => return std::mem::take(&mut actor.sink_mut().0),
            Err(e) => panic!("driver failed: {e}"),
        }
        assert!(started.elapsed().as_secs() < 30, "the actor hangs");
    }
}
