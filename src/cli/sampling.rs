//! Sampling flags.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use forebay::SamplerConfig;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct Sampling {
    /// Always take the most likely token.
    #[arg(long, conflicts_with_all = ["temp", "top_k", "top_p", "min_p"])]
    pub greedy: bool,
    /// Temperature; 0 or less is greedy.
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.8,
        allow_negative_numbers = true
    )]
    pub temp: f32,
    /// Keep the K most likely tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// Keep the most likely tokens that together reach this probability.
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub top_p: f32,
    /// Keep tokens at least this likely, relative to the most likely one.
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub min_p: f32,
    /// Divide the logits of recent tokens by this.
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repeat_penalty: f32,
    /// How many recent tokens the penalty looks at.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub repeat_last_n: usize,
    /// Seed of the random numbers [default: from the clock].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            greedy: false,
            temp: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            seed: None,
        }
    }
}

impl Sampling {
    pub fn config(&self) -> SamplerConfig {
        let clock = || {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            now.as_nanos() as u64
        };
        let mut config = SamplerConfig::default();
        config.temperature = match self.greedy || self.temp < 0.0 {
            true => 0.0,
            false => self.temp,
        };
        config.top_k = self.top_k;
        config.top_p = self.top_p;
        config.min_p = self.min_p;
        config.repeat_penalty = self.repeat_penalty;
        config.repeat_last_n = self.repeat_last_n;
        config.seed = self.seed.unwrap_or_else(clock);
        config
    }
}
