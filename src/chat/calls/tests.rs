//! Calls as several families write them.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// One tool, which has a parameter of every kind.
fn tools() -> OfferedTools {
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"}, "near": {"type": "array"},
    }}}});
    OfferedTools::new(vec![tool])
}

fn names(format: CallFormat, text: &str) -> Vec<(String, Value)> {
    let calls = format.parse(text, &tools(), true).unwrap_or_default();
    calls.into_iter().map(|c| (c.name, c.arguments)).collect()
}

/// The weather in Paris is asked for.
const PARIS: [(CallFormat, &str); 16] = [
    (
        CallFormat::Hermes,
        "\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n",
    ),
    (
        CallFormat::Hermes,
        "\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n",
    ),
    (
        CallFormat::Hermes,
        "weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n",
    ),
    (
        CallFormat::Seed,
        "\n<function=weather>\n<parameter=city>Paris</parameter>\n</function>\n",
    ),
    (
        CallFormat::Mistral,
        " [{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}]",
    ),
    (CallFormat::Mistral, "weather[ARGS]{\"city\": \"Paris\"}"),
    (
        CallFormat::Mistral,
        "weather[CALL_ID]abc[ARGS]{\"city\": \"Paris\"}",
    ),
    (
        CallFormat::DeepSeek,
        "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜>",
    ),
    (
        CallFormat::DeepSeek,
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>",
    ),
    (
        CallFormat::Kimi,
        "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|>",
    ),
    (
        CallFormat::Granite,
        "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}]",
    ),
    (CallFormat::Gemma, "call:weather{city:<|\"|>Paris<|\"|>}"),
    (
        CallFormat::Llama,
        "{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}",
    ),
    (
        CallFormat::Json,
        "[{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Paris\\\"}\"}]",
    ),
    (
        CallFormat::Json,
        "{\"function\": {\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}}",
    ),
    (CallFormat::Python, "[weather(city=\"Paris\")]"),
];

#[test]
fn every_familys_calls_are_read() {
    let expected = [("weather".to_owned(), json!({"city": "Paris"}))];
    for (format, text) in PARIS {
        assert_eq!(names(format, text), expected, "{text}");
    }
    for other in [
        "{\"city\": \"Paris\"}",
        "[1]",
        "[]",
        "{",
        "weather",
        "\"name\"",
    ] {
        let call = CallFormat::Json.parse(other, &tools(), true);
        assert_eq!(call, None, "{other}");
    }
    let call = CallFormat::Mistral.parse("plain text", &tools(), true);
    assert_eq!(call, None);
    assert_eq!(
        names(CallFormat::Mistral, "a{}[TOOL_CALLS]b[ARGS]{}").len(),
        2
    );
}

