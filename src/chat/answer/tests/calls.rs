//! Calls in answers.

use serde_json::json;

use super::*;

#[test]
fn calls_are_split_off_and_numbered() {
    let call = "{\"name\": \"add\", \"arguments\": {\"a\": 1}}";
    let hermes =
        format!("Let me see.\n<tool_call>\n{call}\n</tool_call>\n<tool_call>{call}</tool_call>");
    let message = read(Some(HERMES), false, &[&hermes]);
    assert_eq!(message.content, "Let me see.\n");
    assert_eq!(message.tool_calls.len(), 2);
    assert_eq!(message.tool_calls[1].arguments, json!({"a": 1}));
    assert_ne!(message.tool_calls[0].id, message.tool_calls[1].id);
    assert_eq!(message.tool_calls[0].id.len(), 9);

    let bare = read(
        Some(LLAMA),
        false,
        &["{\"name\": \"add\", \"parameters\": {}}"],
    );
    assert_eq!((bare.tool_calls.len(), &*bare.content), (1, ""));
    let text = read(Some(LLAMA), false, &["{\"sum\": 3}"]);
    assert_eq!((text.tool_calls.len(), &*text.content), (0, "{\"sum\": 3}"));
    let broken = read(Some(HERMES), false, &["<tool_call>no</tool_call> end"]);
    assert_eq!(broken.content, "<tool_call>no</tool_call> end");
    let none_offered = read(None, false, &[&hermes]);
    assert_eq!(none_offered.content, hermes);
    let cut = "<tool_call>{\"name\": \"add\", \"ar";
    assert_eq!(read(Some(HERMES), false, &[cut]).content, cut);
}

#[test]
fn calls_are_told_apart_by_the_template() {
    for (template, calls) in CALLS {
        let answer = format!("Let me see.{calls}");
        let message = read_of(template, true, &[&answer]);
        assert_eq!(message.content, "Let me see.", "{calls}");
        let arguments: Vec<_> = message.tool_calls.iter().map(|c| &c.arguments).collect();
        let expected = [json!({"city": "Paris é", "days": 2}), json!({})];
        assert_eq!(arguments, expected.iter().collect::<Vec<_>>(), "{calls}");
        assert!(message.tool_calls.iter().all(|call| call.name == "weather"));
        assert_ne!(message.tool_calls[0].id, message.tool_calls[1].id);
        // Nothing was offered that it could call.
        assert_eq!(read_of(template, false, &[&answer]).content, answer);
        // All that may be control tokens is shown to the reader.
        let marks = marks(template).into_iter();
        let rest = marks.fold(answer, |rest, mark| rest.replace(mark, ""));
        assert!(
            !rest.contains(['|', '｜']) && !rest.contains("call>"),
            "{rest}"
        );
    }
    let list = "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {}}]";
    assert_eq!(read_of(GRANITE, true, &[list]).tool_calls.len(), 1);
    assert_eq!(read_of(GRANITE, false, &[list]).content, list);
}

#[test]
fn a_call_that_is_cut_off_is_text_as_it_came() {
    for (template, calls) in CALLS {
        let ends = calls.char_indices().map(|(at, _)| at);
        for end in ends.skip(1) {
            let cut = &calls[..end];
            let message = read_of(template, true, &[cut]);
            match message.tool_calls.len() {
                // The mark after all calls may be missing.
                0 => assert_eq!(message.content, cut),
                1 => assert!(cut.ends_with(&*message.content), "{cut}"),
                _ => assert_eq!(message.content, "", "{cut}"),
            }
            let first = message.tool_calls.first();
            let expected = json!({"city": "Paris é", "days": 2});
            assert!(first.is_none_or(|call| call.arguments == expected), "{cut}");
        }
    }
}

#[test]
fn an_object_is_a_call_only_of_a_tool_that_there_is() {
    for answer in [
        "{\"name\": \"Bob\", \"age\": 3}",
        "[{\"name\": \"Bob\", \"parameters\": {}}]",
    ] {
        for template in ["", LLAMA] {
            let message = read(Some(template), false, &[answer]);
            assert_eq!((message.tool_calls.len(), &*message.content), (0, answer));
        }
    }
    let call = "[{\"name\": \"add\"}]";
    assert_eq!(read(Some(""), false, &[call]).tool_calls.len(), 1);
}

