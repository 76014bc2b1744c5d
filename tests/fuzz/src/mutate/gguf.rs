//! Changes to GGUF headers by their structure: numbers where numbers are, whole entries removed or doubled with the
//! counts right, so that what lies behind stays readable.

use std::ops::Range;

use super::renumber;
use crate::random::Random;

/// Places of the counts of tensors and of metadata entries.
const TENSORS: usize = 8;
const ENTRIES: usize = 16;

/// What a header consists of.
#[derive(Debug, Default)]
struct Parts {
    /// Offsets and sizes of its integers.
    numbers: Vec<(usize, usize)>,
    /// Texts without their lengths.
    texts: Vec<Range<usize>>,
    /// Metadata entries.
    entries: Vec<Range<usize>>,
    /// Tensor infos.
    tensors: Vec<Range<usize>>,
}

struct Walker<'a> {
    input: &'a [u8],
    at: usize,
    parts: Parts,
}

impl Walker<'_> {
    fn number(&mut self, size: usize) -> Option<u64> {
        let bytes = self.input.get(self.at..self.at + size)?;
        let mut value = [0; 8];
        value[..size].copy_from_slice(bytes);
        self.parts.numbers.push((self.at, size));
        self.at += size;
        Some(u64::from_le_bytes(value))
    }

    fn text(&mut self) -> Option<()> {
        let len = usize::try_from(self.number(8)?).ok()?;
        let end = self
            .at
            .checked_add(len)
            .filter(|&e| e <= self.input.len())?;
        self.parts.texts.push(self.at..end);
        self.at = end;
        Some(())
    }

    fn value(&mut self, kind: u64) -> Option<()> {
        match kind {
            0 | 1 | 7 => drop(self.number(1)?),
            2 | 3 => drop(self.number(2)?),
            4..=6 => drop(self.number(4)?),
            8 => self.text()?,
            9 => {
                let kind = self.number(4).filter(|&kind| kind != 9)?;
                let count = self.number(8)?;
                for _ in 0..count {
                    self.value(kind)?;
                }
            }
            10..=12 => drop(self.number(8)?),
            _ => return None,
        }
        Some(())
    }

    fn entry(&mut self) -> Option<()> {
        let start = self.at;
        self.text()?;
        let kind = self.number(4)?;
        self.value(kind)?;
        self.parts.entries.push(start..self.at);
        Some(())
    }

    fn tensor(&mut self) -> Option<()> {
        let start = self.at;
        self.text()?;
        for _ in 0..self.number(4).filter(|&n| n <= 4)? {
            self.number(8)?;
        }
        self.number(4)?;
        self.number(8)?;
        self.parts.tensors.push(start..self.at);
        Some(())
    }

    fn header(&mut self) -> Option<()> {
        self.number(4)?;
        self.number(4)?;
        let (tensors, entries) = (self.number(8)?, self.number(8)?);
        (0..entries).try_for_each(|_| self.entry())?;
        (0..tensors).try_for_each(|_| self.tensor())
    }
}

/// Changes the header `input`, also by its bytes alone; `other` is another one.
pub fn change(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    loop {
        if random.one_in(6) || change_parts(input, random).is_none() {
            super::bytes(input, other, random);
        }
        if random.below(3) != 0 {
            return;
        }
    }
}

fn change_parts(input: &mut Vec<u8>, random: &mut Random) -> Option<()> {
    let mut walker = Walker {
        input,
        at: 0,
        parts: Parts::default(),
    };
    // What was walked over before damage is still of use.
    let _ = walker.header();
    let parts = walker.parts;
    match random.below(8) {
        0 | 1 => {
            let &(at, size) = some(&parts.numbers, random)?;
            renumber(input, at, size, random);
        }
        // Most numbers are those of the vocabulary; those of settings and tensors are near the ends.
        2 | 3 => {
            let (part, is_tensor) = one(&parts, random)?;
            let own: Vec<_> = parts
                .numbers
                .iter()
                .filter(|n| part.contains(&n.0))
                .collect();
            let tail = own.len().saturating_sub(if is_tensor { 4 } else { 2 });
            let &&(at, size) = some(&own[tail..], random)?;
            renumber(input, at, size, random);
        }
        4 => {
            let text = some(&parts.texts, random)?.clone();
            if !text.is_empty() {
                let at = text.start + random.below(text.len());
                input[at] = *random.pick(b"a0. _\xff\0<");
            }
        }
        5 => {
            let (part, is_tensor) = one(&parts, random)?;
            count(input, is_tensor, -1);
            input.drain(part);
        }
        6 => {
            let (part, is_tensor) = one(&parts, random)?;
            let copy = input[part.clone()].to_vec();
            count(input, is_tensor, 1);
            input.splice(part.end..part.end, copy);
        }
        // One text in another's place: a key, a name, a token twice.
        _ => {
            let from = some(&parts.texts, random)?;
            let to = some(&parts.texts, random)?;
            let text = input[from.clone()].to_vec();
            input[to.start - 8..to.start].copy_from_slice(&(text.len() as u64).to_le_bytes());
            input.splice(to.clone(), text);
        }
    }
    Some(())
}

fn some<'a, T>(items: &'a [T], random: &mut Random) -> Option<&'a T> {
    items.get(random.below(items.len()))
}

/// An entry or a tensor info, and whether it is the latter.
fn one(parts: &Parts, random: &mut Random) -> Option<(Range<usize>, bool)> {
    let is_tensor = random.one_in(2);
    let all = if is_tensor {
        &parts.tensors
    } else {
        &parts.entries
    };
    Some((some(all, random)?.clone(), is_tensor))
}

/// Adds `by` to the count of tensors or entries.
fn count(input: &mut [u8], tensors: bool, by: i64) {
    let at = if tensors { TENSORS } else { ENTRIES };
    let mut old = [0; 8];
    old.copy_from_slice(&input[at..at + 8]);
    let new = u64::from_le_bytes(old).wrapping_add_signed(by);
    input[at..at + 8].copy_from_slice(&new.to_le_bytes());
}
