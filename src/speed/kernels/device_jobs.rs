//! How long a device takes for jobs that follow each other.

use std::time::{Duration, Instant};

use forebay_devices::gpu::GpuDriver;
use forebay_devices::probe::wall_clock;
use forebay_devices::{DeviceDriver, DeviceFault, DeviceJob};

/// Time of a measurement of a kernel and of a bound.
pub(super) const TIME: Duration = Duration::from_millis(100);
/// A device that takes longer for this is stuck.
const LONGEST: Duration = Duration::from_secs(60);

/// Seconds per job while these two are always in flight.
pub(super) fn seconds_per_job(
    driver: &mut GpuDriver,
    jobs: [DeviceJob; 2],
) -> Result<f64, DeviceFault> {
    let busy = |_| DeviceFault::BadJob("the device is busy".into());
    let mut clock = wall_clock();
    for job in jobs {
        driver.submit(job, 0).map_err(busy)?;
    }
    let (mut done, mut ends) = (Vec::new(), Vec::<Instant>::new());
    while driver.in_flight() > 0 {
        let now = clock();
        if now > LONGEST.as_nanos() as u64 {
            let seconds = LONGEST.as_secs();
            return Err(DeviceFault::Stuck { seconds });
        }
        driver.poll(now, &mut done);
        for done in done.drain(..) {
            done.result?;
            ends.push(Instant::now());
            // The first jobs are not counted: the device may have been asleep.
            if ends.len() < 3 || ends[0].elapsed() < TIME {
                driver.submit(done.job, now).map_err(busy)?;
            }
        }
    }
    let took = ends[ends.len() - 1] - ends[0];
    Ok(took.as_secs_f64() / (ends.len() - 1) as f64)
}
