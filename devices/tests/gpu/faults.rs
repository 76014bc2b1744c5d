//! What goes wrong is a value.

use std::sync::Arc;

use forebay_devices::gpu::{Arithmetic, DeviceKind, GpuDriver, GpuOptions, adapters, choose};
use forebay_devices::probe::{self, check, wall_clock};
use forebay_devices::{
    DeviceDone, DeviceDriver, DeviceFault, DeviceJob, PanelRange, SegmentId, Work,
};
use forebay_kernels::{Activations, Form, KernelTable};
use forebay_numbers::block::BlockType;
use forebay_queues::slab::{PAGE, Slab};

use super::{Matrix, adapter, tokens};

fn options(memory_bytes: u64) -> GpuOptions {
    GpuOptions {
        formats: vec![BlockType::Q8_0],
        memory_bytes,
        ..GpuOptions::default()
    }
}

fn open(memory_bytes: u64) -> Option<GpuDriver> {
    let options = options(memory_bytes);
    let adapter = adapter()?;
    Some(GpuDriver::with_arithmetic(&adapter, &options, Arithmetic::Emulated).unwrap())
}

fn job(id: u64, segment: SegmentId, tokens: Activations) -> DeviceJob {
    let range = PanelRange {
        block: BlockType::Q8_0,
        at: 0,
        n_rows: 16,
        cols: tokens.cols(),
    };
    job_of(id, segment, range, tokens)
}

fn job_of(id: u64, segment: SegmentId, range: PanelRange, tokens: Activations) -> DeviceJob {
    let out = vec![0.0; range.n_rows * tokens.n_tokens()];
    let panels = vec![range];
    DeviceJob {
        id,
        segment,
        tokens,
        work: Work::Rows { panels, out },
    }
}

fn results(done: &DeviceDone) -> &[f32] {
    match &done.job.work {
        Work::Rows { out, .. } => out,
        _ => unreachable!("another job"),
    }
}

fn run(driver: &mut GpuDriver, job: DeviceJob) -> Result<(), DeviceFault> {
    probe::run(driver, job, &mut wall_clock()).unwrap().result
}

#[test]
fn a_software_device_is_never_chosen_unasked() {
    let all = adapters();
    let software = all.iter().position(|a| a.kind() == DeviceKind::Software);
    let hardware = all.iter().position(|a| a.kind() != DeviceKind::Software);
    let chosen = choose(all.clone(), None);
    match hardware {
        Some(i) => assert_eq!(chosen.unwrap().name(), all[i].name()),
        None => assert!(chosen.unwrap_err().to_string().contains("no device gpu")),
    }
    if let Some(i) = software {
        assert_eq!(choose(all.clone(), Some(i)).unwrap().name(), all[i].name());
    }
    let fault = choose(all, Some(99)).unwrap_err().to_string();
    assert!(
        fault.contains("gpu:99") && fault.contains("Vulkan driver"),
        "{fault}"
    );
}

#[test]
fn two_jobs_are_in_flight_and_a_third_is_given_back() {
    let Some(mut driver) = open(u64::MAX) else {
        return;
    };
    let kernels = KernelTable::best();
    let matrix = Matrix::random(BlockType::Q8_0, 16, 64, 1);
    let segment = driver.load(&matrix.panels).unwrap();
    let tokens = || tokens(&kernels, 2, 64, 1);
    for id in [1, 2] {
        driver.submit(job(id, segment, tokens()), 0).unwrap();
    }
    assert_eq!(
        driver.submit(job(3, segment, tokens()), 0).unwrap_err().id,
        3
    );
    assert_eq!((driver.in_flight(), driver.capacity()), (2, 2));
    let (mut done, mut clock) = (Vec::new(), wall_clock());
    while done.len() < 2 {
        let now = clock();
        assert!(now < 20_000_000_000, "stuck");
        driver.poll(now, &mut done);
    }
    assert!(done.iter().all(|done| done.result.is_ok()));
    assert_eq!(results(&done[0]), results(&done[1]));
}

