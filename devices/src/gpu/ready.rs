//! wgpu's futures on native devices are ready at once, or after another thread's short work.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

pub(super) fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}
