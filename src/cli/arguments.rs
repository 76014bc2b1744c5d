//! From what was typed to a command. Refusals say what to give instead, also to those who know llama.cpp.

use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::path::Path;

use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, ArgAction, Command, CommandFactory, Error, FromArgMatches};

use super::output::print_with;
use super::{Arguments, llama_cpp};

/// Endings of files that are models, or parts of them.
const MODELS: [&str; 3] = ["gguf", "fbay", "safetensors"];

impl Arguments {
    /// The program's own; `None` if help was asked for, and printed. Without a command, `run` is meant:
    /// `forebay model.gguf`, `forebay -p TEXT`. Arguments that cannot be understood end the program.
    ///
    /// # Errors
    /// The help cannot be written.
    pub fn of_program() -> anyhow::Result<Option<Self>> {
        match read(std::env::args_os().collect()) {
            Ok(arguments) => Ok(Some(arguments)),
            Err(help) if help.exit_code() == 0 => print_with(|_| help.print()).map(|()| None),
            Err(error) => error.exit(),
        }
    }
}

/// Reads arguments, the first of which is the program's name.
///
/// # Errors
/// They cannot be understood, or help is asked for.
fn read(arguments: Vec<OsString>) -> Result<Arguments, Error> {
    let mut program = shaped(Arguments::command());
    program.build();
    let arguments = with_run(&program, arguments);
    let (command, unknown) = meant(&program, &arguments);
    if let Some(problem) = unknown {
        return Err(command.clone().error(ErrorKind::UnknownArgument, problem));
    }
    let matches = program.clone().try_get_matches_from(&arguments);
    let read = matches.and_then(|mut matches| Arguments::from_arg_matches_mut(&mut matches));
    read.map_err(|error| clearer(command, error))
}

/// A negative number is a value, which may be refused as such, and no option. All commands have the program's version.
fn shaped(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let is_positional = argument.get_short().is_none() && argument.get_long().is_none();
        let is_value = argument.get_action().takes_values() && !is_positional;
        match is_value && !argument.is_allow_hyphen_values_set() {
            true => argument.allow_negative_numbers(true),
            false => argument,
        }
    });
    command.mut_subcommands(|sub| shaped(sub).display_name(env!("CARGO_PKG_NAME")))
}

/// Puts `run` before a first argument that is a model or one of `run`'s options.
fn with_run(program: &Command, mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments
        .get(1)
        .is_some_and(|first| means_run(program, first))
    {
        arguments.insert(1, "run".into());
    }
    arguments
}

fn means_run(program: &Command, first: &OsStr) -> bool {
    let text = first.to_string_lossy();
    let asks = ["-h", "--help", "-V", "--version"].contains(&&*text);
    if asks || program.find_subcommand(first).is_some() {
        return false;
    }
    let path = Path::new(first);
    let ending = path.extension().map(OsStr::to_ascii_lowercase);
    let is_model = MODELS
        .iter()
        .any(|model| ending.as_deref() == Some(OsStr::new(model)));
    text.starts_with('-') || text.contains('/') || is_model || path.exists()
}

/// The command that is meant, and what is wrong with the first option that it cannot have.
fn meant<'p>(program: &'p Command, arguments: &[OsString]) -> (&'p Command, Option<String>) {
    let mut command = program;
    let mut left = arguments.iter().skip(1);
    while let Some(argument) = left.next() {
        let text = argument.to_string_lossy();
        let typed = match (text.strip_prefix("--"), text.strip_prefix('-')) {
            (Some(""), _) => break,
            (Some(long), _) => long_option(command, long),
            (None, Some(short)) if short.starts_with(char::is_alphabetic) => {
                short_options(command, short)
            }
            _ => {
                command = command.find_subcommand(argument).unwrap_or(command);
                continue;
            }
        };
        match typed {
            Typed::Whole => {}
            Typed::BeforeValue => _ = left.next(),
            Typed::Unknown(problem) => return (command, Some(problem)),
        }
    }
    (command, None)
}

