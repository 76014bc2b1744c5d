//! Changes to texts: characters with a history of trouble, runs, names of special tokens.

use crate::random::Random;

/// What is put in.
const PIECES: [&str; 30] = [
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\u{a0}",
    "\u{3000}",
    "\u{2581}",
    "\u{feff}",
    "\u{200d}",
    "\u{301}",
    "\u{fffd}",
    "\u{10ffff}",
    "\0",
    "'s",
    "'LL",
    "\u{17f}",
    "\u{130}",
    "0",
    "１２３",
    "½",
    "你好",
    "שלום",
    "👩‍👩‍👧",
    "<s>",
    "</s>",
    "<|im_end|>",
    "<0x0A>",
    "<0xFF>",
    "<unk>",
];

/// Changes `input`, whether or not it is UTF-8; `other` is another input.
pub fn change(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    if random.one_in(4) {
        return super::bytes(input, other, random);
    }
    let at = random.below(input.len() + 1);
    let piece = random.pick(&PIECES).bytes();
    match random.below(4) {
        0 | 1 => drop(input.splice(at..at, piece)),
        2 => {
            let times = *random.pick(&[2, 3, 17, 300]);
            let run: Vec<u8> = piece.collect();
            input.splice(at..at, run.repeat(times));
        }
        _ => {
            let block = input[random.range(input.len())].to_vec();
            input.splice(at..at, block.repeat(1 + random.below(20)));
        }
    }
}
