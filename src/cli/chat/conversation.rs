//! The conversation itself: what was said, and saying more.

use std::path::Path;

use anyhow::anyhow;
use forebay::{ChatStream, Engine, Error, Message, Role, Session, Statistics};
use forebay_models::tokenizer::EncodeOptions;

use super::saved;
use super::screen::{self, Screen};
use super::settings::Settings;
use crate::cli::follow::Interrupted;
use crate::cli::output::{ReaderGone, say};
use crate::cli::stopping::Generating;

pub struct Conversation<'e> {
    engine: &'e Engine,
    session: Session,
    /// Without what the model is told first, which is a setting.
    messages: Vec<Message>,
    pub settings: Settings,
    screen: Screen,
    /// Files that go in front of the next message.
    attached: String,
    /// Answers so far, which have their own seeds.
    answers: u64,
    last: Option<Box<Statistics>>,
}

impl<'e> Conversation<'e> {
    pub fn new(engine: &'e Engine, settings: Settings, screen: Screen) -> Self {
        Self {
            engine,
            session: engine.session(),
            messages: Vec::new(),
            settings,
            screen,
            attached: String::new(),
            answers: 0,
            last: None,
        }
    }

    pub fn greet(&self) {
        let (model, context) = (self.engine.model(), self.engine.context());
        self.screen.remark(format_args!(
            "{model}, a context of {context} tokens. /help lists the commands; Ctrl-D quits."
        ));
    }

    /// Says something beside the conversation.
    pub fn remark(&self, text: impl std::fmt::Display) {
        self.screen.remark(text);
    }