/// What an argument with hyphens is.
enum Typed {
    /// One or several options, with their values.
    Whole,
    /// The last of them has the next argument as its value.
    BeforeValue,
    /// No option, for this reason.
    Unknown(String),
}

fn long_option(command: &Command, text: &str) -> Typed {
    let (name, has_value) = match text.split_once('=') {
        Some((name, _)) => (name, true),
        None => (text, false),
    };
    match named(command, name) {
        Some(option) if option.get_action().takes_values() && !has_value => Typed::BeforeValue,
        Some(_) => Typed::Whole,
        None => match llama_cpp::instead(&format!("--{name}")) {
            Some(instead) => Typed::Unknown(unknown(&format!("--{name}"), instead)),
            // The parser knows similar names.
            None => Typed::Whole,
        },
    }
}

/// Letters behind one hyphen: options of one letter, the last of which may have its value behind it.
fn short_options(command: &Command, text: &str) -> Typed {
    let mut letters = text.chars();
    let has_several = text.chars().nth(1).is_some();
    let option = format!("-{text}");
    if has_several && named(command, text).is_some() {
        return Typed::Unknown(format!("unknown option {option}; give -{option}"));
    }
    if let Some(instead) = llama_cpp::instead(&option).filter(|_| has_several) {
        return Typed::Unknown(unknown(&option, instead));
    }
    while let Some(letter) = letters.next() {
        let found = command
            .get_arguments()
            .find(|a| a.get_short() == Some(letter));
        let value = letters.as_str();
        let is_known = match found {
            Some(option) if option.get_action().takes_values() => {
                let is_number = option.get_value_names().is_some_and(|names| names == ["N"]);
                match value {
                    "" => return Typed::BeforeValue,
                    _ if !is_number || !value.chars().all(char::is_alphabetic) => {
                        return Typed::Whole;
                    }
                    _ => false,
                }
            }
            // One that ends the program, but not for the sake of a letter in another word.
            Some(option) if !matches!(option.get_action(), ArgAction::SetTrue) => !has_several,
            Some(_) => true,
            None => false,
        };
        if is_known {
            continue;
        }
        return match llama_cpp::instead(&option) {
            Some(instead) => Typed::Unknown(unknown(&option, instead)),
            None if has_several => Typed::Unknown(format!(
                "unknown option {option}; names of several letters begin with two hyphens"
            )),
            None => Typed::Whole,
        };
    }
    Typed::Whole
}

fn unknown(option: &str, instead: &str) -> String {
    format!("unknown option {option} (llama.cpp's): {instead}")
}

/// The option `--name`.
fn named<'c>(command: &'c Command, name: &str) -> Option<&'c Arg> {
    let is = |a: &&Arg| {
        let aliases = a.get_all_aliases().unwrap_or_default();
        a.get_long() == Some(name) || aliases.contains(&name)
    };
    command.get_arguments().find(is)
}

/// The same refusal with what to give instead, and without advice that nobody needs.
fn clearer(command: &Command, mut error: Error) -> Error {
    // That a text could be an argument behind `--`: nothing here takes such texts.
    error.remove(ContextKind::Suggested);
    let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (kind, argument) = (error.kind(), text(ContextKind::InvalidArg));
    let message = match kind {
        ErrorKind::UnknownArgument => {
            let is_prompt = !argument.starts_with('-') && command.get_name() == "run";
            let is_message = match command.get_name() {
                "chat" => !argument.starts_with('-') || PROMPTS.contains(&&*argument),
                _ => false,
            };
            match (is_prompt, is_message) {
                (true, _) => {
                    format!("unexpected argument '{argument}'; give the prompt with -p TEXT")
                }
                (_, true) => format!(
                    "unexpected argument '{argument}'; for a single message, use `forebay run --chat -p TEXT`"
                ),
                _ => return error,
            }
        }
        ErrorKind::ValueValidation => match error.source().and_then(what_to_give) {
            Some(remedy) => {
                let value = text(ContextKind::InvalidValue);
                format!("invalid value '{value}' for '{argument}': {remedy}")
            }
            None => return error,
        },
        _ => return error,
    };
    command.clone().error(kind, message)
}

