//! Measures devices, beside the CPU.

use std::thread;
use std::time::{Duration, Instant};

use forebay_devices::gpu::{
    Adapter, Arithmetic, DeviceKind, GpuDriver, GpuOptions, Meter, adapters,
};
use forebay_devices::{DeviceFault, FORMATS};
use forebay_models::block::BlockType;
use forebay_plans::machine::{Kernel, KernelCase};
use forebay_plans::placement::Together;
use forebay_plans::topology::Topology;
use forebay_stages::kernels::KernelTable;

use super::report::{BitIdentical, DeviceReport, DeviceSpeed};
use crate::speed::bounds::Machine;
use crate::speed::{
    Attention, MEASURED_HEADS, Spread, attention_rate, job_rates, kernel_rate, weights,
};

/// Memory that a device reads: more than its caches hold. Software takes longer, and has the CPU's caches.
const READ_BYTES: u64 = 256 << 20;
const SOFTWARE_BYTES: u64 = 64 << 20;
/// Time of a measurement, and of that of both together.
const TIME: Duration = Duration::from_millis(200);
const TOGETHER: Duration = Duration::from_millis(400);
/// Measurements of the CPU alone.
const CPU_RUNS: usize = 5;
/// Smallest jobs.
const TRIPS: usize = 200;
/// Bytes that a core reads in one call.
const PIECE_BYTES: usize = 1 << 20;
/// Weights of products: a format that many models have.
const FORMAT: BlockType = BlockType::Q4_K;
const COLS: usize = 1536;

/// All devices; with `measure`, whether they have the CPU's bits and how fast they are, which takes a few seconds for
/// each. What goes wrong is part of the report.
pub fn survey(measure: bool) -> Vec<DeviceReport> {
    let mut reports = Vec::new();
    for (index, adapter) in adapters().into_iter().enumerate() {
        let mut report = DeviceReport::of(index, &adapter);
        if measure {
            examine(&adapter, &mut report);
        }
        reports.push(report);
    }
    reports
}

fn examine(adapter: &Adapter, report: &mut DeviceReport) {
    let (start, options) = (Instant::now(), options(FORMATS.to_vec()));
    let driver = match GpuDriver::open(adapter, &options, &KernelTable::best()) {
        Ok(driver) => {
            report.open_ms = Some(start.elapsed().as_secs_f64() * 1e3);
            report.bit_identical = Some(driver.arithmetic().into());
            report.problem = driver.no_attention().map(ToString::to_string);
            Ok(driver)
        }
        Err(fault) => {
            report.bit_identical = Some(BitIdentical::No);
            report.problem = Some(fault.to_string());
            // Its speed can be known all the same.
            GpuDriver::with_arithmetic(adapter, &options, Arithmetic::Emulated)
        }
    };
    let driver = driver.map_err(|fault| fault.to_string());
    match driver.and_then(|mut driver| speed_with(adapter, &mut driver)) {
        Ok(speed) => report.speed = Some(speed),
        Err(problem) => {
            report.problem.get_or_insert(problem);
        }
    }
}

/// What a device is opened for to be measured.
fn options(formats: Vec<BlockType>) -> GpuOptions {
    GpuOptions {
        formats,
        heads: vec![MEASURED_HEADS],
        ..GpuOptions::default()
    }
}

/// How fast a device is that has the CPU's bits.
pub(super) fn speed(adapter: &Adapter) -> Result<DeviceSpeed, String> {
    let driver = GpuDriver::open(adapter, &options(vec![FORMAT]), &KernelTable::best());
    speed_with(adapter, &mut driver.map_err(|fault| fault.to_string())?)
}

/// The same, with the device as `driver` has opened it.
fn speed_with(adapter: &Adapter, driver: &mut GpuDriver) -> Result<DeviceSpeed, String> {
    let cores = Topology::read()
        .and_then(|topology| topology.compute_cores(None))
        .map_err(|e| e.to_string())?;
    let machine = Machine {
        kernels: KernelTable::best(),
        cores: &cores,
    };
    let memory = weights().map_err(|e| e.to_string())?;
    let parts: Vec<Vec<&[u8]>> = memory
        .chunks(memory.len() / cores.len().max(1))
        .map(|part| part.chunks(PIECE_BYTES).collect())
        .collect();
    let cpu = || machine.read(&parts) / 1e9;
    let alone: Vec<f64> = (0..CPU_RUNS).map(|_| cpu()).collect();
    let bytes = match adapter.kind() {
        DeviceKind::Software => SOFTWARE_BYTES,
        _ => READ_BYTES,
    };
    let mut meter = Meter::open(adapter, bytes).map_err(|e| e.to_string())?;
    let device = meter.read_rate(TIME).map_err(|e| e.to_string())?;
    let (beside, together) = both(&mut meter, cpu)?;
    let int8 = meter.int8_rate(TIME).map_err(|e| e.to_string())?;
    let trips = meter.round_trips(TRIPS).map_err(|e| e.to_string())?;
    let readback = meter.readback_rate().map_err(|e| e.to_string())?;
    drop(meter);
    let jobs = job_rates(adapter, driver, FORMAT).map_err(|e| e.to_string())?;
    let attention = attention(adapter, driver).map_err(|e| e.to_string())?;
    let products = KernelCase {
        kernel: Kernel::Gemm,
        format: FORMAT,
        cols: COLS,
    };
    let products = kernel_rate(machine.kernels, &products, &cores, &memory);
    Ok(DeviceSpeed {
        cpu_gb_per_second: Spread::of(&alone).median,
        device_gb_per_second: device / 1e9,
        together: Together {
            cpu_gb_per_second: beside,
            device_gb_per_second: together,
        },
        cpu_int8_gops: machine.int8() / 1e9,
        device_int8_gops: int8 / 1e9,
        cpu_products_gops: products / 1e9,
        device_products_gops: jobs.int8 / 1e9,
        cpu_attention_gops: attention_rate(machine.kernels, &cores) / 1e9,
        device_attention_gops: attention,
        device_weights_gb_per_second: jobs.read / 1e9,
        submit_and_wait_us: trips.median.as_secs_f64() * 1e6,
        submit_and_wait_p99_us: trips.p99.as_secs_f64() * 1e6,
        readback_gb_per_second: readback / 1e9,
    })
}

/// Billions of additions and multiplications per second of a device's attention; 0 if it does not attend.
fn attention(adapter: &Adapter, driver: &mut GpuDriver) -> Result<f64, DeviceFault> {
    if driver.no_attention().is_some() {
        return Ok(0.0);
    }
    let mut attention = Attention::new(adapter, driver)?;
    attention.measure(driver)?;
    Ok(attention.gops())
}

/// What the CPU and the device read while both do, GB/s.
fn both(meter: &mut Meter, cpu: impl Fn() -> f64) -> Result<(f64, f64), String> {
    let (beside, device) = thread::scope(|scope| {
        let device = scope.spawn(|| meter.read_rate(TOGETHER));
        let mut beside = vec![cpu()];
        while !device.is_finished() {
            beside.push(cpu());
        }
        // The device may have finished before the last one did.
        if beside.len() > 1 {
            beside.pop();
        }
        (beside, device.join())
    });
    let device = device.map_err(|_| "the measurement of the device failed".to_owned())?;
    let device = device.map_err(|fault| fault.to_string())?;
    Ok((Spread::of(&beside).median, device / 1e9))
}