#[test]
fn values_between_tags_have_their_types_and_their_white_space() {
    let lines = "\n def f():\n\treturn 1\n\n";
    let arguments =
        json!({"city": lines, "days": 3, "exact": true, "near": ["a", 2], "other": 1.5});
    let function = format!(
        "<function=weather>\n<parameter=city>\n{lines}\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
         <parameter=exact>\nTrue\n</parameter>\n<parameter=near>\n[\"a\", 2]\n</parameter>\n\
         <parameter=other>\n1.5\n</parameter>\n</function>"
    );
    let keys = format!(
        "weather\n<arg_key>city</arg_key>\n<arg_value>{lines}</arg_value>\n<arg_key>days</arg_key>\n\
         <arg_value>3</arg_value>\n<arg_key>exact</arg_key>\n<arg_value>true</arg_value>\n<arg_key>near</arg_key>\n\
         <arg_value>[\"a\", 2]</arg_value>\n<arg_key>other</arg_key>\n<arg_value>1.5</arg_value>"
    );
    for text in [&function, &keys] {
        let expected = [("weather".to_owned(), arguments.clone())];
        assert_eq!(names(CallFormat::Hermes, text), expected, "{text}");
    }
    // A value may have tags in it.
    let quoted = "<parameter=a>\n1\n</parameter> x";
    let text = format!("<function=weather>\n<parameter=city>\n{quoted}\n</parameter>\n</function>");
    let expected = [("weather".to_owned(), json!({"city": quoted}))];
    assert_eq!(names(CallFormat::Hermes, &text), expected);
    let numbers = json!({"city": "12", "days": "many"});
    let text = "<function=weather>\n<parameter=city>12</parameter>\n<parameter=days>many</parameter>\n</function>";
    assert_eq!(
        names(CallFormat::Seed, text),
        [("weather".to_owned(), numbers)]
    );
}

#[test]
fn what_is_no_call_between_tags_is_none() {
    for text in [
        "no",
        "",
        "<function=weather>",
        "<function=>\n</function>",
        "<function=weather>\n<parameter=city>\nParis\n</parameter>\n",
        "<function=weather>\n<parameter=city>\nParis\n</function>",
        "<function=weather>\n</function>\nmore",
        "weather\n<arg_key>city</arg_key>",
        "weather\n<arg_key>city</arg_key>\n<arg_value>Paris",
        "two words\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>",
        "<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>",
    ] {
        let call = CallFormat::Hermes.parse(text, &tools(), true);
        assert_eq!(call, None, "{text}");
    }
    // Without arguments, a tool's name is a call, and another word is none.
    assert_eq!(
        names(CallFormat::Hermes, "\nweather\n"),
        [("weather".to_owned(), json!({}))]
    );
    assert_eq!(
        names(CallFormat::Hermes, "<function=f>\n</function>"),
        [("f".to_owned(), json!({}))]
    );
    // More keys might have come.
    let cut = "weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n";
    for text in [cut, "weather"] {
        let call = CallFormat::Hermes.parse(text, &tools(), false);
        assert_eq!(call, None, "{text}");
    }
}

#[test]
fn sections_have_several_calls() {
    let deepseek = "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{}<｜tool▁call▁end｜>\n\
                    <｜tool▁call▁begin｜>function<｜tool▁sep｜>b\n```json\n{\"x\": \"```json\"}\n```<｜tool▁call▁end｜>";
    let expected = [
        ("a".to_owned(), json!({})),
        ("b".to_owned(), json!({"x": "```json"})),
    ];
    assert_eq!(names(CallFormat::DeepSeek, deepseek), expected);
    let kimi = "<|tool_call_begin|>functions.a.b:0<|tool_call_argument_begin|>{}<|tool_call_end|>\
                <|tool_call_begin|>functions.c:1<|tool_call_argument_begin|>{}<|tool_call_end|>";
    let calls = CallFormat::Kimi.parse(kimi, &tools(), true);
    let calls: Vec<_> = calls
        .into_iter()
        .flatten()
        .map(|call| (call.id, call.name))
        .collect();
    let expected = [("functions.a.b:0", "a.b"), ("functions.c:1", "c")];
    assert_eq!(
        calls,
        expected.map(|(id, name)| (id.to_owned(), name.to_owned()))
    );
    for text in [
        "",
        "x",
        "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{}",
        "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>{}<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{}<｜tool▁call▁end｜> and",
    ] {
        let call = CallFormat::DeepSeek.parse(text, &tools(), true);
        assert_eq!(call, None, "{text}");
    }
}

#[test]
fn gemmas_quotes_may_stand_around_anything() {
    let text = "call:weather{city:<|\"|>a \"b\", {c: d}\n<|\"|>,days:-3,exact:true,near:[<|\"|>x<|\"|>,{deep:[1.5]}],\
                other:{<|\"|>a b<|\"|>:<|\"|><|\"|>}}";
    let arguments = json!({"city": "a \"b\", {c: d}\n", "days": -3, "exact": true, "near": ["x", {"deep": [1.5]}],
        "other": {"a b": ""}});
    assert_eq!(
        names(CallFormat::Gemma, text),
        [("weather".to_owned(), arguments)]
    );
    assert_eq!(
        names(CallFormat::Gemma, "call:f{}"),
        [("f".to_owned(), json!({}))]
    );
    for text in [
        "call:f",
        "call:{}",
        "f{}",
        "call:f{a:<|\"|>}",
        "call:f{a:b}",
        "call:f{} more",
    ] {
        let call = CallFormat::Gemma.parse(text, &tools(), true);
        assert_eq!(call, None, "{text}");
    }
}

#[test]
fn python_is_read_as_far_as_calls_need_it() {
    let text = "[weather(city='it\\'s \\\\ \"a\"\\n\\d, (b=c)', days=-3, exact=True, near=['x', {'k': None, \"l\": 1.5}]), f.g()]";
    let arguments = json!({"city": "it's \\ \"a\"\n\\d, (b=c)", "days": -3, "exact": true,
        "near": ["x", {"k": null, "l": 1.5}]});
    assert_eq!(
        names(CallFormat::Python, text),
        [
            ("weather".to_owned(), arguments),
            ("f.g".to_owned(), json!({}))
        ]
    );
    let list = "[{\"name\": \"f\", \"arguments\": {}}]";
    assert_eq!(names(CallFormat::Python, list).len(), 1);
    for text in [
        "",
        "[]",
        "f",
        "[f(",
        "[f('x')]",
        "[f(a='x]",
        "[f(a=b)]",
        "[f(a='\\x41')]",
        "[f()] so",
        "[f)]",
    ] {
        let call = CallFormat::Python.parse(text, &tools(), true);
        assert_eq!(call, None, "{text}");
    }
}

#[test]
fn templates_show_their_format() {
    macro_rules! golden {
        ($name:literal) => {
            include_str!(concat!("../../../tests/golden/chat/", $name, ".jinja"))
        };
    }
    for (template, format) in [
        (golden!("deepseek-r1-distill"), CallFormat::DeepSeek),
        (golden!("deepseek-v3.1"), CallFormat::DeepSeek),
        (golden!("gemma-3"), CallFormat::Json),
        (golden!("glm-4.6"), CallFormat::Hermes),
        (golden!("granite-3.3"), CallFormat::Granite),
        (golden!("granite-4.0"), CallFormat::Hermes),
        (golden!("hermes-2-pro"), CallFormat::Hermes),
        (golden!("llama-3"), CallFormat::Llama),
        (golden!("llama-3.1"), CallFormat::Llama),
        (golden!("llama-3.2"), CallFormat::Llama),
        (golden!("mistral-nemo"), CallFormat::Mistral),
        (golden!("mistral-small-3.2"), CallFormat::Mistral),
        (golden!("qwen2.5"), CallFormat::Hermes),
        (golden!("qwen3"), CallFormat::Hermes),
        (golden!("qwen3-coder"), CallFormat::Hermes),
        (golden!("qwq-32b"), CallFormat::Hermes),
        // Of models whose templates are not in the repository, what tells them apart.
        ("… '<seed:tool_call>' …", CallFormat::Seed),
        ("… <|tool_calls_section_begin|> …", CallFormat::Kimi),
        ("… '<|tool_call>call:' …", CallFormat::Gemma),
        ("… <|START_ACTION|> …", CallFormat::Command),
        ("… <|tool_call_start|>[ …", CallFormat::Python),
        ("… List of tools: <|tool_list_start|> …", CallFormat::Python),
    ] {
        assert_eq!(CallFormat::of(template), format, "{template}");
    }
}

proptest! {
    /// Models write anything.
    #[test]
    fn any_text_is_calls_or_none(text in "([-a1(){}'\"\\\\=,:/é \n]|\\[|\\]|<\\|\"\\|>|</?parameter[=>]|</?arg_(key|value)>){0,40}") {
        for format in MARKED.into_iter().chain([CallFormat::Llama, CallFormat::Json]) {
            for begin in ["", "call:f{", "[f(", "<function=f>", "weather<arg_key>"] {
                let text = format!("{begin}{text}");
                let calls = format.parse(&text, &tools(), true);
                prop_assert!(calls.is_none_or(|calls| !calls.is_empty()), "{}", text);
            }
        }
    }
}