/// Options that give a prompt.
const PROMPTS: [&str; 4] = ["-p", "--prompt", "-f", "--file"];

/// What the standard library's errors leave unsaid.
fn what_to_give(problem: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if problem.is::<ParseFloatError>() {
        return Some("give a number");
    }
    problem
        .downcast_ref()
        .map(|e: &ParseIntError| match e.kind() {
            IntErrorKind::PosOverflow => "the number is too large",
            _ => "give a whole number, not below 0",
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(arguments: &[&str]) -> Vec<OsString> {
        let all = ["forebay"].iter().chain(arguments);
        all.map(OsString::from).collect()
    }

    /// What is said about arguments that are refused.
    fn refusal(arguments: &[&str]) -> String {
        match read(typed(arguments)) {
            Ok(read) => panic!("{arguments:?} mean {read:?}"),
            Err(error) => {
                assert_eq!(error.exit_code(), 2, "{arguments:?}: {error}");
                error.to_string()
            }
        }
    }

    #[test]
    fn options_are_consistent() {
        shaped(Arguments::command()).debug_assert();
    }

    #[test]
    fn a_model_or_an_option_in_front_means_run() {
        let program = Arguments::command();
        let means_run = |first: &str| means_run(&program, OsStr::new(first));
        for run in [
            "model.gguf",
            "MODEL.GGUF",
            "model.safetensors",
            "missing/model.fbay",
            "./missing-folder",
            "-p",
            "-m",
            ".",
        ] {
            assert!(means_run(run), "{run}");
        }
        for other in ["inspect", "--help", "-V", "sing", "missing.txt"] {
            assert!(!means_run(other), "{other}");
        }
    }

    #[test]
    fn texts_may_begin_with_a_hyphen() {
        for arguments in [
            &["run", "m", "-p", "- item", "-n", "4"][..],
            &["run", "m", "-p", "-1 + 2 ="],
            &["run", "m", "-p", "-ngl"],
            &["run", "m", "-p", "--", "-q"],
            &["run", "m", "-p", "x", "-r", "---", "--stop", "-n"],
            &["run", "m", "--chat", "-p", "x", "--system", "-be nice"],
            &["chat", "m", "--system", "-be nice", "-r", "-ngl"],
            &["tokenize", "m", "-p", "-x"],
        ] {
            assert!(read(typed(arguments)).is_ok(), "{arguments:?}");
        }
        // The text is the next argument, whatever it is.
        assert!(refusal(&["run", "m", "-p", "-n", "4"]).contains("'4'"));
    }

    #[test]
    fn options_of_llama_cpp_are_named_with_what_to_give_instead() {
        for (arguments, option, instead) in [
            (
                &["run", "m", "-n", "2", "-ngl", "99"][..],
                "-ngl",
                "--device",
            ),
            (
                &["m.gguf", "--n-gpu-layers", "99"],
                "--n-gpu-layers",
                "--device",
            ),
            (
                &["eval", "perplexity", "m", "-f", "t", "-ngl", "99"],
                "-ngl",
                "--device",
            ),
            (&["-hf", "a/b"], "-hf", "download"),
            (&["run", "m", "-cnv"], "-cnv", "forebay chat"),
            (&["run", "m", "-ctk", "q8_0"], "-ctk", "--kv"),
            (&["run", "m", "-p", "x", "-fa", "on"], "-fa", "omit"),
            (&["run", "m", "-p", "x", "-e"], "-e", "-f FILE"),
            (&["run", "m", "-sys", "x"], "-sys", "--system"),
        ] {
            let said = refusal(arguments);
            let begin = format!("unknown option {option} (llama.cpp's): ");
            assert!(said.contains(&begin) && said.contains(instead), "{said}");
        }
    }

    #[test]
    fn several_letters_behind_one_hyphen_are_options_of_one_letter_or_nothing() {
        for arguments in [
            &["run", "m", "-qp", "x"][..],
            &["run", "m", "-n4", "-c64", "-t1", "-pHello", "-s7"],
            &["run", "m", "-qn4"],
            &["run", "m", "-n=-1"],
            &["chat", "-vmmodel"],
        ] {
            let read = read(typed(arguments));
            assert!(read.is_ok(), "{arguments:?}: {}", read.unwrap_err());
        }
        for (option, instead) in [
            ("-xyz", "two hyphens"),
            ("-qxn", "two hyphens"),
            ("-nope", "two hyphens"),
            ("-hello", "two hyphens"),
            ("-prompt", "give --prompt"),
            ("-seed", "give --seed"),
            ("-help", "give --help"),
        ] {
            let said = refusal(&["run", "m", option, "1"]);
            let begin = format!("unknown option {option}; ");
            assert!(said.contains(&begin) && said.contains(instead), "{said}");
        }
    }

    #[test]
    fn what_llama_cpp_calls_otherwise_is_understood() {
        for arguments in [
            &["run", "m", "--ctx-size", "64", "--temperature", "0.5"][..],
            &["run", "m", "-s", "-1"],
            &["chat", "m", "--seed", "-1", "-c", "0"],
            &["run", "m", "--greedy", "--temp", "0"],
        ] {
            let read = read(typed(arguments));
            assert!(read.is_ok(), "{arguments:?}: {}", read.unwrap_err());
        }
    }

    #[test]
    fn prompts_in_the_wrong_place_are_told_where_they_belong() {
        for (arguments, remedy) in [
            (
                &["run", "m", "once upon"][..],
                "give the prompt with -p TEXT",
            ),
            (&["m.gguf", "once upon"], "give the prompt with -p TEXT"),
            (&["chat", "m", "hi"], "`forebay run --chat -p TEXT`"),
            (&["chat", "m", "-p", "hi"], "`forebay run --chat -p TEXT`"),
        ] {
            let said = refusal(arguments);
            assert!(said.contains(remedy), "{said}");
        }
        for arguments in [
            &["run", "m", "hi"][..],
            &["run", "m", "--colour"],
            &["inspect", "m", "--colour"],
            &["sing"],
        ] {
            let said = refusal(arguments);
            assert!(!said.contains("-- "), "no advice to write `--`: {said}");
        }
    }

    #[test]
    fn values_that_are_no_numbers_are_told_what_to_give() {
        for (arguments, remedy) in [
            (&["run", "m", "-t", "abc"][..], "give a whole number"),
            (&["run", "m", "-t", "-1"], "give a whole number"),
            (&["run", "m", "-t", "18446744073709551616"], "too large"),
            (&["run", "m", "--top-p", "abc"], "give a number"),
            (&["run", "m", "--seed", "abc"], "give a whole number"),
            (&["run", "m", "--memory", "-1"], "640MiB"),
            (&["run", "m", "--stop", ""], "give some text"),
            (
                &["eval", "perplexity", "m", "-f", "t", "-c", "2"],
                "give at least 3",
            ),
            (
                &["eval", "perplexity", "m", "-f", "t", "-c", "x"],
                "give a whole number",
            ),
            (
                &["profile", "m", "--generate", "5000000000"],
                "give at most 4294967295",
            ),
            (
                &["fit-predictor", "m", "-f", "t", "--rank", "0"],
                "give at least 2",
            ),
            (&["bench", "--device-share", "2"], "0 to 1"),
        ] {
            let said = refusal(arguments);
            assert!(said.contains(remedy), "{said}");
            assert!(!said.contains("digit") && !said.contains("..="), "{said}");
        }
    }

    #[test]
    fn every_command_has_the_programs_version() {
        for arguments in [
            &["--version"][..],
            &["run", "--version"],
            &["eval", "kl", "-V"],
        ] {
            let said = read(typed(arguments)).expect_err("the version").to_string();
            assert_eq!(said, concat!("forebay ", env!("CARGO_PKG_VERSION"), "\n"));
        }
    }
}