#[test]
fn a_lost_device_loses_its_jobs_and_all_later_ones() {
    let Some(mut driver) = open(u64::MAX) else {
        return;
    };
    let kernels = KernelTable::best();
    let matrix = Matrix::random(BlockType::Q8_0, 16, 64, 1);
    let segment = driver.load(&matrix.panels).unwrap();
    driver
        .submit(job(1, segment, tokens(&kernels, 2, 64, 1)), 0)
        .unwrap();
    driver.close();
    let mut done = Vec::new();
    driver.poll(5, &mut done);
    assert_eq!(done.len(), 1);
    assert!(
        matches!(done[0].result, Err(DeviceFault::Lost { .. })),
        "{:?}",
        done[0].result
    );
    assert_eq!(driver.in_flight(), 0);
    let later = run(&mut driver, job(2, segment, tokens(&kernels, 2, 64, 1)));
    assert!(matches!(later, Err(DeviceFault::Lost { .. })), "{later:?}");
    let load = driver.load(&matrix.panels);
    assert!(matches!(load, Err(DeviceFault::Lost { .. })), "{load:?}");
    let check = check(&mut driver, &kernels, &[BlockType::Q8_0], &mut wall_clock());
    assert!(matches!(check, Err(DeviceFault::Lost { .. })), "{check:?}");
}

#[test]
fn a_device_uses_no_more_than_its_share_of_memory() {
    let Some(mut driver) = open(4096) else { return };
    let first = driver.load(&[0; 3000]).unwrap();
    assert_eq!(driver.memory_bytes(), 3000);
    let (bytes, left) = (2000, Some(1096));
    assert_eq!(
        driver.load(&[0; 2000]),
        Err(DeviceFault::OutOfMemory { bytes, left })
    );
    // Nor do the buffers of a job find room.
    let matrix = Matrix::random(BlockType::Q8_0, 16, 64, 1);
    let segment = driver.load(&matrix.panels[..1088]).unwrap();
    let kernels = KernelTable::best();
    let result = run(&mut driver, job(1, segment, tokens(&kernels, 1, 32, 1)));
    assert!(
        matches!(result, Err(DeviceFault::OutOfMemory { .. })),
        "{result:?}"
    );
    driver.unload(first);
    assert_eq!(
        run(&mut driver, job(2, segment, tokens(&kernels, 1, 32, 1))),
        Ok(())
    );
}

#[test]
fn a_segment_beyond_the_drivers_limit_is_refused() {
    let (Some(mut driver), Some(adapter)) = (open(u64::MAX), adapter()) else {
        return;
    };
    let limit = adapter.limits().segment_bytes;
    let Ok(len) = usize::try_from(limit + 1) else {
        return;
    };
    if len > 3 << 30 {
        eprintln!("SKIPPED: the device takes {limit} bytes in one piece");
        return;
    }
    // Pages of zeros, which take no memory until they are touched.
    let fault = driver.load(&vec![0; len]).unwrap_err();
    assert!(matches!(fault, DeviceFault::TooLarge { .. }), "{fault:?}");
}

#[test]
fn numbers_out_of_range_are_left_to_the_cpu() {
    let Some(mut driver) = open(u64::MAX) else {
        return;
    };
    let kernels = KernelTable::best();
    let matrix = Matrix::random(BlockType::Q8_0, 16, 64, 1);
    let segment = driver.load(&matrix.panels).unwrap();
    for (factor, exact) in [
        (1.0, true),
        (1e-30, false),
        (1e20, false),
        (f32::NAN, false),
        (0.0, true),
    ] {
        let mut x = Activations::new(1, 64);
        let values: Vec<f32> = (0..64).map(|i| (i as f32 - 30.5) * factor).collect();
        x.load(&kernels, Form::Panels, 1, 64, &values);
        let expected = if exact {
            Ok(())
        } else {
            Err(DeviceFault::OutOfRange)
        };
        assert_eq!(run(&mut driver, job(1, segment, x)), expected, "{factor}");
    }
    // A scale of weights that is infinite, in a row's second block; then all is well again.
    let mut broken = matrix.panels.clone();
    broken[544 + 2 * 3..][..2].copy_from_slice(&0x7c00_u16.to_le_bytes());
    let segment = driver.load(&broken).unwrap();
    let result = run(&mut driver, job(2, segment, tokens(&kernels, 1, 64, 1)));
    assert_eq!(result, Err(DeviceFault::OutOfRange));
    let segment = driver.load(&matrix.panels).unwrap();
    assert_eq!(
        run(&mut driver, job(3, segment, tokens(&kernels, 1, 64, 1))),
        Ok(())
    );
}

