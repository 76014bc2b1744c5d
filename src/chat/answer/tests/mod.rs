//! Answers, taken apart and put together again.

mod calls;

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A model with this template, if tools are offered.
fn read(template: Option<&str>, inside: bool, pieces: &[&str]) -> Message {
    let offered = template.map(|_| json!({"name": "add", "parameters": {}}));
    let tools = offered.into_iter().collect();
    let template = template.unwrap_or_default();
    read_all(AnswerReader::new(template, tools, inside, 3), pieces)
}

/// What tells the templates of some families apart.
const HERMES: &str = "<tool_call>";
const LLAMA: &str = "<|python_tag|>";

/// Of a model with this template. Its tool may be offered.
fn read_of(template: &str, offers_tools: bool, pieces: &[&str]) -> Message {
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}});
    let tools = match offers_tools {
        true => vec![tool],
        false => Vec::new(),
    };
    read_all(AnswerReader::new(template, tools, false, 3), pieces)
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
fn what_looks_like_a_begin_is_text_if_nothing_follows() {
    for answer in ["<", "<th", "\n<thin"] {
        assert_eq!(read(None, false, &[answer]).content, answer);
    }
    assert_eq!(read(None, false, &[" \n"]).content, "");
}

/// Of a model that answers in channels.
fn read_channels(offers_tools: bool, pieces: &[&str]) -> Message {
    let template = include_str!("../../../../tests/golden/chat/gpt-oss.jinja");
    read_of(template, offers_tools, pieces)
}

const CODER: &str = include_str!("../../../../tests/golden/chat/qwen3-coder.jinja");
const GLM: &str = include_str!("../../../../tests/golden/chat/glm-4.6.jinja");
const DEEPSEEK: &str = include_str!("../../../../tests/golden/chat/deepseek-v3.1.jinja");
const R1: &str = include_str!("../../../../tests/golden/chat/deepseek-r1-distill.jinja");
const GRANITE: &str = include_str!("../../../../tests/golden/chat/granite-3.3.jinja");
// What tells the templates of models apart that are not in the repository.
const SEED: &str = "'<seed:tool_call>' '<seed:think>'";
const KIMI: &str = "<|tool_calls_section_begin|>";
const GEMMA: &str = "'<|tool_call>call:' '<|channel>'";
const LFM2: &str = "<|tool_list_start|>";
const MAGISTRAL: &str = "[TOOL_CALLS] [THINK]";
const COMMAND: &str = "<|START_ACTION|> <|START_THINKING|> <|START_RESPONSE|>";

