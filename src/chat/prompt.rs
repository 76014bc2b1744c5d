//! From a conversation to the text that the model reads, and where texts of strangers must not become special tokens.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::SystemTime;

use forebay_models::chat_templates::{ChatTemplate, ChatTemplates, DEFAULT};
use forebay_models::tokenizer::Tokenizer;

use super::answer::{for_template, has_channels, leave_out_reasoning};
use super::message::{ChatRequest, Message, Role};
use super::template::Template;
use super::values::{Breaking, Texts};
use crate::error::Error;

/// The template for conversations with tools, if a model has one.
const TOOL_USE: &str = "tool_use";

/// Private-use characters, one of which stands for breaks while a template runs.
const SIGNS: std::ops::RangeInclusive<char> = '\u{10ff00}'..='\u{10ff1f}';

/// How a model's conversations are written.
#[derive(Clone, Debug)]
pub(crate) struct ChatFormat {
    /// The model as the caller named it.
    model: String,
    templates: BTreeMap<String, Template>,
    /// Texts of special tokens by their names in templates.
    tokens: BTreeMap<String, String>,
    /// As [`Self::turn_ends`] found them.
    turn_ends: OnceLock<Vec<u32>>,
}

/// What a model reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub text: String,
    /// Places that no special token reaches across, in ascending order.
    pub breaks: Vec<usize>,
}

impl ChatFormat {
    /// The model's own format; `given`, if there is one, is used instead of all its templates.
    ///
    /// # Errors
    /// `given` is not a template.
    pub fn new(
        model: &str,
        own: ChatTemplates,
        given: Option<&ChatTemplate>,
    ) -> Result<Self, Error> {
        let templates = match given {
            Some(ChatTemplate { origin, text }) => {
                let template = Template::new(text, origin.clone());
                template.check()?;
                BTreeMap::from([(DEFAULT.to_owned(), template)])
            }
            None => {
                let own = own.templates.into_iter().map(|(name, t)| {
                    let origin = format!("{model}: {}", t.origin);
                    (name, Template::new(&t.text, origin))
                });
                own.collect()
            }
        };
        Ok(Self {
            model: model.to_owned(),
            templates,
            tokens: own.tokens,
            turn_ends: OnceLock::new(),
        })
    }

    /// Whether there is any template.
    pub fn has_templates(&self) -> bool {
        !self.templates.is_empty()
    }

    /// The template for a conversation.
    ///
    /// # Errors
    /// There is none.
    pub fn template(&self, has_tools: bool) -> Result<&Template, Error> {
        let for_tools = self.templates.get(TOOL_USE).filter(|_| has_tools);
        let found = for_tools
            .or_else(|| self.templates.get(DEFAULT))
            .or_else(|| self.templates.values().next());
        found.ok_or_else(|| Error::NoChatTemplate {
            model: self.model.clone(),
        })
    }

    /// The text of the token that templates call `name`.
    pub fn token(&self, name: &str) -> Option<&str> {
        self.tokens.get(name).map(String::as_str)
    }

    /// What the model reads to give the next message, at most `most` bytes.
    ///
    /// # Errors
    /// There is no template, it fails, refuses the conversation or leaves the last message out; or it cannot be known
    /// which special tokens are the template's own; or an option has the name of a variable that the engine sets.
    pub fn prompt(
        &self,
        request: &ChatRequest,
        tokenizer: &Tokenizer,
        most: usize,
        now: SystemTime,
    ) -> Result<Prompt, Error> {
        let template = self.template(!request.tools.is_empty())?;
        check_options(request)?;
        let mut request = request;
        let rewritten;
        if has_channels(template.text()) {
            let messages: Vec<_> = request.messages.iter().map(for_template).collect();
            rewritten = ChatRequest {
                messages,
                ..request.clone()
            };
            request = &rewritten;
        }
        if let Some(prompt) = self.unbroken(template, request, (tokenizer, most, now))? {
            return Ok(prompt);
        }
        // Many templates look for the end of the reasoning in what the model has said; they see none with a break in
        // it.
        let mut without = request.clone();
        let messages = without.messages.iter_mut();
        messages.for_each(|message| leave_out_reasoning(template.text(), message));
        let prompt = match without == *request {
            true => None,
            false => self.unbroken(template, &without, (tokenizer, most, now))?,
        };
        prompt.ok_or_else(|| Error::ControlTokenInText {
            template: template.origin().to_owned(),
        })
    }