    /// Says `text` as the user, and shows the answer.
    ///
    /// # Errors
    /// Those of the engine; the conversation is as it was before then.
    pub fn say(&mut self, text: String) -> anyhow::Result<()> {
        let mut messages = self.messages.clone();
        messages.push(Message::user(self.attached.clone() + &text));
        match self.answer(messages) {
            Ok(true) => self.attached.clear(),
            Ok(false) => self.remark("There is no answer, and the message is taken back."),
            Err(error) => {
                let engine = error.downcast_ref::<Error>();
                let is_long = matches!(engine, Some(Error::ContextTooSmall { .. }));
                if is_long && !self.attached.is_empty() {
                    // Else no message would fit from now on.
                    self.attached.clear();
                    say("note: what /read put in front of the message is left out from now on");
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Has the model answer the last of `messages`, which are the conversation from then on, without the turns that
    /// leave no room. Without an answer the conversation stays as it is: roles have to take turns, as most templates
    /// insist.
    fn answer(&mut self, messages: Vec<Message>) -> anyhow::Result<bool> {
        let generating = Generating::begin();
        let (stream, mut messages) = self.ask(messages)?;
        let answer = self.screen.show(stream, &generating)?;
        self.answers += 1;
        self.last = Some(Box::new(answer.statistics));
        let message = answer.message;
        let is_empty = message.content.is_empty() && message.reasoning.is_none();
        if is_empty && message.tool_calls.is_empty() {
            return Ok(false);
        }
        messages.push(message);
        self.messages = messages;
        Ok(true)
    }

    /// Begins the answer to the last of `messages`; returns those that the model reads.
    fn ask(&mut self, messages: Vec<Message>) -> anyhow::Result<(ChatStream, Vec<Message>)> {
        let context = self.engine.context();
        // An answer should not be cut off because of what was said long ago.
        let most = self.settings.max_tokens.unwrap_or(usize::MAX);
        let mut room = most.min(context / 4);
        let (mut kept, mut left_out) = (&*messages, 0);
        let stream = loop {
            let mut request = self.settings.request(self.with_system(kept)).room(room);
            request.sampler.seed = request.sampler.seed.wrapping_add(self.answers);
            match (self.session.chat(request), without_oldest_turn(kept)) {
                (Err(Error::ContextTooSmall { .. }), Some(rest)) => {
                    (kept, left_out) = (rest, left_out + 1);
                }
                // The last message alone takes more: less room has to do.
                (Err(Error::ContextTooSmall { .. }), None) if room > 0 => {
                    (kept, left_out, room) = (&*messages, 0, room / 2);
                }
                (stream, _) => break stream.map_err(|error| self.with_cause(error, &messages))?,
            }
        };
        if left_out > 0 {
            let turns = match left_out {
                1 => "oldest turn is".to_owned(),
                n => format!("{n} oldest turns are"),
            };
            say(format_args!(
                "note: the conversation leaves too little of the context of {context} tokens for an answer; its {turns} \
                 left out from now on"
            ));
        }
        Ok((stream, kept.to_vec()))
    }

    /// The error, which names what the model is told first where that takes most of the context, and more than the last
    /// message.
    fn with_cause(&self, error: Error, messages: &[Message]) -> anyhow::Error {
        let (
            Error::ContextTooSmall {
                context, trained, ..
            },
            Some(text),
        ) = (&error, &self.settings.flags.system)
        else {
            return error.into();
        };
        let options = EncodeOptions {
            add_bos: false,
            parse_special: false,
        };
        let tokens = |text: &str| {
            let ids = self
                .engine
                .tokenizer()
                .encode_up_to(text, options, *context);
            ids.map_or(0, |ids| ids.len())
        };
        let said = messages.last().map_or(0, |last| tokens(&last.content));
        match tokens(text) {
            first if first > context / 2 && first >= said => anyhow!(
                "the system message has at least {first} tokens, and the context holds {context}; set a shorter one \
                 with /system TEXT or --system TEXT{}",
                match context == trained {
                    true => "",
                    false => ", or give a larger --ctx",
                }
            ),
            _ => error.into(),
        }
    }

    /// What the model is told first, and `messages`.
    fn with_system(&self, messages: &[Message]) -> Vec<Message> {
        let system = self.settings.flags.system.as_ref().map(Message::system);
        system.into_iter().chain(messages.iter().cloned()).collect()
    }

    /// Changes a setting.
    ///
    /// # Errors
    /// Those of [`Settings::set`].
    pub fn set(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        self.settings.set(name, value)?;
        if name == "seed" {
            self.answers = 0;
        }
        Ok(())
    }

    /// Forgets everything that was said.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.attached.clear();
        self.answers = 0;
    }

    /// Takes the last turn back; returns what the user said in it.
    pub fn undo(&mut self) -> Option<String> {
        let at = self.messages.iter().rposition(|m| m.role == Role::User)?;
        let said = self.messages.drain(at..).next();
        said.map(|message| message.content)
    }

    /// Has the last message answered anew.
    ///
    /// # Errors
    /// Those of the engine; the conversation is as it was before then.
    pub fn regenerate(&mut self) -> anyhow::Result<bool> {
        let Some(at) = self.messages.iter().rposition(|m| m.role == Role::User) else {
            return Ok(false);
        };
        let asked = self.messages[..=at].to_vec();
        if !self.answer(asked)? {
            self.remark("There is no answer; the conversation is as it was.");
        }
        Ok(true)
    }

    /// Puts a text in front of the next message.
    pub fn attach(&mut self, text: &str) {
        self.attached.push_str(text);
        if !text.ends_with('\n') {
            self.attached.push('\n');
        }
    }

    /// Writes the conversation to a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        saved::save(path, &self.with_system(&self.messages))
    }

    /// Goes on with the conversation of a file; returns its number of messages.
    ///
    /// # Errors
    /// It cannot be read; the conversation is as it was before then.
    pub fn load(&mut self, path: &Path) -> anyhow::Result<usize> {
        let mut messages = saved::load(path)?;
        let has_system = messages.first().is_some_and(|m| m.role == Role::System);
        let system = has_system.then(|| messages.remove(0).content);
        self.settings.flags.system = system;
        self.messages = messages;
        self.attached.clear();
        self.answers = 0;
        Ok(self.messages.len())
    }

    /// Prints what was said.
    pub fn show_messages(&self) {
        for message in self.with_system(&self.messages) {
            say(format_args!("{}: {}", message.role.name(), message.content));
        }
    }

    /// Prints statistics of the last answer.
    pub fn show_statistics(&self) {
        match &self.last {
            Some(statistics) => say(screen::lines(statistics)),
            None => say("there is no answer yet"),
        }
    }

    /// Whether the conversation cannot go on after `error`.
    pub fn ends_with(&self, error: &anyhow::Error) -> bool {
        let engine = error.downcast_ref::<Error>();
        error.is::<Interrupted>()
            || error.is::<ReaderGone>()
            || matches!(engine, Some(Error::EngineFailed { .. } | Error::Stopped))
    }
}

/// All but the first turn, if there are several: a loaded conversation may begin with what the model said, which counts
/// as one.
fn without_oldest_turn(messages: &[Message]) -> Option<&[Message]> {
    let after_first = messages.get(1..)?;
    let second = after_first.iter().position(|m| m.role == Role::User)?;
    Some(&after_first[second..])
}

#[cfg(test)]
mod tests {
    use forebay::SamplerConfig;

    use super::*;
    use crate::cli::chat_flags::ChatFlags;

    const TEMPLATE: &str =
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}";
    /// Of the demo's vocabulary: the end of an answer.
    const END: u32 = 1;

    /// With the demo, in a context of 128 tokens.
    fn engine() -> Engine {
        let folder = tempfile::tempdir().expect("a folder");
        let template = folder.path().join("template.jinja");
        std::fs::write(&template, TEMPLATE).expect("writable");
        let builder = Engine::builder().cache_folder(folder.path()).context(128);
        let builder = builder.threads(1).hot_set(false);
        let built = builder.chat_template_file(&template).build();
        built.unwrap_or_else(|e| panic!("{e}"))
    }

    fn conversation(engine: &Engine) -> Conversation<'_> {
        let settings = Settings {
            sampler: SamplerConfig::default(),
            max_tokens: Some(4),
            stop: Vec::new(),
            flags: ChatFlags::default(),
        };
        let screen = Screen::new(true, false).without_text();
        Conversation::new(engine, settings, screen)
    }

