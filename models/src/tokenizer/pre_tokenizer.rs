//! Cutting a text into words, inside which byte-level BPE merges.
//!
//! Each scanner is a published regular expression, carried out by hand as llama.cpp does: in linear
//! time and without an automaton's memory. The expressions are those of the models' own
//! `tokenizer.json`; they stand in the comments, and the tests compare every scanner with them on
//! random texts.

mod cased;
mod cl100k;
mod cut;
mod deepseek;
mod families;
mod gpt2;

pub(super) use families::{DEFAULT, GEMMA4};

use super::unicode_class::CharClasses;

/// One cut of a text: hands all of its parts to the function, in order; together they are the text.
type Stage = for<'t> fn(&'t str, &CharClasses, &mut dyn FnMut(&'t str));

/// `tokenizer.ggml.pre`: how a text is cut, and what else the name implies.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    /// Each cuts the parts that the one before it has made.
    stages: &'static [Stage],
    ignores_merges: bool,
    adds_bos: bool,
}

impl PreTokenizer {
    /// Whether a word that is a token as a whole is taken as that token, without merging.
    pub(super) fn ignores_merges(self) -> bool {
        self.ignores_merges
    }

    /// Whether prompts begin with BOS if the file does not tell.
    pub(super) fn adds_bos(self) -> bool {
        self.adds_bos
    }

    /// Hands every word of `text` to `emit`, in order; together they are the text.
    pub(super) fn split<'t>(
        self,
        text: &'t str,
        classes: &CharClasses,
        emit: &mut dyn FnMut(&'t str),
    ) {
        in_stages(text, self.stages, classes, emit);
    }
}

fn in_stages<'t>(
    text: &'t str,
    stages: &[Stage],
    classes: &CharClasses,
    emit: &mut dyn FnMut(&'t str),
) {
    match stages {
        [] => emit(text),
        [stage, rest @ ..] => stage(text, classes, &mut |part| {
            in_stages(part, rest, classes, emit)
        }),
    }
}

#[cfg(test)]
mod tests;
