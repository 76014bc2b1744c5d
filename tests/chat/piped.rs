//! `forebay chat` and `forebay run --chat` without a terminal.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::program::{Answer, answer, forebay};
use crate::support::{TemporaryFile, scratch};
use crate::{TEMPLATE, template};

fn program(arguments: &[&str], template: Option<&TemporaryFile>) -> Command {
    let mut command = forebay(scratch(), arguments);
    command.args(["--temp", "0", "--threads", "2", "-c", "256"]);
    if let Some(file) = template {
        command.arg("--chat-template").arg(&file.0);
    }
    command
}

/// Runs it with `input` on standard input.
fn with_input(mut command: Command, input: &str) -> Answer {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    command.stdin(Stdio::from(reader));
    writer.write_all(input.as_bytes()).expect("a pipe holds it");
    drop(writer);
    answer(command)
}

#[test]
fn standard_input_is_one_turn() {
    let file = template(TEMPLATE);
    let chat = with_input(
        program(&["chat", "-n", "12"], Some(&file)),
        "Once upon\na time\n",
    );
    assert!(chat.status.success(), "{}", chat.stderr);
    assert!(
        chat.stdout.ends_with('\n') && chat.stdout.trim().len() > 5,
        "{}",
        chat.stdout
    );
    assert!(
        !chat.stdout.contains('['),
        "statistics are on standard error"
    );
    let lines: Vec<_> = chat.stderr.lines().collect();
    let last = lines.last().expect("statistics");
    assert!(
        last.starts_with("[read ") && last.contains("answered 12"),
        "{last}"
    );
    assert!(
        !chat.stderr.contains('\u{1b}'),
        "no colours without a terminal"
    );

    let quiet = with_input(
        program(&["chat", "-n", "12", "-q"], Some(&file)),
        "Once upon\na time",
    );
    assert_eq!((&quiet.stdout, &*quiet.stderr), (&chat.stdout, ""));

    // The same turn as an argument.
    let mut run = program(&["run", "--chat", "-q", "-n", "12"], Some(&file));
    run.args(["-p", "Once upon\na time"]);
    let run = answer(run);
    assert_eq!((run.stdout, &*run.stderr), (chat.stdout, ""));
}

#[test]
fn what_is_wrong_is_said_with_a_remedy() {
    let usual = template(TEMPLATE);
    let broken = template("{% if %}");
    let refusing = template("{{ raise_exception('no system messages') }}");
    let endless =
        template("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
    for (arguments, template, input, expected) in [
        (
            &["chat"][..],
            None,
            "Hi",
            &["no chat template", "--chat-template FILE"][..],
        ),
        (
            &["chat"],
            Some(&usual),
            " \n",
            &["message is empty", "forebay run --chat -p TEXT"],
        ),
        (
            &["chat"],
            Some(&broken),
            "Hi",
            &["template.jinja", "line 1", "--chat-template FILE"],
        ),
        (
            &["chat"],
            Some(&refusing),
            "Hi",
            &["template.jinja", "no system messages", "--system"],
        ),
        (
            &["chat"],
            Some(&endless),
            "Hi",
            &["template.jinja", "does not end"],
        ),
        (
            &["run", "-p", "Hi", "--system", "x"],
            None,
            "",
            &["--system", "--chat"],
        ),
        (
            &["run", "-p", "Hi", "--chat"],
            None,
            "",
            &["no chat template"],
        ),
    ] {
        let answer = with_input(program(arguments, template), input);
        assert_eq!(answer.status.code(), Some(1), "{arguments:?}");
        assert_eq!(answer.stdout, "");
        for part in expected {
            assert!(
                answer.stderr.contains(part),
                "{arguments:?}, {part}: {}",
                answer.stderr
            );
        }
    }
    let mut missing = program(&["chat"], None);
    missing.args(["--chat-template", "/nowhere/template.jinja"]);
    let missing = with_input(missing, "Hi");
    assert!(
        missing.stderr.contains("/nowhere/template.jinja"),
        "{}",
        missing.stderr
    );
}

/// The model would answer a message that it has not seen.
#[test]
fn a_template_without_the_message_is_refused() {
    let deaf = template("Say something.");
    let answer = with_input(program(&["chat"], Some(&deaf)), "Hi");
    assert_eq!((answer.status.code(), &*answer.stdout), (Some(1), ""));
    for part in [
        "template.jinja",
        "leaves out what the user said",
        "--chat-template FILE",
    ] {
        assert!(answer.stderr.contains(part), "{part}: {}", answer.stderr);
    }
}
