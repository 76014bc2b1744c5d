//! Random texts in which what matters to a pre-tokenizer is frequent: the same for the same seed.

use crate::random::split_mix;

/// Seeded numbers.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// A number below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (split_mix(&mut self.0) % n as u64) as usize
    }
}

/// Characters that stand side by side in texts.
const ALPHABETS: [&str; 23] = [
    "abcdehilnorstuvwxyz",
    "ABCDEHILNORSTVXYZ",
    "aAbBéÉ",
    "éèüßøÉÈÜØſ",
    "абвгяАБВГЯ",
    "αβγΑΒΓΩ",
    "աբԱԲაბ",
    "中文字典汉語",
    "あいうカタカナー",
    "한국어",
    "عربيאבג",
    "हिन्दीไทย",
    "0123456789",
    "٣٤५Ⅷ½²①",
    ".,!?;:'\"-_()[]{}<>/\\@#$%^&*+=|~`",
    "！，。：；「」…—‘’“”",
    "€£©°±→≤",
    "\n\r",
    "\t\u{a0}\u{3000}\u{2003}\u{85}\u{b}",
    "\u{301}\u{300}\u{308}\u{94d}\u{93e}",
    "😀👍🏽🇩🇪\u{200d}",
    "\u{200b}\u{feff}\0\u{1b}\u{e000}",
    "\u{212a}\u{2126}ǅǈʰªº〇々⺀〡",
];

const PARTS: [&str; 26] = [
    "the",
    " the",
    " of",
    "The",
    "'s",
    "'S",
    "'re",
    "'RE",
    "'ll",
    "'lL",
    "'d",
    "'ſ",
    "don't",
    "CamelCase",
    "HTTPServer",
    "ÉtéÉté",
    "ПриветМир",
    "中A中",
    "3.14159",
    "1,234,567",
    "2024",
    "  \n \n",
    "\r\n",
    "://a.b/c?d",
    " = {",
    "//\n/",
];

/// A text of up to 24 parts.
pub(super) fn random_text(random: &mut Random) -> String {
    let mut text = String::new();
    for _ in 0..1 + random.below(24) {
        match random.below(8) {
            0 | 1 => text.push_str(PARTS[random.below(PARTS.len())]),
            2 | 3 => text.push_str(&" ".repeat(1 + random.below(3))),
            _ => {
                let chars: Vec<char> = ALPHABETS[random.below(ALPHABETS.len())].chars().collect();
                for _ in 0..1 + random.below(5) {
                    text.push(chars[random.below(chars.len())]);
                }
            }
        }
    }
    text
}