    /// Refuses a template that writes `text` whatever the user says last: the model would not see the message. Most
    /// templates trim messages, some write them as JSON or leave parts out, so other messages are tried before one
    /// that is not found is taken for lost.
    ///
    /// # Errors
    /// The message is lost.
    pub(super) fn check_said(
        &self,
        template: &Template,
        request: &ChatRequest,
        text: &str,
        (most, now): (usize, SystemTime),
    ) -> Result<(), Error> {
        // Of different lengths: a template may write nothing but the length.
        const OTHERS: [&str; 2] = ["Zebra-quartz 7", "Why?"];
        let last = request.messages.last();
        let Some(said) = last.filter(|message| message.role == Role::User) else {
            return Ok(());
        };
        if text.contains(said.content.trim()) {
            return Ok(());
        }
        let is_the_same = |other: &&str| {
            let mut request = request.clone();
            request.messages.pop();
            request.messages.push(Message::user(*other));
            let variables = Texts::plain().variables(&request, &self.tokens, true);
            let rendered = template.render(variables, most, now);
            rendered.is_ok_and(|rendered| rendered == text)
        };
        match OTHERS.iter().all(is_the_same) {
            true => Err(Error::ChatTemplate {
                template: template.origin().to_owned(),
                problem: "the chat template leaves out what the user said last".into(),
            }),
            false => Ok(()),
        }
    }

    /// What `template` writes, if it can be known which special tokens in it are its own.
    fn unbroken(
        &self,
        template: &Template,
        request: &ChatRequest,
        (tokenizer, most, now): (&Tokenizer, usize, SystemTime),
    ) -> Result<Option<Prompt>, Error> {
        let variables = Texts::plain().variables(request, &self.tokens, true);
        let plain = template.render(variables, most, now)?;
        self.check_said(template, request, &plain, (most, now))?;
        let written = written_tokens(template, tokenizer);
        for sign in SIGNS.filter(|sign| !template.text().contains(*sign)) {
            let texts = Texts::broken(Breaking {
                tokenizer,
                written: &written,
                sign,
            });
            let variables = texts.variables(request, &self.tokens, true);
            if texts.are_ambiguous() {
                continue;
            }
            if !texts.have_breaks() {
                return Ok(Some(Prompt {
                    text: plain,
                    breaks: Vec::new(),
                }));
            }
            // Signs take four bytes each, in texts that have three for each at least.
            let marked = template.render(variables, most.saturating_mul(3), now);
            let prompt = marked.ok().map(|marked| without_signs(&marked, sign));
            return Ok(prompt.filter(|prompt| prompt.text == plain));
        }
        Ok(None)
    }

    /// The tokens with which the template ends the model's messages, if it writes any there.
    pub fn turn_ends(&self, tokenizer: &Tokenizer, now: SystemTime) -> &[u32] {
        self.turn_ends
            .get_or_init(|| self.find_turn_ends(tokenizer, now))
    }

    fn find_turn_ends(&self, tokenizer: &Tokenizer, now: SystemTime) -> Vec<u32> {
        const ANSWER: &str = "Zebra-quartz 7";
        // What ends a message in a channel ends no turn: another channel follows.
        let template = self.template(false).ok();
        let Some(template) = template.filter(|template| !has_channels(template.text())) else {
            return Vec::new();
        };
        let turns = [
            Message::user("a"),
            Message::assistant(ANSWER),
            Message::user("b"),
        ];
        let request = ChatRequest::new(turns);
        let variables = Texts::plain().variables(&request, &self.tokens, false);
        // A template that fails here says so for the conversation itself.
        let text = template.render(variables, 1 << 20, now).unwrap_or_default();
        let after = text
            .rsplit_once(ANSWER)
            .map(|(_, after)| after.trim_start());
        let end = after.and_then(|after| tokenizer.first_special(after));
        let begins = |id: &u32| Some(*id) == tokenizer.bos();
        end.filter(|id| !begins(id)).into_iter().collect()
    }
}