#[test]
fn tiny_scales_of_mxfp4_are_left_to_the_cpu_unless_all_codes_are_zero() {
    let Some(adapter) = adapter() else { return };
    let options = GpuOptions {
        formats: vec![BlockType::MXFP4],
        ..GpuOptions::default()
    };
    let kernels = KernelTable::best();
    let mut driver = GpuDriver::with_arithmetic(&adapter, &options, Arithmetic::Emulated).unwrap();
    // Code 8 is a second zero.
    for (exponent, code, expected) in [
        (0, 0x00, Ok(())),
        (0, 0x80, Ok(())),
        (0, 0x01, Err(DeviceFault::OutOfRange)),
        (103, 0x50, Err(DeviceFault::OutOfRange)),
        (104, 0x50, Ok(())),
        (168, 0x50, Ok(())),
        (169, 0x50, Err(DeviceFault::OutOfRange)),
    ] {
        let mut row = [code; 17];
        row[0] = exponent;
        let matrix = Matrix::new(BlockType::MXFP4, 3, 32, &row.repeat(3));
        let segment = driver.load(&matrix.panels).unwrap();
        let range = PanelRange {
            block: BlockType::MXFP4,
            at: 0,
            n_rows: 3,
            cols: 32,
        };
        let job = job_of(1, segment, range, tokens(&kernels, 1, 32, 1));
        assert_eq!(
            run(&mut driver, job),
            expected,
            "2^{} * {code:x}",
            i32::from(exponent) - 128
        );
    }
}

#[test]
fn jobs_for_formats_that_were_not_compiled_end_with_what_is_wrong() {
    let Some(mut driver) = open(u64::MAX) else {
        return;
    };
    let kernels = KernelTable::best();
    let matrix = Matrix::random(BlockType::Q4_0, 16, 64, 1);
    let segment = driver.load(&matrix.panels).unwrap();
    let range = PanelRange {
        block: BlockType::Q4_0,
        at: 0,
        n_rows: 16,
        cols: 64,
    };
    let job = job_of(1, segment, range, tokens(&kernels, 1, 64, 1));
    let fault = run(&mut driver, job).unwrap_err().to_string();
    assert!(fault.contains("without Q4_0"), "{fault}");
}

