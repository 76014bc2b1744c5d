//! Drafts: tokens that are expected to come next, because they followed the last ones earlier in the text, or because a
//! smaller model would say them. They are run in the last token's step, and kept as far as the sampler chooses the same.
//! So they change the speed only.

pub(super) mod beside;
mod lookup;
pub(super) mod model;
mod pace;

use forebay_plans::preload::PROMPT_TOKENS;

use crate::error::Error;
use lookup::Repeat;
use model::DraftModel;
use pace::{Hits, Pace};

/// Most tokens of a draft: with the last token, fewer than take the graph of prompts.
pub(crate) const MOST: usize = PROMPT_TOKENS - 2;
/// After this many steps of the same kind, plain or with a draft, the other kind is measured again.
const PROBE_AFTER: u64 = 64;

/// The tokens of a step, and what is expected of the sampler.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Draft {
    /// The text's last token and those that are expected to follow.
    tokens: [u32; 1 + MOST],
    /// How many are expected.
    expected: usize,
    /// How many tokens before them are as they were earlier in the text.
    run: usize,
    /// How many of the expected tokens are run with the last one.
    pub run_ahead: usize,
    /// Whether a model expects them.
    of_model: bool,
}

impl Draft {
    /// The tokens to be run.
    pub fn step(&self) -> &[u32] {
        &self.tokens[..=self.run_ahead]
    }
}

/// Makes drafts, as long as it pays.
#[derive(Debug)]
pub(super) struct Drafter {
    /// Most tokens of a draft; 0 makes none.
    most: usize,
    hits: Hits,
    pace: Pace,
    model: Option<DraftModel>,
}

impl Drafter {
    /// Drafts of up to `most` tokens, at most [`MOST`], of the text or of `model`.
    pub fn new(most: usize, model: Option<DraftModel>) -> Self {
        Self {
            most: most.min(MOST),
            hits: Hits::new(),
            pace: Pace::default(),
            model,
        }
    }

    /// What to run after all of `text` but its last token was run. No more than `room` tokens may be drafted.
    ///
    /// # Errors
    /// The model that drafts cannot be read.
    pub fn draft(&mut self, text: &[u32], room: usize) -> Result<Draft, Error> {
        let most = self.most.min(room);
        let repeated = self.of_text(text, most);
        if repeated.run_ahead > 0 {
            return Ok(repeated);
        }
        let of_model = self.of_model(text, most)?;
        Ok(of_model.unwrap_or(repeated))
    }

    /// What the model would say, if there is one and it pays.
    fn of_model(&mut self, text: &[u32], most: usize) -> Result<Option<Draft>, Error> {
        let (Some(model), Some(times)) = (&mut self.model, self.pace.expected()) else {
            return Ok(None);
        };
        let wanted = probed(&self.pace, model.length(&times, most)).min(most);
        let mut draft = Draft {
            of_model: true,
            ..Draft::default()
        };
        draft.tokens[0] = text.last().copied().unwrap_or_default();
        draft.run_ahead = match wanted {
            0 => 0,
            _ => model.draft(text, &mut draft.tokens[1..=wanted])?,
        };
        draft.expected = draft.run_ahead;
        Ok((draft.run_ahead > 0).then_some(draft))
    }

    /// What followed the longest run of the text's last tokens that it has earlier, as far as that pays.
    fn of_text(&self, text: &[u32], most: usize) -> Draft {
        let mut draft = Draft::default();
        draft.tokens[0] = text.last().copied().unwrap_or_default();
        let Some(repeat) = (most > 0).then(|| Repeat::find(text)).flatten() else {
            return draft;
        };
        for (i, token) in draft.tokens[1..=most].iter_mut().enumerate() {
            *token = repeat.follows(text, i);
        }
        (draft.expected, draft.run) = (most, repeat.run);
        draft.run_ahead = self.length(repeat.run, most);
        draft
    }

    /// How many tokens to run ahead after a run of `run`: as many as give the most tokens per second.
    fn length(&self, run: usize, most: usize) -> usize {
        let Some(times) = self.pace.expected() else {
            return 0;
        };
        let (mut best, mut speed) = (0, 1.0 / times[0]);
        let (mut all_come, mut tokens) = (1.0, 1.0);
        for (drafted, time) in times.iter().enumerate().take(most + 1).skip(1) {
            all_come *= self.hits.share(run + drafted - 1);
            tokens += all_come;
            if tokens / time > speed {
                (best, speed) = (drafted, tokens / time);
            }
        }
        probed(&self.pace, best)
    }

    /// Whether the `i`-th token after the step's first, `id`, is as expected, all before it having been.
    pub fn came(&mut self, draft: &Draft, i: usize, id: u32) -> bool {
        if i >= draft.expected {
            return false;
        }
        let came = draft.tokens[1 + i] == id;
        match &mut self.model {
            Some(model) if draft.of_model => model.add(i, came),
            _ => self.hits.add(draft.run + i, came),
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
