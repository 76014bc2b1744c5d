//! Progress bars for packing, making and loading models.

use forebay::packed::Preparation;
use forebay_models::bundle::PackProgress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::again::note_packing;
use super::output::say;

/// A bar on stderr unless `quiet`.
fn progress_bar(quiet: bool) -> ProgressBar {
    let target = if quiet {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    };
    let bar = ProgressBar::with_draw_target(None, target);
    if let Ok(style) =
        ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// A bar on stderr for work whose completed share is known, in thousandths, unless `quiet`.
pub fn thousandths(quiet: bool) -> ProgressBar {
    let bar = match quiet {
        true => ProgressBar::hidden(),
        false => ProgressBar::new(1000),
    };
    if let Ok(style) = ProgressStyle::with_template("{msg:32} [{bar:30}] {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// A reporter for a file being written; `what` is shown before the bar.
pub fn writing(quiet: bool, what: &'static str) -> impl FnMut(PackProgress) + 'static {
    let bar = progress_bar(quiet).with_message(what);
    move |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        if progress.done >= progress.total {
            bar.finish_and_clear();
        }
    }
}

/// A reporter for [`forebay::EngineBuilder::on_preparation`], drawing on stderr unless `quiet`.
pub fn reporter(quiet: bool) -> impl FnMut(Preparation) + 'static {
    let bar = progress_bar(quiet);
    let (mut announced, mut doubted) = (false, false);
    move |step| match step {
        // A program that says nothing and does nothing is worse than a line too many.
        Preparation::Waiting { folder } => say(format_args!(
            "waiting for another process, which writes a packed model into {}",
            folder.display()
        )),
        Preparation::Packing { target, progress } => {
            if !std::mem::replace(&mut announced, true) && !quiet {
                say(format_args!("packing once into {}", target.display()));
                bar.set_message("packing");
            }
            bar.set_length(progress.total);
            bar.set_position(progress.done);
        }
        Preparation::Packed { .. } => {
            note_packing();
            bar.finish_and_clear();
            bar.reset();
        }
        Preparation::Measuring => {
            if !quiet {
                say(format_args!("measuring this machine for the model once"));
            }
        }
        // Once, even if the model is packed first.
        Preparation::Doubt(doubt) => {
            if !std::mem::replace(&mut doubted, true) && !quiet {
                say(format_args!("forebay: warning: {doubt}"));
            }
        }
        Preparation::Loading { done, total } => {
            bar.set_message("loading");
            bar.set_length(total);
            bar.set_position(done);
            if done >= total {
                bar.finish_and_clear();
            }
        }
    }
}
