//! Lossy options: fewer experts than the model uses, or others. Everything else that the engine does to be fast leaves
//! the result as it is.

use forebay_models::network::Network;
use forebay_plans::fewer_experts::FewerExperts;

use super::settings::EngineBuilder;
use crate::error::Error;

impl EngineBuilder {
    /// Uses fewer experts than the model does, or others, which changes what it says. Prompts are affected by a limit
    /// on their number only. [`quality::AllExperts`](crate::quality::AllExperts) measures how much is lost. Default:
    /// the model's own.
    #[must_use]
    pub fn fewer_experts(mut self, fewer: FewerExperts) -> Self {
        self.fewer = fewer;
        self
    }

    /// Checks the options for this model, and lets its tokens use fewer experts, if they are to.
    pub(super) fn use_fewer_experts(&mut self, network: &mut Network) -> Result<(), Error> {
        self.fewer = checked(self.fewer, network)?;
        self.fewer.limit(network);
        Ok(())
    }
}

/// The options for a model; as many experts as it uses are not fewer.
///
/// # Errors
/// A model without experts, or an impossible value.
pub(crate) fn checked(fewer: FewerExperts, network: &Network) -> Result<FewerExperts, Error> {
    let shares = [
        ("drop_cold_experts", fewer.drop_cold),
        ("prefer_cached_experts", fewer.prefer_cached),
    ];
    let most = network.most_used_experts();
    if most == 0 {
        let share = || shares.iter().find(|(_, share)| *share != 0.0);
        let given = fewer.per_token.map(|_| "experts");
        return match given.or_else(|| share().map(|(name, _)| *name)) {
            Some(name) => Err(Error::parameter(name, "this model has no experts; omit it")),
            None => Ok(fewer),
        };
    }
    if let Some(n) = fewer.per_token.filter(|n| !(1..=most).contains(n)) {
        let problem = format!("{n} is impossible: a token of this model uses {most}; give fewer");
        return Err(Error::parameter("experts", problem));
    }
    if let Some((name, share)) = shares.iter().find(|(_, s)| !(0.0..=1.0).contains(s)) {
        let problem = format!("{share} is impossible; give a part, 0 to 1");
        return Err(Error::parameter(name, problem));
    }
    Ok(FewerExperts {
        per_token: fewer.per_token.filter(|n| *n < most),
        ..fewer
    })
}
