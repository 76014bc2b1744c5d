//! The conversation itself: what was said, and saying more.

use std::path::Path;

use forebay::{Engine, Error, Message, Role, Session, Statistics};

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
    /// Those of the engine; the message is taken back then.
    pub fn say(&mut self, text: String) -> anyhow::Result<()> {
        let attached = std::mem::take(&mut self.attached);
        self.messages.push(Message::user(attached.clone() + &text));
        let answered = self.answer();
        if answered.is_err() {
            self.messages.pop();
            self.attached = attached;
        }
        answered
    }

    /// Has the model answer the last message.
    fn answer(&mut self) -> anyhow::Result<()> {
        let generating = Generating::begin();
        let stream = loop {
            let mut request = self.settings.request(self.all());
            request.sampler.seed = request.sampler.seed.wrapping_add(self.answers);
            match self.session.chat(request) {
                Err(Error::ContextTooSmall { context, .. }) if self.forget_oldest_turn() => {
                    say(format_args!(
                        "note: the conversation is longer than the context of {context} tokens; its oldest turn is left \
                         out from now on"
                    ));
                }
                stream => break stream?,
            }
        };
        let answer = self.screen.show(stream, &generating)?;
        self.answers += 1;
        let message = answer.message;
        self.last = Some(Box::new(answer.statistics));
        let is_empty = message.content.is_empty() && message.reasoning.is_none();
        match is_empty && message.tool_calls.is_empty() {
            // Roles have to take turns: most templates insist on it.
            true => {
                self.messages.pop();
                self.remark("There is no answer, and the message is taken back.");
            }
            false => self.messages.push(message),
        }
        Ok(())
    }

    /// What the model is told first, and all messages.
    fn all(&self) -> Vec<Message> {
        let system = self.settings.flags.system.as_ref().map(Message::system);
        system
            .into_iter()
            .chain(self.messages.iter().cloned())
            .collect()
    }

    /// Removes the first turn, unless it is the last.
    fn forget_oldest_turn(&mut self) -> bool {
        let is_user = |m: &Message| m.role == Role::User;
        let mut turns = self.messages.iter().enumerate().filter(|(_, m)| is_user(m));
        let Some((second, _)) = turns.nth(1) else {
            return false;
        };
        self.messages.drain(..second);
        true
    }

    /// Forgets everything that was said.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.attached.clear();
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
    /// Those of the engine; the turn is as it was before then.
    pub fn regenerate(&mut self) -> anyhow::Result<bool> {
        let Some(at) = self.messages.iter().rposition(|m| m.role == Role::User) else {
            return Ok(false);
        };
        let before = self.messages.split_off(at + 1);
        let answered = self.answer();
        if answered.is_err() {
            self.messages.extend(before);
        }
        answered.map(|()| true)
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
        saved::save(path, &self.all())
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
        Ok(self.messages.len())
    }

    /// Prints what was said.
    pub fn show_messages(&self) {
        for message in self.all() {
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