/// Two calls, as models with these templates write them.
const CALLS: [(&str, &str); 9] = [
    (
        CODER,
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis é\n</parameter>\n<parameter=days>\n2\n</parameter>\n\
         </function>\n</tool_call>\n<tool_call>\n<function=weather>\n</function>\n</tool_call>",
    ),
    (
        GLM,
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris é</arg_value>\n<arg_key>days</arg_key>\n\
         <arg_value>2</arg_value>\n</tool_call>\n<tool_call>weather\n</tool_call>",
    ),
    (
        DEEPSEEK,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Paris é\", \"days\": 2}\
         <｜tool▁call▁end｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        R1,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Paris é\", \
         \"days\": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{}\n```\
         <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        SEED,
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris é</parameter>\n<parameter=days>2</parameter>\n\
         </function>\n</seed:tool_call>\n<seed:tool_call>\n<function=weather>\n</function>\n</seed:tool_call>",
    ),
    (
        KIMI,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>\
         {\"city\": \"Paris é\", \"days\": 2}<|tool_call_end|><|tool_call_begin|>functions.weather:1\
         <|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        GEMMA,
        "<|tool_call>call:weather{city:<|\"|>Paris é<|\"|>,days:2}<tool_call|><|tool_call>call:weather{}<tool_call|>",
    ),
    (
        COMMAND,
        "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Paris é\", \
         \"days\": 2}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"weather\", \"parameters\": {}}\n]<|END_ACTION|>",
    ),
    (
        LFM2,
        "<|tool_call_start|>[weather(city='Paris é', days=2), weather()]<|tool_call_end|>",
    ),
];

#[test]
fn reasoning_has_the_tags_of_the_template() {
    for (template, answer) in [
        (CODER, "<think>\nhm, [THINK]\n</think>\n\nYes."),
        (MAGISTRAL, "[THINK]hm, [THINK][/THINK]Yes."),
        (SEED, "<seed:think>\nhm, [THINK]\n</seed:think>\nYes."),
        (GEMMA, "<|channel>thought\nhm, [THINK]\n<channel|>Yes."),
    ] {
        let message = read_of(template, false, &[answer]);
        assert_eq!(
            message.reasoning.as_deref(),
            Some("hm, [THINK]"),
            "{answer}"
        );
        assert_eq!(message.content, "Yes.", "{answer}");
        for mark in ReasoningTags::of(template).marks() {
            assert!(answer.contains(mark), "{answer}");
            assert!(marks(template).contains(&mark), "{answer}");
        }
    }
    let other = "<think>hm</think>Yes.";
    assert_eq!(read_of(MAGISTRAL, false, &[other]).content, other);
    for (template, prompt, inside) in [
        (CODER, "<|im_start|>assistant\n<think>\n", true),
        (CODER, "<think>\n\n</think>\n\n", false),
        (CODER, "[THINK]", false),
        (MAGISTRAL, "[/INST][THINK]", true),
        (SEED, "<seed:bos>assistant\n<seed:think>", true),
        (SEED, "<seed:think><seed:cot_budget_reflect>", true),
        (SEED, "<seed:bos>assistant\n", false),
        (GEMMA, "<|turn>model\n<|channel>thought\n", true),
        (GEMMA, "<|turn>model\n<|channel>thought\n<channel|>", false),
    ] {
        assert_eq!(is_inside_reasoning(template, prompt), inside, "{prompt}");
    }
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

#[test]
fn what_cannot_become_a_call_is_shown_at_once() {
    for (first, shown) in [
        ("[1", true),
        ("[x](y)", true),
        ("{\"sum\"", true),
        ("{\"na", false),
        (" [ {", false),
    ] {
        let tools = vec![json!({"name": "add", "parameters": {}})];
        let mut reader = AnswerReader::new("", tools, false, 0);
        let parts = reader.push(first);
        let expected = shown.then(|| Part::Text(first.to_owned()));
        assert_eq!(parts, expected.into_iter().collect::<Vec<_>>(), "{first}");
    }
}

#[test]
fn what_stands_around_a_response_is_left_out() {
    let answer = "<think>hm</think>\n<response>\nYes, <b>.</response>";
    for pieces in [vec![answer], answer.split_inclusive('<').collect()] {
        let message = read_of(GRANITE, false, &pieces);
        assert_eq!(
            (message.reasoning.as_deref(), &*message.content),
            (Some("hm"), "Yes, <b>.")
        );
    }
    // Tags are text, if nothing was thought before, and behind the closing one.
    for answer in [
        "<response><id>1</id></response>",
        "a <response>b</response>",
    ] {
        assert_eq!(read_of(GRANITE, false, &[answer]).content, answer);
    }
    let answer = "<think>hm</think><response>a <response>b</response>c</response>";
    let message = read_of(GRANITE, false, &[answer]);
    assert_eq!(message.content, "a <response>bc</response>");
    let answer = "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>";
    let message = read_of(COMMAND, true, &[answer]);
    assert_eq!(
        (message.reasoning.as_deref(), &*message.content),
        (Some("hm"), "Yes.")
    );
    for mark in ["<|START_RESPONSE|>", "<|END_RESPONSE|>"] {
        assert!(marks(COMMAND).contains(&mark));
    }
    assert_eq!(
        read_of(CODER, false, &["<response>x"]).content,
        "<response>x"
    );
}

#[test]
fn messages_in_channels_may_lack_a_mark_between_them() {
    for between in [
        "<|end|>assistant",
        "<|end|>\nassistant",
        "<|start|>assistant",
        "",
    ] {
        let answer = format!(
            "<|channel|>analysis<|message|>I look.{between}<|channel|>final<|message|>Yes."
        );
        let each: Vec<_> = answer.split_inclusive('|').collect();
        for pieces in [&[&*answer][..], &each] {
            let message = read_channels(true, pieces);
            let parts = (message.reasoning.as_deref(), &*message.content);
            assert_eq!(parts, (Some("I look."), "Yes."), "{answer}");
        }
        for cut in ["<|channel|>fin", ""] {
            let answer = format!("<|channel|>analysis<|message|>I look.{between}{cut}");
            let message = read_channels(true, &[&answer]);
            assert_eq!(message.content, "", "{answer}");
        }
    }
    for text in ["a <|start|> b", "a <|channel|>b<|message|>", "assistant c"] {
        let answer = format!("<|channel|>final<|message|>{text}");
        assert_eq!(read_channels(true, &[&answer]).content, text);
    }
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
        let format = Some(HERMES);
        prop_assert_eq!(read(format, false, &pieces(answer, cuts.clone())), read(format, false, &[answer]));
        let answer = "<|channel|>analysis<|message|>a <é<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>Text <|too";
        prop_assert_eq!(read_channels(true, &pieces(answer, cuts.clone())), read_channels(true, &[answer]));
        for (template, calls) in CALLS {
            let tags = ReasoningTags::of(template);
            let answer = format!("{}a < b{}\nText <é{calls}\nmore", tags.opening, tags.closing);
            let whole = read_of(template, true, &[&answer]);
            prop_assert_eq!((whole.tool_calls.len(), whole.reasoning.as_deref()), (2, Some("a < b")));
            prop_assert_eq!(read_of(template, true, &pieces(&answer, cuts.clone())), whole);
        }
    }
}

#[test]
fn a_text_in_channels_may_name_the_mark_of_a_message() {
    let text = "It begins with <|start|>, then\n<|start|>assistant\nand goes on. <|start|>";
    let answer = format!("<|channel|>final<|message|>{text}");
    for pieces in [vec![&*answer], answer.split_inclusive('>').collect()] {
        assert_eq!(read_channels(true, &pieces).content, text);
    }
}
