//! What `/set` changes.

use anyhow::{anyhow, bail};
use forebay::{ChatRequest, Message, SamplerConfig};

use crate::cli::chat_flags::{ChatFlags, template_option};
use crate::cli::numbers::{count, limit, real, seed, temperature};

/// How answers are generated.
#[derive(Clone, Debug)]
pub struct Settings {
    pub sampler: SamplerConfig,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub flags: ChatFlags,
}

/// The names that `/set` knows, with what they take.
pub const NAMES: &str = "temp, top-k, top-p, min-p, repeat-penalty, seed, n (a number), stop TEXT, think, nothink, \
                         option NAME=VALUE, history, nohistory";

impl Settings {
    /// The request for the answer to these messages.
    pub fn request(&self, messages: Vec<Message>) -> ChatRequest {
        let mut request = self.flags.request(messages);
        request.sampler = self.sampler.clone();
        request.max_tokens = self.max_tokens;
        request.stop = self.stop.clone();
        request
    }

    /// Takes `NAME VALUE` over, or nothing of it.
    ///
    /// # Errors
    /// An unknown name, or a value outside its range.
    pub fn set(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        let mut sampler = self.sampler.clone();
        match name {
            "temp" => sampler.temperature = temperature(number(name, value, real)?),
            "top-k" => sampler.top_k = number(name, value, count::<0>)?,
            "top-p" => sampler.top_p = number(name, value, real)?,
            "min-p" => sampler.min_p = number(name, value, real)?,
            "repeat-penalty" => sampler.repeat_penalty = number(name, value, real)?,
            "seed" => sampler.seed = number(name, value, seed)?,
            "n" => self.max_tokens = Some(number(name, value, limit)?),
            "stop" if value.is_empty() => self.stop.clear(),
            "stop" => self.stop.push(value.to_owned()),
            "think" => self.set_option("enable_thinking=true")?,
            "nothink" => self.set_option("enable_thinking=false")?,
            "option" => self.set_option(value)?,
            _ => bail!("/set {name}: there is no such setting; there are {NAMES}"),
        }
        // Its remedy would be an option of the command line.
        let valid = sampler.validate();
        valid.map_err(|e| anyhow!("/set {name} {value}: {e}"))?;
        self.sampler = sampler;
        Ok(())
    }

    fn set_option(&mut self, text: &str) -> anyhow::Result<()> {
        let option = template_option(text).map_err(|e| anyhow!("/set option: {e}"))?;
        self.flags
            .template_option
            .retain(|(name, _)| *name != option.0);
        self.flags.template_option.push(option);
        Ok(())
    }

    /// What is set, one line each.
    pub fn lines(&self) -> String {
        let s = &self.sampler;
        let most = match self.max_tokens {
            Some(n) if n < usize::MAX => n.to_string(),
            _ => "no limit".to_owned(),
        };
        let options = self.flags.template_option.iter();
        let options = options.map(|(name, value)| format!("\noption {name}={value}"));
        let stop = self.stop.iter().map(|text| format!("\nstop {text:?}"));
        format!(
            "temp {}\ntop-k {}\ntop-p {}\nmin-p {}\nrepeat-penalty {}\nseed {}\nn {most}{}",
            s.temperature,
            s.top_k,
            s.top_p,
            s.min_p,
            s.repeat_penalty,
            s.seed,
            stop.chain(options).collect::<String>(),
        )
    }
}

/// `value` as `read` reads it, which says what to give instead.
fn number<T>(
    name: &str,
    value: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> anyhow::Result<T> {
    read(value).map_err(|remedy| anyhow!("/set {name} {value:?}: {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_taken_over_whole_or_not_at_all() {
        let mut settings = Settings {
            sampler: SamplerConfig::default(),
            max_tokens: None,
            stop: Vec::new(),
            flags: ChatFlags::default(),
        };
        for (name, value) in [
            ("temp", "-1"),
            ("temp", "0.5"),
            ("top-k", "7"),
            ("seed", "3"),
            ("n", "-1"),
            ("nothink", ""),
            ("think", ""),
            ("stop", "END"),
        ] {
            settings.set(name, value).expect(name);
        }
        let before = settings.lines();
        assert!(before.contains("temp 0.5\ntop-k 7\n") && before.contains("n no limit"));
        assert!(
            before.ends_with("stop \"END\"\noption enable_thinking=true"),
            "{before}"
        );
        for (name, value) in [
            ("temp", "hot"),
            ("temp", "200"),
            ("temp", "nan"),
            ("temp", "1e308"),
            ("top-k", "-1"),
            ("top-p", "7"),
            ("nosuch", ""),
            ("option", "x"),
            ("option", "messages=[]"),
        ] {
            let error = settings.set(name, value).expect_err(name);
            let message = crate::cli::message_of(&error);
            assert!(message.starts_with(&format!("/set {name}")), "{message}");
            assert!(
                !message.contains("--"),
                "no option of the command line: {message}"
            );
            assert_eq!(settings.lines(), before, "{name}");
        }
    }
}
