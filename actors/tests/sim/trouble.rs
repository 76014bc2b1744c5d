//! What goes wrong with the disk or the I/O actor, and which fault must come of it.

use forebay_actors::fault::Fault;
use forebay_actors::io::FaultKind;
use forebay_actors::io::simulated::Weather;
use forebay_plans::giving_way::GivingWay;
use forebay_plans::residency::Residency;

use crate::case::Case;
use crate::models::Model;
use crate::random::Random;

/// What every cause of the I/O actor's death says.
const CAUSE: &str = "simulated driver";

/// How the I/O actor dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Its driver fails while it has its turn.
    Error,
    /// It panics, and nothing of its turn is done.
    Panic,
}

impl Death {
    /// What a panicking actor is reported with.
    pub const PANIC: &str = "a bug in the simulated driver";
}

/// A kind of trouble. Not every one is noticed in every generation: what is not read does no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Reads fail with `EIO` now and then, twice in a row too.
    Errors,
    /// Reads end with `ETIMEDOUT` after seconds.
    Timeouts,
    /// A part of the file cannot be read.
    Broken,
    /// The file has been cut off.
    Truncated,
    /// A part of the file is other bytes.
    Damaged,
    /// Bits flip on the way, now and then.
    Flips,
    /// The I/O actor ends while others wait for it.
    Death,
}

impl Trouble {
    /// A kind that is sure to be noticed if it matters. A streamed cluster's checksum is looked at once per
    /// process only: so flips are not for who streams, and damage has to be there from the `first` generation
    /// on.
    pub fn draw(random: &mut Random, case: &Case, model: &Model, first: bool) -> Self {
        let giving = GivingWay::new(&model.bundle(), &case.plan);
        let streams = case.plan.residency.contains(&Residency::Streamed)
            || !giving.clusters.is_empty()
            || case.max_batch >= 16;
        let mut kinds = vec![
            Self::Errors,
            Self::Timeouts,
            Self::Broken,
            Self::Truncated,
            Self::Death,
        ];
        if first || !streams {
            kinds.push(Self::Damaged);
        }
        if !streams {
            kinds.push(Self::Flips);
        }
        random.one_of(&kinds)
    }

    /// Whether what is read may be other bytes than there are, without a word.
    pub fn lies(self) -> bool {
        matches!(self, Self::Damaged | Self::Flips)
    }

    /// The disk with this trouble.
    pub fn weather(self, random: &mut Random, case: &Case, model: &Model) -> Weather {
        let bundle = model.bundle();
        // A read that fails for two reasons, one after the other, would be reported with either.
        let mut weather = Weather {
            passing: 0,
            ..case.weather.clone()
        };
        let giving = GivingWay::new(&bundle, &case.plan).clusters;
        let read = |i: &usize| {
            !matches!(
                case.plan.residency[*i],
                Residency::Pinned | Residency::OnFlash
            ) || giving.contains(&(*i as u32))
        };
        let all: Vec<usize> = (0..bundle.clusters.len()).filter(read).collect();
        if all.is_empty() {
            return weather;
        }
        let entry = &bundle.clusters[random.one_of(&all)];
        let at = entry.offset + random.within(0..=entry.len as usize - 1) as u64;
        let rate = random.one_of(&[5, 50, 500]);
        match self {
            Self::Errors => weather.errors = rate,
            Self::Timeouts => weather.timeouts = rate,
            Self::Broken => weather.broken.push(at..at + 1),
            Self::Truncated => weather.end = Some(at),
            Self::Damaged => {
                let end = entry.offset + u64::from(entry.len);
                weather.damaged.push(at..end.min(at + 600));
            }
            Self::Flips => weather.flips = rate,
            Self::Death => {}
        }
        weather
    }

    /// Whether `fault` is what this trouble has to be reported as.
    pub fn explains(self, fault: &Fault) -> bool {
        match (self, fault) {
            (Self::Damaged | Self::Flips, Fault::Corrupt { .. }) => true,
            (Self::Errors | Self::Broken, Fault::Read { fault, .. }) => {
                fault.kind == FaultKind::Os(libc::EIO)
            }
            (Self::Timeouts, Fault::Read { fault, .. }) => {
                fault.kind == FaultKind::Os(libc::ETIMEDOUT)
            }
            (Self::Death, Fault::IoStopped { cause }) => cause.contains(CAUSE),
            (Self::Truncated, Fault::Read { fault, .. }) => {
                matches!(fault.kind, FaultKind::ShortRead { .. })
            }
            _ => false,
        }
    }
}
