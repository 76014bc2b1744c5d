//! Prompts with an exact number of tokens. They are put together from pieces that are one token each in the
//! model's vocabulary; every run checks the count.

/// How prompts are written for a tokenizer.
#[derive(Debug)]
pub struct PromptStyle {
    /// The first token. For models that always begin with BOS it is the name of BOS, which is then not added a
    /// second time: there is no other prompt of a single token.
    begin: &'static str,
    /// Tokens that the tokenizer adds before the first piece.
    added: usize,
    pieces: Pieces,
}

#[derive(Debug)]
enum Pieces {
    /// Each is written with a space before it.
    Words(&'static [&'static str]),
    Characters(&'static str),
}

/// With a space before it, each is one token for the demo, SmolLM2 and Qwen.
const COMMON_WORDS: &[&str] = &[
    "the", "to", "and", "was", "he", "it", "in", "with", "day", "said", "play", "be", "up", "his",
    "she", "on", "that", "you", "big", "little", "time", "there", "they", "friend", "had", "of",
    "so", "saw", "for", "very", "happy", "but", "not", "girl", "as", "went", "toy", "help", "an",
    "did", "is", "him", "bird", "out", "go", "all", "could", "at", "can", "boy", "asked", "have",
    "them", "are", "sad", "together", "found", "back", "park", "felt", "their", "like", "looked",
    "man",
];

/// For the demo.
pub const STORY: PromptStyle = PromptStyle {
    begin: "<|begin|>",
    added: 0,
    pieces: Pieces::Words(COMMON_WORDS),
};

/// For SmolLM2 and Qwen, which do not begin with BOS.
pub const WORDS: PromptStyle = PromptStyle {
    begin: "Once",
    ..STORY
};

/// For the random models, which merge lower-case letters only.
pub const LETTERS: PromptStyle = PromptStyle {
    begin: "<|begin|>",
    added: 0,
    pieces: Pieces::Characters("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:;<=>?@+-*/"),
};

/// For the synthetic model: a token per byte, and a space before the text.
pub const BYTES: PromptStyle = PromptStyle {
    begin: "<s>",
    added: 1,
    pieces: Pieces::Characters("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,;!?"),
};

impl PromptStyle {
    /// A text of `tokens` tokens. Texts of different lengths share the first token only, so that one does not
    /// find the keys and values of another in the cache.
    pub fn text(&self, tokens: usize) -> String {
        let mut text = self.begin.to_owned();
        let mut random = tokens as u64;
        for _ in (1 + self.added)..tokens {
            // Knuth's MMIX generator; its upper bits are the random ones.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            self.push_piece((random >> 33) as usize, &mut text);
        }
        text
    }

    fn push_piece(&self, random: usize, text: &mut String) {
        match self.pieces {
            Pieces::Words(words) => {
                text.push(' ');
                text.push_str(words[random % words.len()]);
            }
            Pieces::Characters(all) => {
                let at = random % all.len();
                text.push_str(&all[at..=at]);
            }
        }
    }
}
