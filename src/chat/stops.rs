//! Stop strings: text that may be the beginning of one is held back until it is decided.

use super::{AnswerReader, Part};

/// Passes generated text on, up to the first stop string.
#[derive(Debug)]
pub(crate) struct Stops {
    strings: Vec<String>,
    /// If only the texts of an answer count, and neither its reasoning nor what marks its parts. All is passed on then:
    /// who takes the answer apart looks for the strings as well.
    answer: Option<AnswerReader>,
    /// Text not passed on yet: the beginning of one of the strings.
    held: String,
}

impl Stops {
    /// None of `strings` may be empty.
    pub fn new(strings: Vec<String>, answer: Option<AnswerReader>) -> Self {
        Self {
            strings,
            answer,
            held: String::new(),
        }
    }

    /// Takes the next piece of text. Returns what can be passed on, and whether a stop string was found, after which
    /// nothing more is passed on.
    pub fn push(&mut self, piece: String) -> (String, bool) {
        if self.strings.is_empty() {
            return (piece, false);
        }
        let Some(answer) = &mut self.answer else {
            return self.look_into(&piece);
        };
        let parts = answer.push(&piece);
        (piece, self.are_in(parts))
    }

    /// Whether one is in the texts of an answer; none reaches across its other parts.
    fn are_in(&mut self, parts: Vec<Part>) -> bool {
        parts.into_iter().any(|part| match part {
            Part::Text(text) => self.look_into(&text).1,
            Part::Reasoning(_) | Part::Call(_) => {
                self.held.clear();
                false
            }
        })
    }

    fn look_into(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        if let Some(at) = first(&self.strings, &self.held) {
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return (text, true);
        }
        let begins = |tail: &str| self.strings.iter().any(|s| s.starts_with(tail));
        let mut tails = self.held.char_indices().map(|(at, _)| at);
        let kept = tails.find(|&at| begins(&self.held[at..]));
        let tail = self.held.split_off(kept.unwrap_or(self.held.len()));
        (std::mem::replace(&mut self.held, tail), false)
    }

    /// Takes the last piece of text and returns it with what was held back.
    pub fn finish(&mut self, piece: String) -> (String, bool) {
        let (mut text, found) = self.push(piece);
        let Some(answer) = self.answer.as_mut().filter(|_| !self.strings.is_empty()) else {
            text.push_str(&std::mem::take(&mut self.held));
            return (text, found);
        };
        let parts = answer.finish();
        (text, found || self.are_in(parts))
    }
}

/// Where the string that is complete first begins; of several that end together, the longest.
fn first(strings: &[String], text: &str) -> Option<usize> {
    let found = strings
        .iter()
        .filter_map(|s| text.find(&**s).map(|at| (at + s.len(), at)));
    found.min().map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stops(strings: &[&str]) -> Stops {
        Stops::new(strings.iter().map(|s| (*s).to_string()).collect(), None)
    }

    #[test]
    fn a_beginning_is_held_back_until_it_is_known() {
        let mut s = stops(&["\n\nQ:"]);
        assert_eq!(s.push("one\n".into()), ("one".into(), false));
        assert_eq!(s.push("\n".into()), (String::new(), false));
        assert_eq!(s.push("two\n\n".into()), ("\n\ntwo".into(), false));
        assert_eq!(s.push("Q: and more".into()), (String::new(), true));
        let mut s = stops(&["END"]);
        assert_eq!(s.push("EN".into()), (String::new(), false));
        assert_eq!(s.finish(String::new()), ("EN".into(), false));
    }

    #[test]
    fn the_first_of_several_counts() {
        let mut s = stops(&["abc", "b"]);
        assert_eq!(s.push("xab".into()), ("xa".into(), true));
    }

    #[test]
    fn only_texts_of_an_answer_count() {
        let reader = AnswerReader::new("", Vec::new(), false, 0);
        let mut s = Stops::new(vec!["END".into(), "think".into()], Some(reader));
        for piece in ["<think>the END", "\n</think>", "an EN"] {
            assert_eq!(s.push(piece.into()), (piece.into(), false));
        }
        assert_eq!(s.push("D.".into()), ("D.".into(), true));
    }

    proptest! {
        /// However a text is cut into pieces, it ends before the first stop string.
        #[test]
        fn pieces_make_no_difference(
            pieces in prop::collection::vec("[abä]{0,3}", 0..12),
            strings in prop::collection::vec("[abä]{1,4}", 0..3),
        ) {
            let whole = pieces.concat();
            let end = first(&strings, &whole);
            let mut stops = Stops::new(strings, None);
            let (mut passed, mut found) = (String::new(), false);
            for piece in pieces {
                let (text, stop) = stops.push(piece);
                passed += &text;
                found = stop;
                if found {
                    break;
                }
            }
            if !found {
                passed += &stops.finish(String::new()).0;
            }
            prop_assert_eq!(found, end.is_some());
            prop_assert_eq!(&passed, &whole[..end.unwrap_or(whole.len())]);
        }
    }
}
