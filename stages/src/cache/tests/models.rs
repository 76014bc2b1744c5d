//! The policies in their plainest form: vectors of neurons, searched from end to end.

use std::collections::{HashMap, VecDeque};

use crate::cache::PolicyKind;

/// What a policy decides, in neurons. The caller knows slots and holds.
pub trait Model {
    /// Neurons in the cache, best to keep first.
    fn best_first(&self) -> Vec<usize>;
    fn enter(&mut self, neuron: usize);
    fn hit(&mut self, neuron: usize);
    fn preload(&mut self, neuron: usize);
    fn idle(&mut self, _neuron: usize) {}
    fn remove(&mut self, neuron: usize);
    fn end_token(&mut self, _held: &[usize]) {}

    /// The worst neuron that is not held.
    fn victim(&self, held: &[usize]) -> Option<usize> {
        let order = self.best_first();
        order.into_iter().rev().find(|n| !held.contains(n))
    }
}

pub fn of(kind: PolicyKind, slots: usize) -> Box<dyn Model> {
    match kind {
        PolicyKind::TwoQueue => Box::new(TwoQueue {
            slots,
            ..TwoQueue::default()
        }),
        PolicyKind::Lru => Box::new(Lru::default()),
        PolicyKind::Frequency => Box::new(Frequency {
            period: 40 * slots,
            ..Frequency::default()
        }),
        PolicyKind::Window(tokens) => Box::new(Window {
            tokens: i64::from(tokens.get()),
            ..Window::default()
        }),
        PolicyKind::NoCache => Box::new(NoCache::default()),
    }
}

/// The paper's words, written down with deques.
#[derive(Default)]
struct TwoQueue {
    active: VecDeque<usize>,
    inactive: VecDeque<usize>,
    slots: usize,
}

impl Model for TwoQueue {
    fn best_first(&self) -> Vec<usize> {
        self.active.iter().chain(&self.inactive).copied().collect()
    }

    fn enter(&mut self, neuron: usize) {
        self.inactive.push_front(neuron);
    }

    fn hit(&mut self, neuron: usize) {
        self.remove(neuron);
        self.active.push_front(neuron);
        while self.active.len() * 10 > self.slots * 9 {
            let tail = self.active.pop_back().expect("over 90% is not empty");
            self.inactive.push_front(tail);
        }
    }

    fn preload(&mut self, neuron: usize) {
        if (self.active.len() + 1) * 10 <= self.slots * 9 {
            self.active.push_back(neuron);
        } else {
            self.inactive.push_back(neuron);
        }
    }

    fn remove(&mut self, neuron: usize) {
        self.active.retain(|&n| n != neuron);
        self.inactive.retain(|&n| n != neuron);
    }
}

/// Times of the last accesses.
#[derive(Default)]
struct Lru {
    clock: i64,
    last: HashMap<usize, i64>,
}

impl Model for Lru {
    fn best_first(&self) -> Vec<usize> {
        let mut order: Vec<usize> = self.last.keys().copied().collect();
        order.sort_by_key(|n| std::cmp::Reverse(self.last[n]));
        order
    }

    fn enter(&mut self, neuron: usize) {
        self.hit(neuron);
    }

    fn hit(&mut self, neuron: usize) {
        self.clock += 1;
        self.last.insert(neuron, self.clock);
    }

    fn preload(&mut self, neuron: usize) {
        let oldest = self.last.values().min().copied().unwrap_or(0);
        self.last.insert(neuron, oldest - 1);
    }

    fn remove(&mut self, neuron: usize) {
        self.last.remove(&neuron);
    }
}

/// Counts of all neurons, absent ones too, halved at once. Halving keeps the order that was there.
#[derive(Default)]
struct Frequency {
    counts: HashMap<usize, u32>,
    /// Token of the last use.
    last: HashMap<usize, i64>,
    /// Of equal counts and ages the last used first.
    order: Vec<usize>,
    now: i64,
    accesses: usize,
    period: usize,
}

impl Frequency {
    /// Worth less the better: what is used now counts eight times more, and before others that are worth as much.
    fn key(&self, neuron: usize) -> (std::cmp::Reverse<u32>, i64) {
        let age = self
            .last
            .get(&neuron)
            .map_or(2, |token| (self.now - token).min(2));
        let bonus = if age < 2 { 8 } else { 0 };
        (std::cmp::Reverse(self.counts[&neuron] + bonus), age)
    }

    /// The order is stable, except for the neuron that is used.
    fn sort(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        order.sort_by_key(|&n| self.key(n));
        self.order = order;
    }
}

impl Model for Frequency {
    fn best_first(&self) -> Vec<usize> {
        self.order.clone()
    }

    fn enter(&mut self, neuron: usize) {
        self.accesses += 1;
        if self.accesses == self.period {
            self.accesses = 0;
            self.counts.values_mut().for_each(|count| *count /= 2);
            self.sort();
        }
        let count = self.counts.entry(neuron).or_default();
        *count = (*count + 1).min(63);
        self.last.insert(neuron, self.now);
        self.order.insert(0, neuron);
        self.sort();
    }

    fn hit(&mut self, neuron: usize) {
        self.remove(neuron);
        self.enter(neuron);
    }

    fn preload(&mut self, neuron: usize) {
        self.counts.insert(neuron, 16);
        self.last.remove(&neuron);
        self.order.push(neuron);
        self.sort();
    }

    fn remove(&mut self, neuron: usize) {
        self.order.retain(|&n| n != neuron);
    }

    fn end_token(&mut self, _held: &[usize]) {
        self.now += 1;
        self.sort();
    }
}

/// Token and time of each neuron's last use.
#[derive(Default)]
struct Window {
    tokens: i64,
    now: i64,
    clock: i64,
    last: HashMap<usize, (i64, i64)>,
}

impl Model for Window {
    fn best_first(&self) -> Vec<usize> {
        let mut order: Vec<usize> = self.last.keys().copied().collect();
        order.sort_by_key(|n| std::cmp::Reverse(self.last[n]));
        order
    }

    fn enter(&mut self, neuron: usize) {
        self.hit(neuron);
    }

    fn hit(&mut self, neuron: usize) {
        self.clock += 1;
        self.last.insert(neuron, (self.now, self.clock));
    }

    fn preload(&mut self, neuron: usize) {
        let (token, time) = self.last.values().min().copied().unwrap_or((self.now, 0));
        self.last.insert(neuron, (token, time - 1));
    }

    fn remove(&mut self, neuron: usize) {
        self.last.remove(&neuron);
    }

    fn end_token(&mut self, held: &[usize]) {
        let first = self.now - self.tokens + 1;
        for neuron in self.best_first().into_iter().rev() {
            if self.last[&neuron].0 < first {
                if held.contains(&neuron) {
                    self.hit(neuron);
                } else {
                    self.remove(neuron);
                }
            }
        }
        self.now += 1;
    }
}

/// What is held, and no more.
#[derive(Default)]
struct NoCache {
    held: Vec<usize>,
}

impl Model for NoCache {
    fn best_first(&self) -> Vec<usize> {
        self.held.iter().rev().copied().collect()
    }

    fn enter(&mut self, neuron: usize) {
        self.held.push(neuron);
    }

    fn hit(&mut self, neuron: usize) {
        self.remove(neuron);
        self.enter(neuron);
    }

    fn preload(&mut self, _neuron: usize) {}

    fn idle(&mut self, neuron: usize) {
        self.remove(neuron);
    }

    fn remove(&mut self, neuron: usize) {
        self.held.retain(|&n| n != neuron);
    }
}
