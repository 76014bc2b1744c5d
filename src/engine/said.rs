//! What a long job says on its way. Its caller's own thread hears it, so that a callback that panics ends that call and
//! nothing else.

use flume::Receiver;

use super::jobs::Jobs;
use crate::error::Error;

/// A message of a job to its caller.
#[derive(Debug)]
pub(super) enum Said<P, R> {
    /// How far it is.
    Progress(P),
    /// Its end.
    Result(Result<R, Error>),
}

/// Waits for the result; `progress` is told the rest.
///
/// # Errors
/// Those of the job, or why there is no result.
pub(super) fn hear<P, R>(
    job: Receiver<Said<P, R>>,
    jobs: &Jobs,
    mut progress: impl FnMut(P),
) -> Result<R, Error> {
    for said in job {
        match said {
            Said::Progress(step) => progress(step),
            Said::Result(result) => return result,
        }
    }
    Err(jobs.ended())
}
