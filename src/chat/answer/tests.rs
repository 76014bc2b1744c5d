//! Answers, taken apart and put together again.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(format: Option<CallFormat>, inside: bool, pieces: &[&str]) -> Message {
    let reader = TagReader::new(format, inside, Gathered::new(3));
    read_all(AnswerReader(Format::Tags(reader)), pieces)
}

/// What comes in pieces is what the message has at the end.
fn read_all(mut reader: AnswerReader, pieces: &[&str]) -> Message {
    let mut shown = Message::new(Role::Assistant, "");
    let mut parts: Vec<_> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
    parts.extend(reader.finish());
    for part in parts {
        match part {
            Part::Text(text) => shown.content += &text,
            Part::Reasoning(text) => *shown.reasoning.get_or_insert_default() += &text,
            Part::Call(call) => shown.tool_calls.push(call),
        }
    }
    let message = reader.message().clone();
    assert_eq!(
        (&shown.content, &shown.tool_calls),
        (&message.content, &message.tool_calls)
    );
    message
}

#[test]
fn reasoning_is_split_off() {
    for (inside, answer) in [
        (false, "<think>\nhm, 1 < 2\n</think>\n\nYes."),
        (false, "\n<think>hm, 1 < 2</think>Yes."),
        (true, "hm, 1 < 2\n</think>\n\nYes."),
    ] {
        let message = read(None, inside, &[answer]);
        assert_eq!(message.reasoning.as_deref(), Some("hm, 1 < 2"), "{answer}");
        assert_eq!(message.content, "Yes.", "{answer}");
    }
    let cut = read(None, true, &["never done"]);
    assert_eq!(
        (cut.reasoning.as_deref(), &*cut.content),
        (Some("never done"), "")
    );
    let quoted = read(None, false, &["The tag <think> is text here."]);
    assert_eq!(
        (quoted.reasoning, &*quoted.content),
        (None, "The tag <think> is text here.")
    );
    assert_eq!(read(None, false, &["  two spaces"]).content, "  two spaces");
}

#[test]
fn calls_are_split_off_and_numbered() {
    let call = "{\"name\": \"add\", \"arguments\": {\"a\": 1}}";
    let hermes =
        format!("Let me see.\n<tool_call>\n{call}\n</tool_call>\n<tool_call>{call}</tool_call>");
    let message = read(Some(CallFormat::Hermes), false, &[&hermes]);
    assert_eq!(message.content, "Let me see.\n");
    assert_eq!(message.tool_calls.len(), 2);
    assert_eq!(message.tool_calls[1].arguments, json!({"a": 1}));
    assert_ne!(message.tool_calls[0].id, message.tool_calls[1].id);
    assert_eq!(message.tool_calls[0].id.len(), 9);

    let bare = read(
        Some(CallFormat::Llama),
        false,
        &["{\"name\": \"add\", \"parameters\": {}}"],
    );
    assert_eq!((bare.tool_calls.len(), &*bare.content), (1, ""));
    let text = read(Some(CallFormat::Llama), false, &["{\"sum\": 3}"]);
    assert_eq!((text.tool_calls.len(), &*text.content), (0, "{\"sum\": 3}"));
    let broken = read(
        Some(CallFormat::Hermes),
        false,
        &["<tool_call>no</tool_call> end"],
    );
    assert_eq!(broken.content, "<tool_call>no</tool_call> end");
    let none_offered = read(None, false, &[&hermes]);
    assert_eq!(none_offered.content, hermes);
    let cut = "<tool_call>{\"name\": \"add\", \"ar";
    assert_eq!(read(Some(CallFormat::Hermes), false, &[cut]).content, cut);
}

#[test]
fn what_looks_like_a_begin_is_text_if_nothing_follows() {
    for answer in ["<", "<th", "\n<thin"] {
        assert_eq!(read(None, false, &[answer]).content, answer);
    }
    assert_eq!(read(None, false, &[" \n"]).content, "");
}

