//! Ways of using fewer experts than the model does, or others. They change what it says, and are off by default.

use std::fmt;

use forebay_models::network::Network;
use serde::{Deserialize, Serialize};

/// What is given up for speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FewerExperts {
    /// Maximum number of experts of a token, from 1; `None` leaves it to the model. The result does not depend on what
    /// is in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_token: Option<usize>,
    /// While tokens are generated, a cluster that is not in memory is left out if its expert's weight is less than this
    /// part, 0 to 1, of the token's largest. The other weights stay as they are. 0 leaves none out.
    #[serde(default)]
    pub drop_cold: f32,
    /// While tokens are generated, the logit of an expert in memory counts as larger by this part, 0 to 1, of the usual
    /// difference between a token's largest and smallest, for the choice only (arXiv 2412.00099). 0 prefers none.
    #[serde(default)]
    pub prefer_cached: f32,
}

impl FewerExperts {
    /// Whether every expert is used that the model chooses.
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the result depends on what happens to be in memory.
    pub fn depends_on_memory(&self) -> bool {
        self.drop_cold > 0.0 || self.prefer_cached > 0.0
    }

    /// Lets tokens use fewer experts, if they are to.
    pub fn limit(&self, network: &mut Network) {
        let layers = network.layers.iter_mut();
        let experts = layers.filter_map(|layer| layer.ffn.body.experts.as_mut());
        if let Some(most) = self.per_token {
            experts.for_each(|experts| experts.used = experts.used.min(most));
        }
    }
}

/// As options of the command line.
impl fmt::Display for FewerExperts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        if let Some(n) = self.per_token {
            write!(f, "--experts {n}")?;
            space = " ";
        }
        let parts = [
            ("--drop-cold-experts", self.drop_cold),
            ("--prefer-cached-experts", self.prefer_cached),
        ];
        for (option, value) in parts.into_iter().filter(|(_, value)| *value > 0.0) {
            write!(f, "{space}{option} {value}")?;
            space = " ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_shown_as_it_is_asked_for_and_survives_a_file() {
        let all = FewerExperts {
            per_token: Some(6),
            drop_cold: 0.3,
            prefer_cached: 0.1,
        };
        let shown = "--experts 6 --drop-cold-experts 0.3 --prefer-cached-experts 0.1";
        assert_eq!(all.to_string(), shown);
        assert!(FewerExperts::default().to_string().is_empty());
        for kept in [all, FewerExperts::default()] {
            let text = serde_json::to_string(&kept).expect("plain data");
            let back: FewerExperts = serde_json::from_str(&text).expect("its own text");
            assert_eq!(back, kept, "{text}");
        }
    }
}
