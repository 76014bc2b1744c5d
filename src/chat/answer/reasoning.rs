//! The tags that families of models put around their reasoning, and around what they say after it.

/// What stands before and after the reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReasoningTags {
    pub opening: &'static str,
    pub closing: &'static str,
    /// The token that the opening consists of, or begins with.
    token: &'static str,
    /// What a prompt may end with that goes on after the opening.
    begun: &'static str,
}

impl ReasoningTags {
    const fn new(opening: &'static str, closing: &'static str) -> Self {
        Self {
            opening,
            closing,
            token: opening,
            begun: opening,
        }
    }

    /// Those of a template, found by their tokens; the usual ones if it has none.
    pub fn of(template: &str) -> Self {
        let found = UNUSUAL.iter().find(|tags| template.contains(tags.token));
        found.copied().unwrap_or(USUAL)
    }

    /// The tokens that they are made of.
    pub fn marks(self) -> [&'static str; 2] {
        [self.token, self.closing]
    }

    /// Whether a prompt leaves the model in the middle of its reasoning.
    pub fn are_open_in(self, prompt: &str) -> bool {
        let prompt = prompt.trim_end();
        prompt.ends_with(self.opening) || prompt.ends_with(self.begun)
    }
}

const USUAL: ReasoningTags = ReasoningTags::new("<think>", "</think>");

const UNUSUAL: [ReasoningTags; 4] = [
    // Magistral and Ministral 3.
    ReasoningTags::new("[THINK]", "[/THINK]"),
    // Without a budget, Seed-OSS is told so within the reasoning.
    ReasoningTags {
        begun: "<seed:think><seed:cot_budget_reflect>",
        ..ReasoningTags::new("<seed:think>", "</seed:think>")
    },
    // Gemma 4 names the channel.
    ReasoningTags {
        token: "<|channel>",
        ..ReasoningTags::new("<|channel>thought", "<channel|>")
    },
    // Command R7B and Command A.
    ReasoningTags::new("<|START_THINKING|>", "<|END_THINKING|>"),
];

/// What stands before and after the text, if models with this template put something there.
pub(crate) fn response_tags(template: &str) -> Option<[&'static str; 2]> {
    let found = RESPONSES
        .iter()
        .find(|[opening, _]| template.contains(opening));
    found.copied()
}

/// Of Command R7B, and of Granite 3.3 where it is asked to think.
const RESPONSES: [[&str; 2]; 2] = [
    ["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
    ["<response>", "</response>"],
];