/// Of a model that answers in channels.
fn read_channels(offers_tools: bool, pieces: &[&str]) -> Message {
    let template = include_str!("../../../tests/golden/chat/gpt-oss.jinja");
    read_all(AnswerReader::new(template, offers_tools, false, 3), pieces)
}

#[test]
fn channels_are_told_apart() {
    let thought = "<|channel|>analysis<|message|>1 < 2, so<|end|>";
    let said = "<|start|>assistant<|channel|>final<|message|>Yes: <b>.";
    let message = read_channels(false, &[thought, said]);
    assert_eq!(message.reasoning.as_deref(), Some("1 < 2, so"));
    assert_eq!(message.content, "Yes: <b>.");
    // The end of a generation ends a message, too; and so it may be cut off anywhere.
    let cut = read_channels(false, &["<|channel|>analysis<|message|>never do"]);
    assert_eq!(
        (cut.reasoning.as_deref(), &*cut.content),
        (Some("never do"), "")
    );
    for header in ["<|channel|>fin", "<|start|>assistant"] {
        let cut = read_channels(false, &[thought, header]);
        assert_eq!(
            (cut.reasoning.as_deref(), &*cut.content),
            (Some("1 < 2, so"), ""),
            "{header}"
        );
    }
    // Without any header it is text.
    for plain in ["Hello", "to be", "to", "to=5", "<|x|>", " 3 < 4"] {
        assert_eq!(read_channels(true, &[plain]).content, plain);
    }
    let twice = "<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>final<|message|>Then.";
    assert_eq!(read_channels(false, &[twice]).content, "First.\n\nThen.");
}

#[test]
fn calls_have_a_channel_of_their_own() {
    let thought = "<|channel|>analysis<|message|>I look.<|end|>";
    let call = json!({"city": "Paris"});
    for header in [
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
        "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>",
    ] {
        let answer = format!("{thought}{header}{call}");
        let message = read_channels(true, &[&answer]);
        assert_eq!(message.reasoning.as_deref(), Some("I look."), "{header}");
        assert_eq!((&*message.content, message.tool_calls.len()), ("", 1));
        let first = &message.tool_calls[0];
        assert_eq!((&*first.name, &first.arguments), ("weather", &call));
        assert_eq!(first.id, "call00003");
        // Nothing was offered that it could call.
        assert_eq!(read_channels(false, &[&answer]).content, call.to_string());
        let broken = format!("{header}{{\"city\": ");
        assert_eq!(read_channels(true, &[&broken]).content, "{\"city\": ");
    }
    let none = " to=functions.now<|channel|>commentary json<|message|>";
    let message = read_channels(true, &[none]);
    assert_eq!(message.tool_calls[0].arguments, json!({}));
    // At the begin of an answer, the prompt has what comes before the recipient.
    let bare = format!(" to=functions.f<|channel|>commentary json<|message|>{call}<|end|>");
    assert_eq!(read_channels(true, &[&bare]).tool_calls[0].name, "f");
}

/// The pieces between some places of a text.
fn pieces(answer: &str, cuts: Vec<usize>) -> Vec<&str> {
    let cuts = cuts.into_iter().map(|at| at.min(answer.len()));
    let mut places: Vec<_> = cuts.filter(|&at| answer.is_char_boundary(at)).collect();
    places.extend([0, answer.len()]);
    places.sort_unstable();
    places.windows(2).map(|w| &answer[w[0]..w[1]]).collect()
}

proptest! {
    /// However an answer is cut into pieces, its parts are the same.
    #[test]
    fn pieces_make_no_difference(cuts in prop::collection::vec(0usize..220, 0..12)) {
        let answer = "<think>a < b\n</think>\n\nText <too é\n<tool_call>{\"name\": \"f\"}</tool_call>\nmore";
        let format = Some(CallFormat::Hermes);
        prop_assert_eq!(read(format, false, &pieces(answer, cuts.clone())), read(format, false, &[answer]));
        let answer = "<|channel|>analysis<|message|>a <é<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>Text <|too";
        prop_assert_eq!(read_channels(true, &pieces(answer, cuts)), read_channels(true, &[answer]));
    }
}
