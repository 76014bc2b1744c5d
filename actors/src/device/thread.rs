//! The device actor's thread. A driver may keep it for as long as it likes: nobody waits for it without a limit.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_devices::{DeviceDriver, DeviceFault};
use forebay_queues::doorbell::Spin;
use forebay_stages::contract::Turn;
use forebay_traces::clock::now_ns;
use forebay_traces::lane::TraceLane;
use forebay_traces::record::Reason;

use super::actor::{DeviceActor, DeviceLanes};
use crate::fault::cause_of_panic;

/// While a job is in flight, the device is asked this often whether it is done: drivers do not ring.
const POLL: Duration = Duration::from_micros(30);
/// By how much a sleep may be longer, ns. Usual are 50 us, with which such a sleep took 96 us instead of 44.
const SLACK_NS: Option<NonZeroU64> = NonZeroU64::new(1);
/// With a CPU of its own, the thread asks instead after so many looks at its bell,
const LOOKS: Spin = Spin::looks(16);
/// as long as a job takes no longer than this.
const WATCH_NS: u64 = 5_000_000;
/// A thread that its driver keeps is waited for this long at the end.
const FAREWELL: Duration = Duration::from_secs(2);
const GLANCE: Duration = Duration::from_millis(2);

/// Handle of the running device actor.
#[derive(Debug)]
pub(crate) struct DeviceThread {
    thread: JoinHandle<TraceLane>,
}

impl DeviceThread {
    /// Starts the actor. It ends once core 0 has. It sleeps between two questions to the device unless there is a CPU
    /// to `spare`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        driver: Box<dyn DeviceDriver>,
        lanes: DeviceLanes,
        spare: bool,
    ) -> std::io::Result<Self> {
        let thread = std::thread::Builder::new()
            .name("forebay-device".into())
            .spawn(move || run(driver, lanes, spare))?;
        Ok(Self { thread })
    }

    /// Waits for the end and returns the trace; nothing if the driver does not let go of the thread.
    pub fn stop(self) -> Option<TraceLane> {
        let mut left = FAREWELL;
        while !self.thread.is_finished() {
            left = left.checked_sub(GLANCE)?;
            std::thread::sleep(GLANCE);
        }
        self.thread.join().ok()
    }
}

/// Gives the actor turns until core 0 is gone.
fn run(driver: Box<dyn DeviceDriver>, lanes: DeviceLanes, spare: bool) -> TraceLane {
    // Where the system refuses, answers come later.
    let _ = rustix::thread::set_current_timer_slack(SLACK_NS);
    let mut actor = DeviceActor::new(driver, lanes);
    let account = Arc::clone(actor.account());
    actor.bell().bind();
    let whole = std::panic::AssertUnwindSafe(|| {
        let mut since_ns = 0;
        loop {
            let (seen, now) = (actor.bell().epoch(), now_ns());
            let _ = match actor.turn(now) {
                Turn::Progress => {
                    since_ns = now;
                    continue;
                }
                Turn::Finished => return,
                Turn::Blocked(Reason::Device) if spare && now < since_ns + WATCH_NS => {
                    actor.bell().wait(seen, LOOKS, Some(Duration::ZERO))
                }
                Turn::Blocked(Reason::Device) => actor.bell().wait(seen, Spin::NONE, Some(POLL)),
                Turn::Blocked(_) => actor.bell().wait(seen, Spin::looks(1000), None),
            };
        }
    });
    if let Err(panic) = std::panic::catch_unwind(whole) {
        // The lane of answers closes as the actor is dropped: core 0 notices.
        account.give_up(DeviceFault::Lost {
            reason: cause_of_panic(panic.as_ref()),
        });
    }
    actor.into_trace()
}
