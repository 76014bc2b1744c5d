//! What to do about an error, in terms of the command line. The library's messages tell what happened.

use forebay::Error;
use forebay_devices::DeviceFault;
use forebay_models::error::Shown;
use forebay_plans::PlanError;
use forebay_plans::budget::ImpossibleBudget;

/// The error with its causes, except those that it already quotes, and with a remedy if there is one.
pub fn message_of(error: &anyhow::Error) -> String {
    let causes = error.chain().map(ToString::to_string);
    let message = causes.fold(String::new(), |message, cause| {
        match message.contains(&cause) {
            _ if message.is_empty() => cause,
            true => message,
            false => format!("{message}: {cause}"),
        }
    });
    // Not only model files bring texts of others: plans, profiles and traces do, too.
    let lines = message.lines().map(|line| Shown::message(line).to_string());
    let message = lines.collect::<Vec<_>>().join("\n");
    match error.chain().find_map(remedy) {
        Some(remedy) => format!("{message}; {remedy}"),
        None => message,
    }
}

fn remedy(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(error) = cause.downcast_ref::<Error>() {
        return of_engine(error);
    }
    if let Some(error) = cause.downcast_ref::<PlanError>() {
        return of_machine(error);
    }
    cause.downcast_ref::<ImpossibleBudget>().map(of_budget)
}

fn of_engine(error: &Error) -> Option<String> {
    let text = match error {
        Error::Budget(budget) => return Some(of_budget(budget)),
        Error::Plan(error) => return of_machine(error),
        Error::ContextTooLarge { trained, .. } => {
            return Some(format!("give --ctx {trained} or less"));
        }
        Error::InvalidParameter { name, .. } => {
            return flag_of(name).map(|flag| format!("see {flag}"));
        }
        Error::SpeedOutOfReach { .. } => "ask for less with --speed, or give more --memory",
        Error::NoChatTemplate { .. } => {
            "give one with --chat-template FILE, or have the model continue a text with `forebay run`"
        }
        Error::ChatTemplate { .. } => "give another one with --chat-template FILE",
        Error::ChatRefused { .. } => {
            "omit --system, or give a template that allows this order of messages with --chat-template FILE"
        }
        Error::ControlTokenInText { .. } => {
            "remove names of control tokens such as <|im_end|> from the text, or give another --chat-template"
        }
        Error::TokenOutsideVocabulary { .. } => "the model cannot read it: remove it from the text",
        Error::EmptyPrompt => "give some text with -p TEXT, -f FILE or on standard input",
        Error::ContextTooSmall {
            context, trained, ..
        } if context == trained => "give a shorter prompt",
        Error::ContextTooSmall { .. } => "give a larger --ctx or a shorter prompt",
        Error::Device {
            fault: DeviceFault::NotBuilt { .. },
        } => "rebuild it with --features gpu, or omit --device",
        Error::TooFewForTests { .. } => {
            "give more text, a larger --tokens, a smaller --ctx, or fewer --test-pieces"
        }
        Error::TooFewTokens { .. } => "give more text or a smaller --ctx",
        Error::MissingIsa { .. } => "give one of these with --isa, or omit it",
        Error::NotCalibrated { .. } => {
            "run `forebay calibrate MODEL -f TEXT` once, or choose another --sparsity"
        }
        Error::NoPredictors { .. } => {
            "run `forebay fit-predictor MODEL -f TEXT` once, or choose another --sparsity"
        }
        Error::NotSparse { .. } => "use `forebay calibrate` and --sparsity threshold",
        Error::NothingToProfile => "choose --sparsity threshold, or a model with ReLU or experts",
        Error::Profile { .. } => {
            "make one with `forebay profile MODEL -f TEXT`, which saves it beside the packed model"
        }
        _ => return None,
    };
    Some(text.into())
}

fn of_machine(error: &PlanError) -> Option<String> {
    match error {
        PlanError::TooManyThreads { allowed, .. } => {
            Some(format!("give --threads {allowed} or fewer"))
        }
        PlanError::NoThreads => Some("omit --threads for all big and mid cores".into()),
        PlanError::Plan { .. } => {
            Some("make a plan with `forebay plan MODEL --memory SIZE --json`".into())
        }
        _ => None,
    }
}

fn of_budget(error: &ImpossibleBudget) -> String {
    format!("give --memory {}MiB or more", error.least_mib())
}

/// The flag that sets this parameter of the library.
fn flag_of(name: &str) -> Option<&'static str> {
    let flags = [
        ("temperature", "--temp"),
        ("top_p", "--top-p"),
        ("min_p", "--min-p"),
        ("repeat_penalty", "--repeat-penalty"),
        ("stop", "--stop"),
        ("context", "--ctx"),
        ("ctx", "--ctx"),
        ("memory", "--memory"),
        ("repetitions", "--repetitions"),
        ("quant", "--quant"),
        ("shape", "--shape"),
        ("experts", "--experts"),
        ("drop_cold_experts", "--drop-cold-experts"),
        ("prefer_cached_experts", "--prefer-cached-experts"),
    ];
    let found = flags.into_iter().find(|(parameter, _)| *parameter == name);
    found.map(|(_, flag)| flag)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_message_names_causes_once_and_ends_with_a_remedy() {
        let error = Error::ContextTooSmall {
            tokens: 9,
            context: 8,
            trained: 64,
        };
        let error = Err::<(), _>(error).context("cannot run pp9").unwrap_err();
        assert_eq!(
            message_of(&error),
            "cannot run pp9: the text has at least 9 tokens but the context holds 8; give a larger --ctx or a shorter prompt"
        );
        let error = anyhow::Error::from(Error::ContextTooSmall {
            tokens: 64,
            context: 64,
            trained: 64,
        });
        assert_eq!(
            message_of(&error),
            "the text has at least 64 tokens but the context holds 64, for which the model was trained, and one more has to fit; give a shorter prompt"
        );
        let error = anyhow::Error::from(Error::from(PlanError::NoThreads));
        assert!(message_of(&error).ends_with("omit --threads for all big and mid cores"));
        let error = anyhow::Error::from(PlanError::NoThreads);
        assert!(message_of(&error).ends_with("omit --threads for all big and mid cores"));
        assert_eq!(
            message_of(&anyhow::Error::from(Error::Stopped)),
            Error::Stopped.to_string()
        );
    }

    #[test]
    fn texts_of_others_cannot_steer_the_terminal() {
        let long = "x".repeat(1 << 20);
        let error = anyhow::anyhow!("unknown field `\u{1b}[2J{long}`\nsecond line");
        let message = message_of(&error);
        assert!(!message.contains('\u{1b}') && message.ends_with("\nsecond line"));
        assert!(message.len() < 3000, "{} bytes", message.len());
    }
}
