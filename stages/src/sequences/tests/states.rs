//! Recurrent states: a state stands for all tokens of its sequence, whatever becomes of the sequence.

use super::*;

/// What a state stands for: the tokens that have changed it.
type Tokens = Vec<Content>;

/// Sequences with a model of the cores' states.
struct Machine {
    sequences: Sequences,
    tokens: HashMap<SequenceId, Tokens>,
    states: HashMap<u32, Tokens>,
    next: Content,
}

impl Machine {
    fn new(sequences: usize) -> Self {
        let pools = [shape(1000, None), shape(1000, Some(70))];
        Self {
            sequences: Sequences::new(&pools, sequences * STATES_OF_SEQUENCE),
            tokens: HashMap::new(),
            states: HashMap::new(),
            next: 0,
        }
    }

    fn open(&mut self) -> SequenceId {
        let id = self.sequences.open();
        self.tokens.insert(id, Vec::new());
        id
    }

    /// All copies are made first, then the tokens change the states one by one.
    fn step(&mut self, growth: &[(SequenceId, usize)]) {
        let mut copies = Copies::default();
        for &(id, n) in growth {
            let extended = self.sequences.extend(id, n, &mut copies);
            extended.expect("room for all");
        }
        for copy in &copies.states {
            let content = copy.from.map(|from| self.states[&from].clone());
            self.states.insert(copy.to, content.unwrap_or_default());
        }
        for &(id, n) in growth {
            for _ in 0..n {
                let tokens = self.tokens.get_mut(&id).unwrap();
                let place = TokenPlace {
                    sequence: id,
                    position: tokens.len() as u32,
                };
                let live = self.sequences.state(id).expect("a state");
                for kept in copies.snapshots.iter().filter(|s| s.before == place) {
                    let content = self.states[&live].clone();
                    self.states.insert(kept.state, content);
                }
                self.next += 1;
                tokens.push(self.next);
                self.states.get_mut(&live).unwrap().push(self.next);
            }
        }
        self.check();
    }

    fn cut(&mut self, id: SequenceId, position: usize) -> usize {
        let left = self.sequences.cut(id, position);
        self.tokens.get_mut(&id).unwrap().truncate(left);
        self.check();
        left
    }

    fn fork(&mut self, id: SequenceId) -> SequenceId {
        let fork = self.sequences.fork(id);
        self.tokens.insert(fork, self.tokens[&id].clone());
        self.check();
        fork
    }

    fn check(&self) {
        for (&id, tokens) in &self.tokens {
            assert_eq!(self.sequences.len(id), tokens.len());
            let state = self.sequences.state(id).map(|state| &self.states[&state]);
            assert_eq!(state.map_or(&[][..], |s| s), &tokens[..], "{id:?}");
        }
    }
}

proptest! {
    /// Whatever is done, there are enough states, and each stands for its sequence's tokens.
    #[test]
    fn states_stand_for_the_tokens_of_their_sequences(
        n in 1_usize..5,
        acts in prop::collection::vec(
            (0_usize..8, any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1_usize..90),
            1..80,
        ),
    ) {
        let mut machine = Machine::new(n);
        let mut ids = vec![machine.open()];
        for (act, i, j, number) in acts {
            let at = i.index(ids.len());
            let (id, len) = (ids[at], machine.sequences.len(ids[at]));
            match act {
                0 if ids.len() < n => ids.push(machine.fork(id)),
                1 if ids.len() < n => ids.push(machine.open()),
                2 if ids.len() > 1 => {
                    machine.sequences.free(ids.swap_remove(at));
                    machine.tokens.remove(&id);
                }
                3 => {
                    let position = j.index(len + 2);
                    let left = machine.cut(id, position);
                    prop_assert!(left <= position || left == len);
                }
                4 => machine.sequences.want_snapshot(id, len + number % 20),
                _ => {
                    let mut growth = vec![(id, number)];
                    let other = ids[j.index(ids.len())];
                    growth.extend((other != id).then_some((other, number % 7)));
                    machine.step(&growth);
                }
            }
        }
    }
}

#[test]
fn a_sequence_is_cut_to_its_snapshot() {
    let mut machine = Machine::new(1);
    let id = machine.open();
    machine.sequences.want_snapshot(id, 30);
    machine.step(&[(id, 20)]);
    machine.step(&[(id, 20)]);
    assert_eq!(machine.cut(id, 40), 40);
    // Again and again, as long as nothing before it is cut off.
    for position in [35, 30, 33] {
        machine.step(&[(id, 10)]);
        assert_eq!(machine.cut(id, position), 30);
    }
    // A new snapshot takes its place, here where the sequence is.
    machine.sequences.want_snapshot(id, 30);
    machine.step(&[(id, 1)]);
    machine.sequences.want_snapshot(id, 31);
    machine.step(&[(id, 5)]);
    machine.step(&[(id, 5)]);
    assert_eq!(machine.cut(id, 40), 31);
    machine.step(&[(id, 5)]);
    assert_eq!(machine.cut(id, 30), 0);
    machine.step(&[(id, 5)]);
    assert_eq!(machine.cut(id, 4), 0);
}

#[test]
fn forks_keep_the_snapshot_and_go_their_own_ways() {
    let mut machine = Machine::new(2);
    let a = machine.open();
    machine.sequences.want_snapshot(a, 7);
    machine.step(&[(a, 20)]);
    let b = machine.fork(a);
    machine.step(&[(a, 3), (b, 4)]);
    assert_eq!(machine.cut(a, 9), 7);
    machine.step(&[(a, 3), (b, 4)]);
    assert_eq!(machine.cut(b, 19), 7);
    machine.step(&[(b, 70), (a, 1)]);
}

#[test]
fn a_window_that_has_gone_on_cuts_to_nothing() {
    let mut machine = Machine::new(1);
    let id = machine.open();
    machine.sequences.want_snapshot(id, 10);
    machine.step(&[(id, 64)]);
    for _ in 0..4 {
        machine.step(&[(id, 64)]);
    }
    assert_eq!(machine.cut(id, 200), 0);
}
