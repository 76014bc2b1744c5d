//! What a session has read and generated, as text and as tokens, so that the next turn reads only what is new.
//!
//! A model's answer stays as the tokens that it generated: encoded again, its text might have others, and the keys and
//! values in memory would be of no use.

use forebay_models::tokenizer::{TextPosition, Tokenizer};

use super::prompt::Prompt;
use crate::error::Error;

/// A place up to which text and tokens correspond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Bytes of the text.
    text: usize,
    /// Number of tokens.
    tokens: usize,
    /// Whether any text may follow: after an answer. After a prompt, tokens might reach across.
    goes_on: bool,
}

/// A conversation as it was read last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcript {
    prompt: Prompt,
    ids: Vec<u32>,
    places: Vec<Place>,
}

impl Transcript {
    /// Adds the answer to the last prompt: what `history` has after the tokens of the conversation so far. `ends`
    /// tells which tokens end an answer.
    pub fn take_answer(
        &mut self,
        history: &[u32],
        tokenizer: &Tokenizer,
        ends: impl Fn(u32) -> bool,
    ) {
        let Some(answer) = history
            .strip_prefix(&*self.ids)
            .filter(|answer| !answer.is_empty())
        else {
            return;
        };
        let (body, end) = match answer.split_last() {
            Some((&last, body)) if ends(last) => (body, Some(last)),
            _ => (answer, None),
        };
        let parts = [body, end.as_slice()];
        // Where nothing was added, what follows may reach across, as after a prompt.
        for ids in parts.into_iter().filter(|ids| !ids.is_empty()) {
            let mut text = tokenizer.detokenizer(false, TextPosition::Continuation);
            for &id in ids {
                text.push_into(id, &mut self.prompt.text);
            }
            self.prompt.text.push_str(&text.finish());
            self.ids.extend_from_slice(ids);
            self.places.push(Place {
                text: self.prompt.text.len(),
                tokens: self.ids.len(),
                goes_on: true,
            });
        }
    }

    /// The tokens of `prompt`, of which as many as possible are those of the conversation so far; more than `most`
    /// stand for all others. `begin` is the token that every text begins with, and its name.
    ///
    /// # Errors
    /// A text that cannot be encoded.
    pub fn follow(
        &mut self,
        prompt: Prompt,
        tokenizer: &Tokenizer,
        begin: Begin<'_>,
        most: usize,
    ) -> Result<&[u32], Error> {
        let known = self
            .places
            .iter()
            .rposition(|place| self.agrees(place, &prompt));
        self.places.truncate(known.map_or(0, |at| at + 1));
        let (mut at, tokens) = self.places.last().map_or((0, 0), |p| (p.text, p.tokens));
        self.ids.truncate(tokens);
        if self.ids.is_empty() {
            at = begin.put(&prompt, &mut self.ids);
        }
        let position = tokenizer.position_after(self.ids.last().copied());
        let first = prompt.breaks.partition_point(|&place| place < at);
        if let Some(&last) = self.ids.last() {
            let end = prompt
                .breaks
                .get(first)
                .copied()
                .unwrap_or(prompt.text.len());
            at += tokenizer.swallowed(last, &prompt.text[at..end]);
        }
        let breaks: Vec<usize> = prompt.breaks[first..]
            .iter()
            .map(|place| place - at)
            .collect();
        let room = most.saturating_sub(self.ids.len());
        let new = tokenizer.encode_unbroken((&prompt.text[at..], position), &breaks, room)?;
        if self.ids.is_empty() {
            self.ids
                .extend(begin.token.filter(|id| new.first() != Some(id)));
        }
        self.ids.extend(new);
        self.places.push(Place {
            text: prompt.text.len(),
            tokens: self.ids.len(),
            goes_on: false,
        });
        self.prompt = prompt;
        Ok(&self.ids)
    }

    /// Whether the conversation so far is as `prompt` up to this place.
    fn agrees(&self, place: &Place, prompt: &Prompt) -> bool {
        let own = &self.prompt;
        let same_text =
            prompt.text.as_bytes().get(..place.text) == own.text.as_bytes().get(..place.text);
        let up_to = |breaks: &[usize]| breaks.partition_point(|&at| at <= place.text);
        let same_breaks =
            prompt.breaks[..up_to(&prompt.breaks)] == own.breaks[..up_to(&own.breaks)];
        same_text && same_breaks && (place.goes_on || prompt.text.len() == place.text)
    }
}

/// The token that every text begins with, where there is one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Begin<'a> {
    /// The token that the vocabulary adds.
    pub token: Option<u32>,
    /// The token with which templates begin, and its name.
    pub written: Option<(u32, &'a str)>,
}

impl Begin<'_> {
    /// Puts the written token in front if `prompt` begins with its name, which need not be that of a control token.
    /// Returns the length of the name.
    fn put(&self, prompt: &Prompt, ids: &mut Vec<u32>) -> usize {
        let Some((id, name)) = self.written.filter(|(_, name)| !name.is_empty()) else {
            return 0;
        };
        let is_own = prompt.breaks.first().is_none_or(|&at| at >= name.len());
        if !is_own || !prompt.text.starts_with(name) {
            return 0;
        }
        ids.push(id);
        name.len()
    }
}

#[cfg(test)]
mod tests {
    use forebay_models::tokenizer::{EncodeOptions, TokenizerModel, TokenizerSpec};

    use super::*;

    /// `<|user|>` 2 and `<|end|>` 3 swallow white space.
    fn tokenizer() -> Tokenizer {
        let tokens = ["<unk>", "\n", "<|user|>", "<|end|>", "a", "b"];
        let spec = TokenizerSpec {
            model: TokenizerModel::SentencePiece {
                tokens: tokens.map(String::from).into(),
                scores: vec![0.0; tokens.len()],
                types: vec![2, 1, 3, 3, 1, 1],
                add_space_prefix: false,
                swallows_space: true,
            },
            bos: None,
            eog: vec![3],
            add_bos: false,
        };
        Tokenizer::from_spec(spec).expect("a tokenizer")
    }

    /// As if the conversation were read at once.
    #[test]
    fn what_an_answers_end_swallows_is_swallowed_in_the_next_turn() {
        let tokenizer = tokenizer();
        let prompt = |text: &str| Prompt {
            text: text.into(),
            breaks: Vec::new(),
        };
        let mut transcript = Transcript::default();
        let mut follow = |text: &str, answer: &[u32]| {
            let followed = transcript.follow(prompt(text), &tokenizer, Begin::default(), 100);
            let ids = followed.expect("a short text").to_vec();
            let history = [&ids, answer].concat();
            transcript.take_answer(&history, &tokenizer, |id| tokenizer.is_eog(id));
            ids
        };
        let first = "<|user|>\na";
        assert_eq!(follow(first, &[5, 3]), [2, 4]);
        let second = format!("{first}b<|end|>\n<|user|>\nb\n");
        let whole = EncodeOptions {
            add_bos: false,
            parse_special: true,
        };
        let whole = tokenizer.encode(&second, whole).expect("a short text");
        assert_eq!(follow(&second, &[]), whole);
        assert_eq!(whole, [2, 4, 5, 3, 2, 5, 1]);
    }
}
