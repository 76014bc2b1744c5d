//! The device's speed, as far as it can be known: figures are there, and are not absurd.

use std::time::Duration;

use forebay_devices::gpu::Meter;

use super::adapter;

#[test]
fn every_figure_is_measured() {
    let Some(adapter) = adapter() else { return };
    let mut meter = Meter::open(&adapter, 32 << 20).unwrap();
    let time = Duration::from_millis(100);
    let read = meter.read_rate(time).unwrap();
    let int8 = meter.int8_rate(time).unwrap();
    let f32 = meter.f32_rate(time).unwrap();
    let trips = meter.round_trips(100).unwrap();
    let readback = meter.readback_rate().unwrap();
    eprintln!(
        "read {read:e} B/s, int8 {int8:e} op/s, f32 {f32:e} op/s, {trips:?}, readback {readback:e} B/s"
    );
    // From a slow software device to twice the largest GPU there is.
    assert!((1e8..2e13).contains(&read), "{read:e}");
    assert!((1e8..1e16).contains(&int8), "{int8:e}");
    assert!((1e8..1e16).contains(&f32), "{f32:e}");
    assert!(
        trips.median > Duration::ZERO && trips.median <= trips.p99,
        "{trips:?}"
    );
    assert!((1e6..1e12).contains(&readback), "{readback:e}");
}