    #[test]
    fn a_message_that_does_not_fit_leaves_the_conversation_and_no_file_in_front_of_the_next() {
        let engine = engine();
        let mut talk = conversation(&engine);
        for said in ["One.", "Two."] {
            talk.say(said.to_owned()).expect("an answer");
        }
        let before = talk.messages.clone();
        assert_eq!(before.len(), 4);
        let long = "no end ".repeat(100);
        talk.say(long.clone()).expect_err("too long");
        assert_eq!(talk.messages, before);
        talk.attach(&long);
        talk.say("Three.".to_owned()).expect_err("too long");
        assert_eq!(talk.messages, before);
        talk.say("Three.".to_owned()).expect("an answer");
        assert_eq!(talk.messages.len(), 6);
    }

    /// The conversation of a file with these messages.
    fn load(talk: &mut Conversation<'_>, messages: &[Message]) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("chat.json");
        saved::save(&path, messages).expect("writable");
        talk.load(&path).expect("readable");
    }

    #[test]
    fn a_loaded_conversation_begins_without_files_and_makes_room_from_its_beginning() {
        let engine = engine();
        let mut talk = conversation(&engine);
        talk.attach("A file.");
        let long = Message::assistant("no end ".repeat(100));
        load(&mut talk, &[long]);
        assert_eq!(talk.attached, "");
        talk.say("One.".to_owned()).expect("an answer");
        let roles: Vec<_> = talk.messages.iter().map(|m| m.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant]);
    }

    #[test]
    fn a_system_message_that_is_too_long_is_named_and_keeps_what_is_attached() {
        let engine = engine();
        let mut talk = conversation(&engine);
        talk.settings.flags.system = Some("no end ".repeat(100));
        talk.attach("A file.");
        let error = talk.say("One.".to_owned()).expect_err("too long");
        let message = crate::cli::message_of(&error);
        assert!(
            message.contains("system message") && message.contains("/system TEXT"),
            "{message}"
        );
        assert_eq!(talk.attached, "A file.\n");
        // Of a longer message, it is not the cause.
        talk.settings.flags.system = Some("no end ".repeat(35));
        let error = talk.say("no end ".repeat(50)).expect_err("too long");
        assert!(error.is::<Error>(), "{error}");
        talk.settings.flags.system = Some("Be brief.".to_owned());
        talk.say("One.".to_owned()).expect("an answer");
    }

    #[test]
    fn without_an_answer_nothing_is_lost() {
        let engine = engine();
        let mut talk = conversation(&engine);
        talk.say("One.".to_owned()).expect("an answer");
        let before = talk.messages.clone();
        talk.settings.sampler.logit_bias = vec![(END, 1e6)];
        assert!(talk.regenerate().expect("no fault"));
        talk.attach("A file.");
        talk.say("Two.".to_owned()).expect("no fault");
        assert_eq!((&talk.messages, &*talk.attached), (&before, "A file.\n"));
    }

    #[test]
    fn old_turns_make_room_for_an_answer_but_only_where_that_helps() {
        let engine = engine();
        let mut talk = conversation(&engine);
        talk.settings.max_tokens = None;
        talk.settings.sampler.logit_bias = vec![(END, f32::NEG_INFINITY)];
        let tokens = |talk: &Conversation<'_>| talk.last.as_ref().map_or(0, |l| l.tokens.len());
        // Each answer fills what is left.
        for said in ["One.", "Two.", "Three."] {
            talk.say(said.to_owned()).expect("an answer");
            assert!(tokens(&talk) >= 32, "{said}: {}", tokens(&talk));
            assert_eq!(talk.messages.len(), 2);
        }
        // A message that takes nearly all of it.
        talk.clear();
        talk.settings.max_tokens = Some(1);
        talk.say("a".to_owned()).expect("an answer");
        talk.settings.max_tokens = None;
        let (mut long, mut last) = ("no end ".repeat(8), 0);
        while talk.say(long.clone()).is_ok() {
            (last, _) = (tokens(&talk), talk.undo());
            long.push_str("no end ");
        }
        assert!((1..32).contains(&last), "{last}");
    }

    #[test]
    fn a_seed_reproduces_a_conversation_after_it_was_cleared() {
        let engine = engine();
        let mut talk = conversation(&engine);
        talk.settings.sampler.temperature = 2.0;
        talk.settings.max_tokens = Some(12);
        let answers = |talk: &mut Conversation<'_>| {
            for said in ["One.", "Two."] {
                talk.say(said.to_owned()).expect("an answer");
            }
            talk.messages.clone()
        };
        let first = answers(&mut talk);
        talk.clear();
        assert_eq!(answers(&mut talk), first);
        talk.messages.clear();
        assert_ne!(answers(&mut talk), first);
        talk.messages.clear();
        talk.set("seed", &talk.settings.sampler.seed.to_string())
            .expect("a seed");
        assert_eq!(answers(&mut talk), first);
    }
}
