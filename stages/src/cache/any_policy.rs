//! The choice among the policies.

use super::PolicyKind;
use super::directory::{Directory, List};
use super::frequency::Frequency;
use super::lru::Lru;
use super::no_cache::NoCache;
use super::policy::Policy;
use super::two_queue::TwoQueue;
use super::window::Window;

/// One of the policies.
#[derive(Debug)]
pub(super) enum AnyPolicy {
    TwoQueue(TwoQueue),
    Lru(Lru),
    Frequency(Frequency),
    Window(Window),
    NoCache(NoCache),
}

impl AnyPolicy {
    /// The policy of this kind for a cache of `slots` slots.
    pub(super) fn new(kind: PolicyKind, slots: usize) -> Self {
        match kind {
            PolicyKind::TwoQueue => Self::TwoQueue(TwoQueue::default()),
            PolicyKind::Lru => Self::Lru(Lru),
            PolicyKind::Frequency => Self::Frequency(Frequency::new(slots)),
            PolicyKind::Window(tokens) => Self::Window(Window::new(tokens)),
            PolicyKind::NoCache => Self::NoCache(NoCache),
        }
    }
}

/// Calls the same method of the policy.
macro_rules! delegate {
    ($any:expr, $policy:ident => $call:expr) => {
        match $any {
            AnyPolicy::TwoQueue($policy) => $call,
            AnyPolicy::Lru($policy) => $call,
            AnyPolicy::Frequency($policy) => $call,
            AnyPolicy::Window($policy) => $call,
            AnyPolicy::NoCache($policy) => $call,
        }
    };
}

impl Policy for AnyPolicy {
    fn best_first(&self) -> &'static [List] {
        delegate!(self, policy => policy.best_first())
    }

    fn entered(&mut self, directory: &mut Directory, slot: u32) {
        delegate!(self, policy => policy.entered(directory, slot))
    }

    fn preloaded(&mut self, directory: &mut Directory, slot: u32) {
        delegate!(self, policy => policy.preloaded(directory, slot))
    }

    fn hit(&mut self, directory: &mut Directory, slot: u32) {
        delegate!(self, policy => policy.hit(directory, slot))
    }

    fn idle(&mut self, directory: &mut Directory, slot: u32) {
        delegate!(self, policy => policy.idle(directory, slot))
    }

    fn victim(&self, directory: &Directory) -> Option<u32> {
        delegate!(self, policy => policy.victim(directory))
    }

    fn leaving(&mut self, directory: &mut Directory, slot: u32) {
        delegate!(self, policy => policy.leaving(directory, slot))
    }

    fn end_token(&mut self, directory: &mut Directory) {
        delegate!(self, policy => policy.end_token(directory))
    }
}
