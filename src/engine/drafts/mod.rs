//! Drafts: tokens that are expected to come next, because they followed the last ones earlier in the text. They are run
//! in the last token's step, and kept as far as the sampler chooses the same. So they change the speed only.

mod lookup;
mod pace;

use forebay_plans::preload::PROMPT_TOKENS;

use lookup::Repeat;
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
}

impl Drafter {
    /// Drafts of up to `most` tokens, at most [`MOST`].
    pub fn new(most: usize) -> Self {
        Self {
            most: most.min(MOST),
            hits: Hits::new(),
            pace: Pace::default(),
        }
    }

    /// What to run after all of `text` but its last token was run. No more than `room` tokens may be drafted.
    pub fn draft(&self, text: &[u32], room: usize) -> Draft {
        let mut draft = Draft::default();
        draft.tokens[0] = text.last().copied().unwrap_or_default();
        let most = self.most.min(room);
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
        let (plain, drafted) = self.pace.since();
        match best {
            0 if drafted >= PROBE_AFTER => 1,
            1.. if plain >= PROBE_AFTER => 0,
            best => best,
        }
    }

    /// Whether the `i`-th token after the step's first, `id`, is as expected, all before it having been.
    pub fn came(&mut self, draft: &Draft, i: usize, id: u32) -> bool {
        if i >= draft.expected {
            return false;
        }
        let came = draft.tokens[1 + i] == id;
        self.hits.add(draft.run + i, came);
        came
    }

    /// The step of this draft has taken `ns`.
    pub fn took(&mut self, draft: &Draft, ns: u64) {
        self.pace.add(draft.run_ahead, ns);
    }
}

#[cfg(test)]
mod tests;
