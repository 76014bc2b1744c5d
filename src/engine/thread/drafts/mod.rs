//! Drafts: tokens that are expected to come next, because they followed the last ones earlier in the text, or because a
//! smaller model would say them, or the model itself without what is not in memory. They are run in the last token's
//! step, and kept as far as the sampler chooses the same. So they change the speed only.

mod itself;
mod lookup;
pub(in crate::engine) mod model;
mod pace;
mod record;

use forebay_plans::preload::MOST_DRAFTED;

use crate::engine::thread::evaluator::Evaluator;
use crate::error::Error;
use lookup::Repeat;
use model::DraftModel;
use pace::{Hits, Pace, best_length};
use record::Record;

/// After this many steps of the same kind, plain or with a draft, the other kind is measured again.
const PROBE_AFTER: u64 = 64;

/// The tokens of a step, and what is expected of the sampler.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Draft {
    /// The text's last token and those that are expected to follow.
    tokens: [u32; 1 + MOST_DRAFTED],
    /// How many are expected.
    expected: usize,
    /// How many tokens before them are as they were earlier in the text.
    run: usize,
    /// How many of the expected tokens are run with the last one.
    pub run_ahead: usize,
    /// Whether a model expects them, and not the text.
    pub of_model: bool,
}

impl Draft {
    /// The same without what is expected.
    pub fn alone(&self) -> Self {
        Self {
            tokens: self.tokens,
            ..Self::default()
        }
    }

    /// The tokens to be run.
    pub fn step(&self) -> &[u32] {
        &self.tokens[..=self.run_ahead]
    }
}

/// Who says what might come next where the text does not repeat itself.
#[derive(Debug)]
pub(super) enum Author {
    /// Nobody.
    Nobody,
    /// A smaller model.
    Model(Box<DraftModel>),
    /// The model itself, without what is streamed.
    Itself,
}

impl Author {
    /// `model` if there is one, else the model that `evaluator` runs, if it can.
    pub fn of(model: Option<DraftModel>, evaluator: &Evaluator) -> Self {
        match model {
            Some(model) => Self::Model(Box::new(model)),
            None if evaluator.shared().can_draft() => Self::Itself,
            None => Self::Nobody,
        }
    }

    /// Writes what it would say after `text` to `drafted`, and returns how many tokens that are.
    fn draft(
        &mut self,
        evaluator: &mut Evaluator,
        text: &[u32],
        drafted: &mut [u32],
        record: &mut Record,
    ) -> Result<usize, Error> {
        match self {
            Self::Nobody => Ok(0),
            Self::Model(model) => model.draft(text, drafted, record),
            Self::Itself => {
                itself::draft(evaluator, text, drafted, record)?;
                Ok(drafted.len())
            }
        }
    }
}

/// Makes drafts, as long as it pays.
#[derive(Debug)]
pub(super) struct Drafter {
    /// Most tokens of a draft; 0 makes none.
    most: usize,
    hits: Hits,
    pace: Pace,
    author: Author,
    record: Record,
}

impl Drafter {
    /// Drafts of up to `most` tokens, at most [`MOST_DRAFTED`], of the text or of `author`.
    pub fn new(most: usize, author: Author) -> Self {
        Self {
            most: most.min(MOST_DRAFTED),
            hits: Hits::new(),
            pace: Pace::default(),
            author,
            record: Record::new(),
        }
    }

    /// What to run after all of `text` but its last token was run by `evaluator`. No more than `room` tokens may be
    /// drafted. A model that cannot be read drafts no longer: the text may not need what is damaged.
    pub fn draft(&mut self, evaluator: &mut Evaluator, text: &[u32], room: usize) -> Draft {
        let most = self.most.min(room);
        let (mut draft, by_text) = self.of_text(text, most);
        let (wanted, by_author) = self.wanted(most);
        if wanted == 0 || draft.run_ahead > 0 && by_text >= by_author {
            return draft;
        }
        let (author, record) = (&mut self.author, &mut self.record);
        let mut said = Draft {
            of_model: true,
            ..Draft::default()
        };
        said.tokens[0] = draft.tokens[0];
        match author.draft(evaluator, text, &mut said.tokens[1..=wanted], record) {
            Ok(0) => {}
            Ok(n) => {
                (said.run_ahead, said.expected) = (n, n);
                draft = said;
            }
            Err(error) => {
                tracing::warn!(%error, "nothing is drafted any more");
                self.author = Author::Nobody;
            }
        }
        draft
    }

    /// How many tokens a model should draft, if there is one, and the tokens per nanosecond that this may give.
    fn wanted(&self, most: usize) -> (usize, f64) {
        let (Some(times), false) = (self.pace.expected(), matches!(self.author, Author::Nobody))
        else {
            return (0, 0.0);
        };
        let (best, speed) = self.record.length(&times, most);
        let tried = match (&self.author, self.record.is_timed()) {
            (Author::Itself, _) if !self.pace.is_settled() => return (0, 0.0),
            // What it takes is not known yet, and may be nearly as much as a step.
            (Author::Itself, false) => best.min(1),
            _ => best,
        };
        (probed(&self.pace, tried).min(most), speed)
    }

    /// What followed the longest run of the text's last tokens that it has earlier, as far as that pays, and the tokens
    /// per nanosecond that this may give.
    fn of_text(&self, text: &[u32], most: usize) -> (Draft, f64) {
        let mut draft = Draft::default();
        draft.tokens[0] = text.last().copied().unwrap_or_default();
        let Some(repeat) = (most > 0).then(|| Repeat::find(text)).flatten() else {
            return (draft, 0.0);
        };
        for (i, token) in draft.tokens[1..=most].iter_mut().enumerate() {
            *token = repeat.follows(text, i);
        }
        (draft.expected, draft.run) = (most, repeat.run);
        let (length, speed) = self.length(repeat.run, most);
        draft.run_ahead = length;
        (draft, speed)
    }

    /// How many tokens to run ahead after a run of `run`, and the tokens per nanosecond that this may give.
    fn length(&self, run: usize, most: usize) -> (usize, f64) {
        let Some(times) = self.pace.expected() else {
            return (0, 0.0);
        };
        let right = (run..run + most).map(|run| self.hits.share(run));
        let (best, speed) = best_length(&times, 0.0, right);
        (probed(&self.pace, best), speed)
    }

    /// Whether the `i`-th token after the step's first, `id`, is as expected, all before it having been.
    pub fn came(&mut self, draft: &Draft, i: usize, id: u32) -> bool {
        if i >= draft.expected {
            return false;
        }
        let came = draft.tokens[1 + i] == id;
        match draft.of_model {
            true => self.record.add(i, came),
            false => self.hits.add(draft.run + i, came),
        }
        came
    }

    /// The step of this draft has taken `ns`.
    pub fn took(&mut self, draft: &Draft, ns: u64) {
        self.pace.add(draft.run_ahead, ns);
    }
}

/// The best length, or another one if that kind of step, plain or with a draft, was not measured for long.
fn probed(pace: &Pace, best: usize) -> usize {
    let (plain, drafted) = pace.since();
    match best {
        0 if drafted >= PROBE_AFTER => 1,
        1.. if plain >= PROBE_AFTER => 0,
        best => best,
    }
}

#[cfg(test)]
mod tests;