#[test]
fn a_driver_without_memory_says_so_and_goes_on() {
    let Some(adapter) = adapter() else { return };
    if adapter.kind() != DeviceKind::Software {
        eprintln!("SKIPPED: only a device in software has the memory of its process");
        return;
    }
    let tests = std::env::current_exe().unwrap();
    let output = std::process::Command::new("sh")
        .args([
            "-c",
            "ulimit -v 1500000; exec \"$0\" faults::until_memory_is_short --exact --ignored",
        ])
        .arg(tests)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

/// In a process of its own, whose address space is limited.
#[test]
#[ignore = "another test starts it with little memory"]
fn until_memory_is_short() {
    let Some(mut driver) = open(u64::MAX) else {
        return;
    };
    let bytes = vec![0; 64 << 20];
    let fault = (0..64).find_map(|_| driver.load(&bytes).err());
    let (bytes, left) = (64 << 20, None);
    assert_eq!(fault, Some(DeviceFault::OutOfMemory { bytes, left }));
    // The device is as good as before.
    let kernels = KernelTable::best();
    let matrix = Matrix::random(BlockType::Q8_0, 16, 64, 1);
    let segment = driver.load(&matrix.panels).unwrap();
    let tokens = tokens(&kernels, 1, 64, 1);
    assert_eq!(run(&mut driver, job(1, segment, tokens)), Ok(()));
}

#[test]
fn weights_that_are_written_behind_a_job_are_those_of_the_next_one() {
    let Some(mut driver) = open(u64::MAX) else {
        return;
    };
    let kernels = KernelTable::best();
    let two = [1, 2].map(|seed| Matrix::random(BlockType::Q8_0, 16, 64, seed).panels);
    let tokens = || tokens(&kernels, 2, 64, 1);
    let expected = two.each_ref().map(|panels| {
        let segment = driver.load(panels).unwrap();
        let alone = probe::run(&mut driver, job(0, segment, tokens()), &mut wall_clock());
        results(&alone.unwrap()).to_vec()
    });
    assert_ne!(expected[0], expected[1]);
    let segment = driver.reserve(two[0].len() as u64).unwrap();
    for (id, panels) in [(0, &two[0]), (1, &two[1])] {
        driver.write(segment, 0, panels).unwrap();
        driver.submit(job(id, segment, tokens()), 0).unwrap();
    }
    let (mut done, mut clock) = (Vec::new(), wall_clock());
    while done.len() < 2 {
        let now = clock();
        assert!(now < 20_000_000_000, "stuck");
        driver.poll(now, &mut done);
    }
    for done in &done {
        assert_eq!(done.result, Ok(()));
        assert_eq!(results(done), expected[done.job.id as usize]);
    }
    let beyond = driver.write(segment, 4, &two[0]);
    assert!(matches!(beyond, Err(DeviceFault::BadJob(_))), "{beyond:?}");
    driver.unload(segment);
    let gone = driver.write(segment, 0, &two[0]);
    assert!(matches!(gone, Err(DeviceFault::BadJob(_))), "{gone:?}");
}

/// Weights between others in the CPU's memory are computed there, and take none of the device's.
#[test]
fn imported_weights_are_computed_where_they_are() {
    let Some(mut driver) = open(1 << 20) else {
        return;
    };
    if !driver.imports() {
        let kind = adapter().unwrap().kind();
        assert_ne!(kind, DeviceKind::Software, "Mesa's can import");
        return eprintln!("SKIPPED: the device does not import memory");
    }
    let kernels = KernelTable::best();
    let matrix = Matrix::random(BlockType::Q8_0, 16, 64, 1);
    let tokens = || tokens(&kernels, 2, 64, 1);
    let mut slot = Slab::new(4 * PAGE).unwrap().carve(4 * PAGE).unwrap();
    slot.fill(0xff);
    slot[2 * PAGE..][..matrix.panels.len()].copy_from_slice(&matrix.panels);
    let memory = Arc::new(slot);
    let segment = driver.import(&memory, PAGE..3 * PAGE).unwrap();
    assert_eq!(driver.memory_bytes(), 0);
    let range = PanelRange {
        block: BlockType::Q8_0,
        at: PAGE,
        n_rows: 16,
        cols: 64,
    };
    let job = |segment| job_of(1, segment, range, tokens());
    let imported = probe::run(&mut driver, job(segment), &mut wall_clock()).unwrap();
    assert_eq!(imported.result, Ok(()));
    let copy = driver.load(&memory[PAGE..3 * PAGE]).unwrap();
    let copied = probe::run(&mut driver, job(copy), &mut wall_clock()).unwrap();
    assert_eq!(results(&imported), results(&copied));
    for part in [1..PAGE, 0..PAGE + 4, 0..5 * PAGE, 0..0] {
        let refused = driver.import(&memory, part.clone());
        assert!(matches!(refused, Err(DeviceFault::BadJob(_))), "{part:?}");
    }
    // The device may read it as long as it is open.
    driver.unload(segment);
    assert!(matches!(
        run(&mut driver, job(segment)),
        Err(DeviceFault::BadJob(_))
    ));
    assert_eq!(Arc::strong_count(&memory), 2);
    drop(driver);
    assert_eq!(Arc::strong_count(&memory), 1);
}