#[test]
fn a_call_ends_reasoning_that_was_never_closed_but_its_mark_alone_does_not() {
    for (template, calls) in CALLS {
        let tags = ReasoningTags::of(template);
        let answer = format!("{}I look.\n{calls}", tags.opening);
        let message = read_of(template, true, &[&answer]);
        let reasoning = message.reasoning.as_deref();
        assert_eq!((reasoning, message.tool_calls.len()), (Some("I look."), 2));
        assert_eq!(message.content, "");
        // Nothing was offered that it could call.
        let message = read_of(template, false, &[&answer]);
        assert_eq!(message.tool_calls.len(), 0);
        let mark = CallFormat::of(template).opening().expect("it has one");
        let named = format!("{}a {mark} b{}Yes.{calls}", tags.opening, tags.closing);
        let message = read_of(template, true, &[&named]);
        let thought = format!("a {mark} b");
        assert_eq!(message.reasoning, Some(thought), "{named}");
        assert_eq!((&*message.content, message.tool_calls.len()), ("Yes.", 2));
    }
    // A call that was only thought of.
    let call = "<tool_call>{\"name\": \"add\"}</tool_call>";
    let thought = format!("<think>I'd send {call}, no</think>Yes.{call}");
    let message = read(Some(HERMES), false, &[&thought]);
    let reasoning = format!("I'd send {call}, no");
    assert_eq!(message.reasoning, Some(reasoning));
    assert_eq!((&*message.content, message.tool_calls.len()), ("Yes.", 1));
    let twice = "<think>A <tool_call> is <tool_call>{\"name\": \"add\"}</tool_call>";
    let message = read(Some(HERMES), false, &[twice]);
    let thought = message.reasoning.as_deref();
    assert_eq!(
        (thought, message.tool_calls.len()),
        (Some("A <tool_call> is"), 1)
    );
    let none = "<think>A <tool_call>x</tool_call> y</think>z";
    let message = read(Some(HERMES), false, &[none]);
    let thought = message.reasoning.as_deref();
    assert_eq!(
        (thought, &*message.content),
        (Some("A <tool_call>x</tool_call> y"), "z")
    );
}

#[test]
fn functions_may_come_without_the_marks_around_them() {
    let call = "<function=weather>\n<parameter=city>\na </function> b\n</parameter>\n</function>";
    for answer in [
        format!("Let me see.\n{call}\n</tool_call>"),
        format!("Let me see.\n{call}"),
        format!("Let me see.\n{call}\n</tool_call>\n<tool_call>\n{call}\n</tool_call>"),
    ] {
        let count = answer.matches("<function=").count();
        let each: Vec<_> = answer.split_inclusive(' ').collect();
        for pieces in [&[&*answer][..], &each] {
            let message = read_of(CODER, true, pieces);
            assert_eq!(message.content, "Let me see.\n", "{answer}");
            assert_eq!(message.tool_calls.len(), count, "{answer}");
            assert_eq!(
                message.tool_calls[0].arguments,
                json!({"city": "a </function> b"})
            );
        }
        assert_eq!(read_of(CODER, false, &[&answer]).content, answer);
    }
    let other = "It is <function=print> here: <function=weather> x";
    assert_eq!(read_of(CODER, true, &[other]).content, other);
}

#[test]
fn an_argument_may_have_the_mark_of_an_end_in_it() {
    const GLM: &str = "<tool_call><arg_key>";
    const CODER: &str = "<tool_call><function=";
    let city = "a </tool_call> b";
    let json = json!({"name": "weather", "arguments": {"city": format!("\"{city}\\"), "days": 2}});
    for (template, call, city) in [
        (HERMES, format!("{json}"), format!("\"{city}\\")),
        (
            GLM,
            format!(
                "weather\n<arg_key>city</arg_key>\n<arg_value>{city}</arg_value>\n<arg_key>days</arg_key>\n\
            <arg_value>2</arg_value>"
            ),
            city.to_owned(),
        ),
        (
            CODER,
            format!(
                "<function=weather>\n<parameter=city>\n{city}\n</parameter>\n<parameter=days>\n2\n\
            </parameter>\n</function>"
            ),
            city.to_owned(),
        ),
    ] {
        let answer = format!(
            "I look.\n<tool_call>\n{call}\n</tool_call>\n<tool_call>\n{call}\n</tool_call>"
        );
        let message = read_of(template, true, &[&answer]);
        assert_eq!(
            (&*message.content, message.tool_calls.len()),
            ("I look.\n", 2),
            "{answer}"
        );
        let arguments = &message.tool_calls[1].arguments;
        assert_eq!(arguments, &json!({"city": city, "days": 2}), "{answer}");
        let letters: Vec<String> = answer.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        let slowly = read_of(template, true, &letters);
        assert_eq!(
            (slowly.content, slowly.tool_calls),
            (message.content, message.tool_calls)
        );
    }
    // A text that never ends does not take the next call with it.
    let call = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"days\": 2}}</tool_call>";
    let answer = format!("<tool_call>{{\"name\": \"weather</tool_call>{call}");
    let message = read_of(HERMES, true, &[&answer]);
    assert_eq!(message.tool_calls.len(), 1, "{answer}");
    // Nor does one with a quotation mark too many.
    let wrong =
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"a\"b\"}}</tool_call>";
    let answer = format!("{wrong} Again: {call}");
    let message = read_of(HERMES, true, &[&answer]);
    assert_eq!(message.tool_calls.len(), 1, "{answer}");
    assert_eq!(message.content, format!("{wrong} Again: "));
}

#[test]
fn a_call_that_is_cut_off_in_reasoning_must_be_one_of_a_tool_that_there_is() {
    for (name, calls) in [("weather", 1), ("none", 0)] {
        let answer =
            format!("<think>I could <tool_call>{{\"name\": \"{name}\", \"arguments\": {{}}}}");
        let message = read_of(HERMES, true, &[&answer]);
        assert_eq!(message.tool_calls.len(), calls, "{answer}");
        let reasoning = message.reasoning.unwrap_or_default();
        assert_eq!(reasoning.contains("name"), calls == 0, "{reasoning}");
    }
}
