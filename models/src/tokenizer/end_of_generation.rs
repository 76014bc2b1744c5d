//! Tokens that end a generation by their name, since few model files list all of theirs.

use std::collections::BTreeSet;

/// Names of tokens that end a turn or a text, and of fill-in-the-middle tokens that end a file: those
/// by which llama.cpp recognises them.
const NAMES: [&str; 32] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "[e~[",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
    "<turn|>",
    "<|tool_response>",
];

/// Whether a token of this name ends a generation, given whether the file says that it is special.
/// `</s>` has to be: to models that know it as the end of a line struck through it is plain text.
pub(super) fn is_named(text: &str, is_special: bool) -> bool {
    NAMES.contains(&text) || (is_special && text == "</s>")
}

/// Takes `<|end|>` out of `eog` where the names show that it only ends a message: models of the
/// Harmony format end a turn with `<|return|>` or `<|call|>`, Solar with `<|calls|>` or `<|flush|>`.
pub(super) fn keep_message_ends(eog: &mut BTreeSet<u32>, id_of: impl Fn(&str) -> Option<u32>) {
    let has = |name| id_of(name).is_some();
    let has_call = has("<|call|>") || has("<|calls|>");
    if has_call
        && (has("<|return|>") || has("<|flush|>"))
        && let Some(end) = id_of("<|end|>")
    {
        eog.remove(&end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert!(is_named("<|im_end|>", false) && is_named("<|file_sep|>", true));
        assert!(is_named("</s>", true) && !is_named("</s>", false));
        assert!(!is_named("<|im_start|>", true));
    }

    #[test]
    fn a_message_end_is_no_end_where_there_are_turn_ends() {
        let cases: [(&[&str], bool); 5] = [
            (&["<|end|>"], true),
            (&["<|end|>", "<|return|>"], true),
            (&["<|end|>", "<|return|>", "<|call|>"], false),
            (&["<|end|>", "<|flush|>", "<|calls|>"], false),
            (&["<|end|>", "<|return|>", "<|flush|>"], true),
        ];
        for (vocab, expected) in cases {
            let mut eog: BTreeSet<u32> = (0..vocab.len() as u32).collect();
            let id_of = |name: &str| vocab.iter().position(|t| *t == name).map(|at| at as u32);
            keep_message_ends(&mut eog, id_of);
            assert_eq!(eog.contains(&0), expected, "{vocab:?}");
        }
    }
}
