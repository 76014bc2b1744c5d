use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::kernels::kv::BLOCK;

mod states;

/// What a position of a block holds: a token's own number, or that of one whose place was used again.
type Content = u64;

/// Block tables with a model of the memory behind them: what the cores would find.
struct Machine {
    sequences: Sequences,
    shapes: Vec<PoolShape>,
    /// The tokens of each open sequence.
    tokens: HashMap<SequenceId, Vec<Content>>,
    memory: HashMap<(usize, u32, usize), Content>,
    next: Content,
}

impl Machine {
    fn new(shapes: &[PoolShape]) -> Self {
        Self {
            sequences: Sequences::new(shapes, 0),
            shapes: shapes.to_vec(),
            tokens: HashMap::new(),
            memory: HashMap::new(),
            next: 0,
        }
    }

    fn open(&mut self) -> SequenceId {
        let id = self.sequences.open();
        self.tokens.insert(id, Vec::new());
        id
    }

    /// A step with new tokens in some sequences: all of them grow, then all copies are made, then all is written.
    fn step(&mut self, growth: &[(SequenceId, usize)]) -> Result<(), Full> {
        let mut copies = Copies::default();
        let mut done = Ok(());
        let mut written = Vec::new();
        for &(id, n) in growth {
            let before = self.sequences.len(id);
            match self.sequences.extend(id, n, &mut copies) {
                Ok(()) => written.push((id, before..before + n)),
                Err(full) => {
                    assert!(full.needed > full.free, "{full}");
                    assert_eq!(self.sequences.len(id), before);
                    done = Err(full);
                }
            }
        }
        for copy in copies.blocks {
            for offset in 0..BLOCK {
                let from = self.memory.get(&(copy.pool, copy.from, offset)).copied();
                let to = (copy.pool, copy.to, offset);
                match from {
                    Some(content) => self.memory.insert(to, content),
                    None => self.memory.remove(&to),
                };
            }
        }
        for (id, positions) in written {
            for position in positions {
                self.next += 1;
                self.tokens.get_mut(&id).unwrap().push(self.next);
                for pool in 0..self.shapes.len() {
                    let block = self.sequences.table(id, pool)[position / BLOCK];
                    let place = (pool, block, position % BLOCK);
                    self.memory.insert(place, self.next);
                }
            }
        }
        done
    }

    fn fork(&mut self, id: SequenceId) -> SequenceId {
        let fork = self.sequences.fork(id);
        let tokens = self.tokens[&id].clone();
        assert!(self.tokens.insert(fork, tokens).is_none());
        fork
    }

    fn cut(&mut self, id: SequenceId, position: usize) -> usize {
        let left = self.sequences.cut(id, position);
        self.tokens.get_mut(&id).unwrap().truncate(left);
        left
    }

    fn free(&mut self, id: SequenceId) {
        self.sequences.free(id);
        self.tokens.remove(&id);
    }

    /// Every sequence finds what its next token sees, and no block is lost or counted wrongly.
    fn check(&self) {
        for (pool, shape) in self.shapes.iter().enumerate() {
            let mut users = vec![0; shape.blocks];
            for (&id, tokens) in &self.tokens {
                assert_eq!(self.sequences.len(id), tokens.len());
                let table = self.sequences.table(id, pool);
                assert_eq!(table.len(), tokens.len().div_ceil(BLOCK));
                for &block in table.iter().filter(|&&block| block != GONE) {
                    users[block as usize] += 1;
                }
                let window = shape.window.unwrap_or(usize::MAX);
                for seen in (tokens.len() + 1).saturating_sub(window)..tokens.len() {
                    let place = (pool, table[seen / BLOCK], seen % BLOCK);
                    assert_eq!(
                        self.memory.get(&place),
                        Some(&tokens[seen]),
                        "{id:?} {seen}"
                    );
                }
            }
            assert_eq!(self.sequences.pools[pool].users(), users);
            let unused = users.iter().filter(|&&n| n == 0).count();
            assert_eq!(self.sequences.free_blocks(pool), unused);
        }
    }
}

