//! Engines that are started, generate, are cancelled and dropped, hundreds of them: nothing stays behind.

use forebay::{BlockType, Engine, EngineBuilder, PackOptions, Request, StreamItem};
use forebay_devices::DeviceFault;

use crate::device::{Trouble, with_device};
use crate::holdings::Holdings;
use crate::role;
use crate::subject::length;
use crate::support::{build, engine};

const COUNT: &str = "FOREBAY_STRESS_CYCLES";
const CYCLES: usize = 200;
/// Cycles after which allocator and libraries have what they keep for good.
const WARM_UP: u64 = 100;
/// Every so many cycles an engine reads from the disk while it generates, whose speed it measures at its start.
const STREAMED: u64 = 50;
/// Every so many cycles an engine has a device beside it.
const BESIDE: u64 = 10;
/// What the allocator may keep in another way at the end than after the warm-up. A leak of a core's smallest buffer
/// per cycle would be more.
const SPREAD: u64 = 6 << 20;

fn start(cycle: u64) -> Engine {
    let builder = engine(None).planned_choices(false);
    if cycle % BESIDE == 1 {
        return start_beside(builder, cycle);
    }
    build(match cycle % STREAMED {
        0 => builder.weight_memory(4 << 20),
        _ => builder,
    })
}

/// With a device, which multiplies 8 bits. Every other one fails soon, or hangs.
fn start_beside(builder: EngineBuilder, cycle: u64) -> Engine {
    let options = PackOptions {
        quant: Some(BlockType::Q8_0),
        ..PackOptions::default()
    };
    let (builder, hold) = with_device(builder.pack_options(options), 1.0);
    let engine = build(builder);
    assert!(hold.memory() > 0, "the device has nothing");
    let lost = DeviceFault::OutOfMemory {
        bytes: 1,
        left: None,
    };
    match cycle / BESIDE % 40 {
        7 => hold.fail_after(5, Trouble::NeverEnds),
        n if n % 2 == 1 => hold.fail_after(n, Trouble::Ends(lost)),
        _ => {}
    }
    engine
}

/// One engine's life: it ends before its stream is read, while it is, or after it was cancelled.
fn cycle(number: u64) {
    let engine = start(number);
    let mut session = engine.session();
    let mut request = Request::text("Once upon a time").max_tokens(80);
    request.ignore_eog = true;
    let stream = session.generate(request).expect("a good request");
    let mut stream = stream.blocking();
    for _ in 0..number % 4 {
        match stream.next() {
            Some(Ok(StreamItem::Token(_) | StreamItem::Prompt(_))) => {}
            other => panic!("80 tokens cannot be done: {other:?}"),
        }
    }
    match number % 3 {
        0 => drop((stream, session, engine)),
        1 => drop((engine, session, stream)),
        _ => {
            drop(stream);
            let mut request = Request::text(" there").max_tokens(2);
            request.ignore_eog = true;
            let stream = session.generate(request).expect("a good request");
            let (_, done) = stream.finish().expect("no fault");
            assert_eq!(done.tokens.len(), 2);
        }
    }
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn starts_and_ends_engines() {
    let count = role::number(COUNT);
    (0..WARM_UP).for_each(cycle);
    let before = Holdings::now();
    (WARM_UP..count).for_each(cycle);
    let after = Holdings::now();
    eprintln!("after {WARM_UP} cycles {before:?}, after {count} {after:?}");
    assert_eq!(after.threads, before.threads, "threads");
    assert_eq!(after.files, before.files, "files");
    assert!(after.mappings <= before.mappings + 8, "mappings");
    assert!(after.resident <= before.resident + SPREAD, "resident bytes");
}

#[test]
fn hundreds_of_engines_leave_nothing_behind() {
    let count = (COUNT, (CYCLES * length()).to_string());
    role::run("cycles::starts_and_ends_engines", &[count]);
}
