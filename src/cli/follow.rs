//! Reading a generation to its end, whatever Ctrl-C says.

use forebay::Error;
use futures_util::{Stream, StreamExt};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::stopping::Generating;

/// A second Ctrl-C ended the program.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Reads a stream up to the item for which `each` returns a result. Ctrl-C, from when `generating` began, has `cancel`
/// end the generation, not the program; a second Ctrl-C ends the program.
///
/// # Errors
/// Those of the stream and of `each`; [`Interrupted`].
pub fn follow<S, I, T>(
    (mut stream, generating): (S, &Generating),
    cancel: impl Fn(&S),
    mut each: impl FnMut(I) -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T>
where
    S: Stream<Item = Result<I, Error>> + Unpin,
{
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let mut interrupted = false;
        loop {
            let item = tokio::select! {
                item = stream.next() => item,
                () = generating.interrupted() => match std::mem::replace(&mut interrupted, true) {
                    false => {
                        cancel(&stream);
                        continue;
                    }
                    true => return Err(Interrupted.into()),
                },
            };
            match item {
                None => return Err(Error::Stopped.into()),
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(item)) => {
                    if let Some(result) = each(item)? {
                        return Ok(result);
                    }
                }
            }
        }
    })
}

/// Shows on stderr how much of a prompt has been read, unless it is to be `quiet`.
pub fn prompt_bar(quiet: bool) -> ProgressBar {
    let target = match quiet {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let bar = ProgressBar::with_draw_target(None, target);
    if let Ok(style) =
        ProgressStyle::with_template("reading the prompt [{bar:30}] {pos}/{len} {eta}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}