fn shape(blocks: usize, window: Option<usize>) -> PoolShape {
    PoolShape { blocks, window }
}

#[derive(Clone, Debug)]
enum Act {
    Open,
    Step(Vec<(prop::sample::Index, usize)>),
    Fork(prop::sample::Index),
    Cut(prop::sample::Index, usize),
    CutBack(prop::sample::Index, usize),
    Free(prop::sample::Index),
}

fn act() -> impl Strategy<Value = Act> {
    let index = any::<prop::sample::Index>;
    let growth = prop::collection::vec((index(), 0_usize..150), 1..4);
    prop_oneof![
        2 => Just(Act::Open),
        6 => growth.prop_map(Act::Step),
        2 => index().prop_map(Act::Fork),
        2 => (index(), 0_usize..600).prop_map(|(i, at)| Act::Cut(i, at)),
        2 => (index(), 0_usize..20).prop_map(|(i, back)| Act::CutBack(i, back)),
        1 => index().prop_map(Act::Free),
    ]
}

proptest! {
    /// Whatever is done, sequences keep their own tokens; what was taken is returned.
    #[test]
    fn sequences_keep_their_tokens(
        blocks in 1_usize..30,
        window in 1_usize..200,
        acts in prop::collection::vec(act(), 1..60),
    ) {
        let shapes = [shape(blocks, None), shape(blocks, Some(window)), shape(9, Some(64))];
        let mut machine = Machine::new(&shapes);
        for act in acts {
            let mut ids: Vec<SequenceId> = machine.tokens.keys().copied().collect();
            ids.sort_unstable();
            if ids.is_empty() {
                machine.open();
                continue;
            }
            match act {
                Act::Open => {
                    machine.open();
                }
                Act::Step(growth) => {
                    let growth: Vec<_> = growth.iter().map(|(i, n)| (*i.get(&ids), *n)).collect();
                    let _ = machine.step(&growth);
                }
                Act::Fork(i) => {
                    machine.fork(*i.get(&ids));
                }
                Act::Cut(i, at) => {
                    let len = machine.sequences.len(*i.get(&ids));
                    let left = machine.cut(*i.get(&ids), at);
                    prop_assert!(left == 0 || left == at.min(len));
                }
                Act::CutBack(i, back) => {
                    let id = *i.get(&ids);
                    let at = machine.sequences.len(id).saturating_sub(back);
                    machine.cut(id, at);
                }
                Act::Free(i) => machine.free(*i.get(&ids)),
            }
            machine.check();
        }
        let ids: Vec<SequenceId> = machine.tokens.keys().copied().collect();
        for id in ids {
            machine.free(id);
        }
        for (pool, shape) in shapes.iter().enumerate() {
            prop_assert_eq!(machine.sequences.free_blocks(pool), shape.blocks);
        }
    }

    /// Where there is room for some sequences, that many never find the cache full, forks included.
    #[test]
    fn room_for_all_is_room_for_all(
        n in 1_usize..5,
        context in 1_usize..700,
        window in 1_usize..300,
        max_tokens in 1_usize..100,
        acts in prop::collection::vec((0_usize..5, 0_usize..3, any::<prop::sample::Index>()), 1..80),
    ) {
        let shapes = [None, Some(window)].map(|window| {
            shape(n * PoolShape::blocks_of_sequence(window, context, max_tokens), window)
        });
        let mut machine = Machine::new(&shapes);
        let mut ids: Vec<SequenceId> = (0..n).map(|_| machine.open()).collect();
        for (i, what, how_many) in acts {
            let (i, other) = (i % n, how_many.index(n));
            match what {
                0 if i != other => {
                    machine.free(ids[i]);
                    ids[i] = machine.fork(ids[other]);
                }
                1 => {
                    let back = how_many.index(max_tokens + 1);
                    let at = machine.sequences.len(ids[i]).saturating_sub(back);
                    machine.cut(ids[i], at);
                }
                _ => {
                    let room = context - machine.sequences.len(ids[i]);
                    let tokens = (how_many.index(max_tokens) + 1).min(room);
                    prop_assert_eq!(machine.step(&[(ids[i], tokens)]), Ok(()));
                }
            }
            machine.check();
        }
    }
}

