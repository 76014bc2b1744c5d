//! How devices round, and that the emulated arithmetic rounds once on all of them.

use forebay_devices::DeviceFault;
use forebay_devices::gpu::{Arithmetic, DeviceKind, Fma, GpuDriver, GpuOptions};
use forebay_devices::probe::{check, wall_clock};
use forebay_kernels::KernelTable;
use forebay_numbers::block::BlockType;

use super::adapter;

/// Nothing is compiled but what the test is about.
fn bare() -> GpuOptions {
    GpuOptions {
        formats: Vec::new(),
        ..GpuOptions::default()
    }
}

#[test]
fn the_emulated_sum_rounds_once_and_products_are_the_cpus() {
    let Some(adapter) = adapter() else { return };
    let mut driver = GpuDriver::with_arithmetic(&adapter, &bare(), Arithmetic::Emulated).unwrap();
    let found = driver.roundings(Arithmetic::Emulated, 1 << 20).unwrap();
    assert_eq!(found.fma(), Fma::Fused, "{found:?}");
    assert!(found.products_are_exact(), "{found:?}");
    // The triples are those that tell fused from unfused.
    assert_eq!(found.unfused, 0);
}

#[test]
fn software_devices_are_seen_to_round_twice() {
    let Some(adapter) = adapter() else { return };
    let mut driver = GpuDriver::with_arithmetic(&adapter, &bare(), Arithmetic::Native).unwrap();
    let found = driver.roundings(Arithmetic::Native, 4096).unwrap();
    eprintln!("{}, {}: {found:?}", adapter.name(), adapter.driver());
    if adapter.kind() == DeviceKind::Software {
        assert_eq!(found.fma(), Fma::Unfused, "{found:?}");
    } else {
        assert_ne!(found.fma(), Fma::Other, "{found:?}");
    }
}

#[test]
fn the_probe_finds_a_device_whose_sums_round_twice() {
    let Some(adapter) = adapter() else { return };
    let mut driver = GpuDriver::with_arithmetic(&adapter, &bare(), Arithmetic::Native).unwrap();
    let fused = driver.roundings(Arithmetic::Native, 256).unwrap().fma() == Fma::Fused;
    let options = GpuOptions {
        formats: vec![BlockType::Q8_0],
        ..bare()
    };
    let mut driver = GpuDriver::with_arithmetic(&adapter, &options, Arithmetic::Native).unwrap();
    let kernels = KernelTable::best();
    let found = check(&mut driver, &kernels, &options.formats, &mut wall_clock());
    match found {
        Ok(()) => assert!(fused),
        Err(DeviceFault::WrongResults { wrong, total, .. }) => {
            assert!(!fused && wrong > total / 20, "{wrong} of {total}");
        }
        Err(other) => panic!("{other}"),
    }
}
