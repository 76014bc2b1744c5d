//! What a long job says on its way. Its caller's own thread hears it, so that a callback that panics ends that call and
//! nothing else.

use crate::error::Error;

/// A message of a job to its caller.
#[derive(Debug)]
pub(in crate::engine) enum Said<P, R> {
    /// How far it is.
    Progress(P),
    /// Its end.
    Result(Result<R, Error>),
}
