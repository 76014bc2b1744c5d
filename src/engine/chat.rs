//! Conversations of a session: messages become a prompt, and the tokens of an answer become a message.

use std::sync::Arc;
use std::time::SystemTime;

use forebay_models::tokenizer::Tokenizer;

use super::facts::Facts;
use super::session::Session;
use crate::chat::{AnswerReader, Begin, ChatRequest, ChatStream, Role, is_inside_reasoning, marks};
use crate::error::Error;
use crate::memory::longest_conversation;
use crate::request::Request;

impl Session {
    /// Generates the next message of a conversation, which the model's chat template turns into text. Names of control
    /// tokens in messages, tools and options are only text. The conversation is given whole each time; what the session
    /// has read and generated before is not read again, as far as the beginning is the same: a caller appends the
    /// answer's message and the next one.
    ///
    /// The session's history is that of the conversation then: [`Session::generate`] goes on after the answer.
    ///
    /// # Errors
    /// A model without a chat template, a template that fails or refuses the conversation, a conversation that is
    /// longer than the context (without the room that the request asks for), or bad sampler settings. Errors during
    /// generation come through the stream.
    pub fn chat(&mut self, request: ChatRequest) -> Result<ChatStream, Error> {
        self.chat_at(request, SystemTime::now())
    }

    /// As [`Self::chat`], with the time that templates are told.
    ///
    /// # Errors
    /// As [`Self::chat`].
    pub fn chat_at(&mut self, request: ChatRequest, now: SystemTime) -> Result<ChatStream, Error> {
        let facts = Arc::clone(&self.facts);
        let (format, tokenizer) = (&facts.chat, &facts.tokenizer);
        let context = facts.plan.context;
        facts.check_text(&request)?;
        let prompt = format.prompt(&request, tokenizer, longest_conversation(context), now)?;
        let turn_ends = format.turn_ends(tokenizer, now);
        let ends = |id: u32| tokenizer.is_eog(id) || turn_ends.contains(&id);
        self.transcript
            .take_answer(&self.history.lock(), tokenizer, ends);
        let template = format.template(!request.tools.is_empty())?.text();
        let inside_reasoning = is_inside_reasoning(template, &prompt.text);
        let calls_before = request.messages.iter().map(|m| m.tool_calls.len()).sum();
        let ids = self
            .transcript
            .follow(prompt, tokenizer, facts.begin(), context)?
            .to_vec();
        let tokens = ids.len().saturating_add(request.room);
        if tokens > context {
            return Err(facts.too_long(tokens));
        }

        let mut generation = Request::tokens(ids)
            .sampler(request.sampler)
            .stop(request.stop.clone())
            .stop_tokens(turn_ends.to_vec())
            .shown_tokens(shown(tokenizer, template));
        generation.max_tokens = request.max_tokens;
        generation.log_probabilities = request.log_probabilities;
        let reader = AnswerReader::new(template, request.tools, inside_reasoning, calls_before);
        let tokens = self.generate_anew(generation, Some(reader.clone()))?;
        Ok(ChatStream::new(tokens, reader, request.stop))
    }

    /// What the model would read to answer: the text that its chat template writes.
    ///
    /// # Errors
    /// As [`Self::chat`].
    pub fn chat_prompt(&self, request: &ChatRequest) -> Result<String, Error> {
        let facts = &self.facts;
        facts.check_text(request)?;
        let most = longest_conversation(facts.plan.context);
        let prompt = facts
            .chat
            .prompt(request, &facts.tokenizer, most, SystemTime::now())?;
        Ok(prompt.text)
    }
}

impl Facts {
    /// Refuses a conversation that cannot fit before its text is copied.
    fn check_text(&self, request: &ChatRequest) -> Result<(), Error> {
        let context = self.plan.context;
        if request.messages.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let messages = &request.messages;
        // Templates leave out what the model thought in earlier turns.
        let asked = messages.iter().rposition(|m| m.role == Role::User);
        let turn = &messages[asked.unwrap_or(0)..];
        let thought = turn.iter().filter_map(|m| m.reasoning.as_ref());
        let said = messages.iter().map(|m| &m.content);
        let bytes: usize = said.chain(thought).map(String::len).sum();
        match bytes > longest_conversation(context) {
            true => Err(self.too_long(context + 1)),
            false => Ok(()),
        }
    }

    /// The token that every text begins with.
    fn begin(&self) -> Begin<'_> {
        let name = self.chat.token("bos_token");
        Begin {
            token: self.tokenizer.leading_bos(),
            written: self.tokenizer.bos().zip(name),
        }
    }
}

fn shown(tokenizer: &Tokenizer, template: &str) -> Vec<u32> {
    let names = marks(template).into_iter();
    names
        .filter_map(|name| tokenizer.special_token(name))
        .collect()
}