#[test]
fn blocks_are_shared_until_one_writes() {
    let mut machine = Machine::new(&[shape(10, None)]);
    let a = machine.open();
    machine.step(&[(a, 100)]).unwrap();
    let b = machine.fork(a);
    assert_eq!(machine.sequences.free_blocks(0), 8);
    let mut copies = Copies::default();
    machine.sequences.extend(b, 1, &mut copies).unwrap();
    let copy = BlockCopy {
        pool: 0,
        from: 1,
        to: 2,
    };
    assert_eq!(copies.blocks, [copy]);
    // Now each has its own.
    machine.sequences.extend(a, 1, &mut copies).unwrap();
    assert_eq!(copies.blocks, [copy]);
    assert_eq!(machine.sequences.table(a, 0), [0, 1]);
    assert_eq!(machine.sequences.table(b, 0), [0, 2]);
    // A block that begins with the first new token is not shared.
    machine.sequences.cut(a, 64);
    let c = machine.sequences.fork(a);
    machine.sequences.extend(c, 1, &mut copies).unwrap();
    assert_eq!(copies.blocks.len(), 1);
    assert_eq!(machine.sequences.table(c, 0), [0, 1]);
}

#[test]
fn a_window_is_a_ring() {
    // Blocks for 100 positions and steps of up to 30 tokens.
    let blocks = PoolShape::blocks_of_sequence(Some(100), 100_000, 30);
    assert_eq!(blocks, 4);
    let mut machine = Machine::new(&[shape(blocks, Some(100))]);
    let id = machine.open();
    for step in 0..100 {
        machine.step(&[(id, 1 + step % 30)]).unwrap();
        machine.check();
    }
    let len = machine.sequences.len(id);
    // The last step's tokens can be dropped, but what left the window is lost.
    assert_eq!(machine.cut(id, len - 10), len - 10);
    assert_eq!(machine.cut(id, len + 5), len - 10);
    machine.check();
    assert_eq!(machine.cut(id, len - 150), 0);
    assert_eq!(machine.sequences.free_blocks(0), blocks);
    machine.step(&[(id, 70)]).unwrap();
    machine.check();
    assert_eq!(PoolShape::blocks_of_sequence(Some(100), 65, 30), 2);
    assert_eq!(PoolShape::blocks_of_sequence(None, 65, 30), 2);
}

#[test]
fn a_full_pool_says_so_and_changes_nothing() {
    let mut machine = Machine::new(&[shape(3, None), shape(2, None)]);
    let a = machine.open();
    let full = Full {
        lack: Lack::Blocks(1),
        needed: 3,
        free: 2,
    };
    assert_eq!(machine.step(&[(a, 129)]), Err(full));
    machine.step(&[(a, 128)]).unwrap();
    let b = machine.open();
    assert!(machine.step(&[(b, 1)]).is_err());
    machine.check();
    machine.free(a);
    machine.step(&[(b, 128)]).unwrap();
    // The number of a closed sequence is used again.
    assert_eq!(machine.open(), a);
}

#[test]
fn the_cores_get_the_tables_of_the_step() {
    let mut sequences = Sequences::new(&[shape(9, None), shape(9, Some(64))], 0);
    let ids = [sequences.open(), sequences.open(), sequences.open()];
    let mut copies = Copies::default();
    for (i, &id) in ids.iter().enumerate() {
        sequences.extend(id, 70 * (i + 1), &mut copies).unwrap();
    }
    let mut tables = Tables::default();
    for step in [&[2, 2, 0][..], &[1], &[0, 1, 2]] {
        let place = |&i: &usize| TokenPlace {
            sequence: ids[i],
            position: 0,
        };
        tables.fill(&sequences, &step.iter().map(place).collect::<Vec<_>>());
        for &i in step {
            for pool in 0..2 {
                let want = sequences.table(ids[i], pool);
                assert_eq!(tables.table(ids[i], pool), want);
            }
        }
    }
}
