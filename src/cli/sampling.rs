//! Sampling flags.

use anyhow::bail;
use clap::Args;
use forebay::{Error, SamplerConfig};

use super::numbers::{real, seed, seed_of_now, temperature};

/// Temperature unless it is given.
const USUAL_TEMPERATURE: f32 = 0.8;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct Sampling {
    /// Always take the most likely token.
    #[arg(long, conflicts_with_all = ["top_k", "top_p", "min_p"])]
    pub greedy: bool,
    /// Temperature; 0 or less is greedy [default: 0.8].
    #[arg(long, alias = "temperature", value_name = "T", value_parser = real)]
    pub temp: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// Keep the most likely tokens that together reach this probability.
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = real)]
    pub top_p: f32,
    /// Keep tokens at least this likely, relative to the most likely one.
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = real)]
    pub min_p: f32,
    /// Divide the logits of recent tokens by this.
    #[arg(long, value_name = "R", default_value_t = 1.0, value_parser = real)]
    pub repeat_penalty: f32,
    /// How many recent tokens the penalty looks at.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub repeat_last_n: usize,
    /// Add to the logit of a token, whose id `forebay tokenize` prints: 15043+1, or 15043-inf to exclude it; may be
    /// given several times.
    #[arg(long, short = 'l', value_name = "ID±BIAS", value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers; -1 is one from the clock, as without it.
    #[arg(long, short, value_name = "N", value_parser = seed)]
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            greedy: false,
            temp: None,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl Sampling {
    /// What the flags ask for.
    ///
    /// # Errors
    /// Flags that contradict each other, or a value outside its range.
    pub fn config(&self) -> anyhow::Result<SamplerConfig> {
        let mut config = SamplerConfig::default();
        config.temperature = match self.temp {
            Some(temp) if self.greedy && temp > 0.0 => {
                bail!("--temp {temp} is not --greedy; give one of the two")
            }
            None if self.greedy => 0.0,
            temp => temperature(temp.unwrap_or(USUAL_TEMPERATURE)),
        };
        config.top_k = self.top_k;
        config.top_p = self.top_p;
        config.min_p = self.min_p;
        config.repeat_penalty = self.repeat_penalty;
        config.repeat_last_n = self.repeat_last_n;
        config.logit_bias.clone_from(&self.logit_bias);
        config.seed = self.seed.unwrap_or_else(seed_of_now);
        config.validate().map_err(Error::from)?;
        Ok(config)
    }
}

/// A token's id and what is added to its logit, written as in llama.cpp.
fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let expected = "write the token's id, a sign and a number, such as 15043+1 or 15043-inf";
    let at = text.find(['+', '-']).ok_or(expected)?;
    let (id, bias) = text.split_at(at);
    match (id.parse(), bias.parse()) {
        (Ok(id), Ok(bias)) => Ok((id, bias)),
        _ => Err(expected.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::logit_bias;

    #[test]
    fn biases_are_written_as_in_llama_cpp() {
        assert_eq!(logit_bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(logit_bias("7-2.5e-1"), Ok((7, -0.25)));
        assert_eq!(logit_bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        for wrong in ["", "7", "+1", "7+", "x+1", "7+1+1", "7=1"] {
            assert!(logit_bias(wrong).is_err(), "{wrong}");
        }
    }
}