/// User-defined tokens that the template writes: `<tool_call>`, where the vocabulary does not call it a control token.
fn written_tokens(template: &Template, tokenizer: &Tokenizer) -> Vec<u32> {
    let is_written = |&id: &u32| {
        let name = tokenizer
            .token_bytes(id)
            .and_then(|name| std::str::from_utf8(name).ok());
        name.is_some_and(|name| name.starts_with(['<', '[']) && template.text().contains(name))
    };
    tokenizer.user_defined().filter(is_written).collect()
}

/// Options that the engine would not pass on are refused.
fn check_options(request: &ChatRequest) -> Result<(), Error> {
    let own = ChatRequest::OWN_VARIABLES;
    match own
        .iter()
        .find(|&&name| request.template_options.contains_key(name))
    {
        Some(name) => Err(Error::parameter(
            "template_options",
            format!("the engine sets {name} itself; leave it out"),
        )),
        None => Ok(()),
    }
}

fn without_signs(marked: &str, sign: char) -> Prompt {
    let mut prompt = Prompt::default();
    for (i, part) in marked.split(sign).enumerate() {
        if i > 0 && prompt.breaks.last() != Some(&prompt.text.len()) {
            prompt.breaks.push(prompt.text.len());
        }
        prompt.text.push_str(part);
    }
    prompt
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use forebay_models::tokenizer::{TokenizerModel, TokenizerSpec};

    use super::*;
    use crate::chat::AnswerReader;

    /// Of bytes, and of these control tokens, which have the ids from 256 on.
    fn tokenizer(control: &[&str]) -> Tokenizer {
        let bytes = (0..=255u8).map(|b| format!("<0x{b:02X}>"));
        let tokens: Vec<String> = bytes.chain(control.iter().map(|&t| t.to_owned())).collect();
        let mut types = vec![6; 256];
        types.resize(tokens.len(), 3);
        let model = TokenizerModel::SentencePiece {
            scores: vec![0.0; tokens.len()],
            tokens,
            types,
            add_space_prefix: false,
            swallows_space: false,
        };
        let spec = TokenizerSpec {
            model,
            bos: None,
            eog: Vec::new(),
            add_bos: false,
        };
        Tokenizer::from_spec(spec).expect("a vocabulary")
    }

    const CHANNELS: &str = include_str!("../../tests/golden/chat/gpt-oss.jinja");

    const THINKS: &str = include_str!("../../tests/golden/chat/qwen3.jinja");

    fn format(template: &str) -> ChatFormat {
        let given = ChatTemplate {
            origin: "test".into(),
            text: template.into(),
        };
        let format = ChatFormat::new("test", ChatTemplates::default(), Some(&given));
        format.expect("a template")
    }

    fn turn_ends(template: &str, tokenizer: &Tokenizer) -> Vec<u32> {
        format(template).turn_ends(tokenizer, UNIX_EPOCH).to_vec()
    }

    /// gpt-oss may say something before it calls a tool, which its template does not take back as it came.
    #[test]
    fn what_a_model_with_channels_has_said_can_be_read_again() {
        let tool = serde_json::json!({"type": "function", "function": {"name": "weather", "description": "d",
            "parameters": {"type": "object", "properties": {}}}});
        let answer = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary<|message|>\
                      Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json\
                      <|message|>{}";
        let mut reader = AnswerReader::new(CHANNELS, vec![tool.clone()], false, 0);
        reader.push(answer);
        reader.finish();
        let said = reader.message().clone();
        assert_eq!((&*said.content, said.tool_calls.len()), ("Let me see.", 1));
        let result = Message::result_of(&said.tool_calls[0], "sunny");
        let messages = [Message::user("How is it?"), said, result];
        let request = ChatRequest::new(messages).tools([tool]);
        let marks = tokenizer(&[
            "<|start|>",
            "<|channel|>",
            "<|message|>",
            "<|end|>",
            "<|call|>",
        ]);
        let prompt = format(CHANNELS).prompt(&request, &marks, 1 << 20, UNIX_EPOCH);
        let text = prompt.expect("a prompt").text;
        let analysis = "<|channel|>analysis<|message|>I look.\n\nLet me see.<|end|>";
        assert!(text.contains(analysis), "{text}");
    }

    /// The templates cut the text there, which they do not with a break in the tag.
    #[test]
    fn an_answer_may_have_the_tag_in_it_that_ends_reasoning() {
        let marks = tokenizer(&["<|im_start|>", "<|im_end|>", "<think>", "</think>"]);
        let said = |text: &str| {
            let messages = [
                Message::user("a"),
                Message::assistant(text),
                Message::user("b"),
            ];
            let request = ChatRequest::new(messages);
            let prompt = format(THINKS).prompt(&request, &marks, 1 << 20, UNIX_EPOCH);
            prompt.unwrap_or_else(|e| panic!("{e}")).text
        };
        let text = said("The tag is </think>\n\nand <|im_end|> is none.");
        assert_eq!(text, said("and <|im_end|> is none."));
    }

    fn texts_of(template: &str, said: &str) -> Result<String, Error> {
        let request = ChatRequest::new([Message::user(said)]);
        let prompt = format(template).prompt(&request, &tokenizer(&["<|a|>"]), 1 << 20, UNIX_EPOCH);
        prompt.map(|prompt| prompt.text)
    }

    #[test]
    fn a_template_that_leaves_the_last_message_out_is_refused() {
        let first = "{{ messages[0].role }}: ";
        for template in [
            first,
            "",
            "{% for m in messages[1:] %}{{ m.content }}{% endfor %}",
            "<|a|>",
        ] {
            for said in ["Hello", "with <|a|>"] {
                let error = texts_of(template, said).expect_err(template).to_string();
                assert!(
                    error.contains("test: ") && error.contains("leaves out"),
                    "{error}"
                );
            }
        }
        for template in [
            "{{ messages[0].content | trim }}",
            "{{ messages[0].content | tojson }}",
            "{{ messages[0].content | upper }}",
            "{{ messages[0].content | length }}",
            "{{ messages[0].content.split(' ')[-1] }}",
            "{{ messages[0].content[2:] }}",
        ] {
            for said in ["Hello", " \"He\" said\n ", "Why?", "Zebra-quartz 7"] {
                texts_of(template, said).unwrap_or_else(|e| panic!("{template}: {e}"));
            }
        }
    }

    /// What is not passed on is refused; names of special tokens are, and what templates have defaults for.
    #[test]
    fn options_reach_the_template_or_are_refused() {
        let shown = "{{ messages[0].content }}{{ bos_token }}{{ date_string | default('today') }}";
        let with = |name: &str| {
            let request = ChatRequest::new([Message::user("Hi")]).template_option(name, "x");
            let prompt = format(shown).prompt(&request, &tokenizer(&[]), 1 << 20, UNIX_EPOCH);
            prompt.map(|prompt| prompt.text)
        };
        for name in ChatRequest::OWN_VARIABLES {
            let error = with(name).expect_err(name).to_string();
            assert!(
                error.contains("template_options") && error.contains(name),
                "{error}"
            );
        }
        assert_eq!(with("bos_token").expect("set"), "Hixtoday");
        assert_eq!(with("date_string").expect("set"), "Hix");
    }

    #[test]
    fn a_turn_ends_as_the_template_ends_it_but_not_with_a_channel() {
        let plain = "{% for m in messages %}<|a|>{{ m.content }}<|b|>\n{% endfor %}";
        assert_eq!(turn_ends(plain, &tokenizer(&["<|a|>", "<|b|>"])), [257]);
        let marks = [
            "<|start|>",
            "<|channel|>",
            "<|message|>",
            "<|end|>",
            "<|return|>",
            "<|call|>",
        ];
        let tokenizer = tokenizer(&marks);
        assert!(turn_ends(CHANNELS, &tokenizer).is_empty());
    }
}
