//! Devices by name.

use std::str::FromStr;

/// `gpu`, the first device that is not software, or `gpu:N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gpu(pub(super) Option<usize>);

/// Not the name of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown device {0:?}; give gpu, or gpu:N with a number that `forebay doctor` lists")]
pub(super) struct UnknownDevice(String);

impl FromStr for Gpu {
    type Err = UnknownDevice;

    fn from_str(s: &str) -> Result<Self, UnknownDevice> {
        let number = |n: &str| {
            n.bytes()
                .all(|b| b.is_ascii_digit())
                .then(|| n.parse().ok())?
        };
        match s
            .strip_prefix("gpu")
            .map(|rest| rest.strip_prefix(':').ok_or(rest))
        {
            Some(Err("")) => Ok(Self(None)),
            Some(Ok(n)) => number(n)
                .map(|n| Self(Some(n)))
                .ok_or_else(|| UnknownDevice(s.to_owned())),
            _ => Err(UnknownDevice(s.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names_with_or_without_a_number() {
        assert_eq!("gpu".parse(), Ok(Gpu(None)));
        assert_eq!("gpu:0".parse(), Ok(Gpu(Some(0))));
        assert_eq!("gpu:12".parse(), Ok(Gpu(Some(12))));
        for name in [
            "",
            "cpu",
            "gpu:",
            "gpu1",
            "gpu:+1",
            "gpu:x",
            "GPU",
            "gpu:99999999999999999999",
        ] {
            let refusal = name.parse::<Gpu>().expect_err(name).to_string();
            assert!(refusal.contains("gpu:N"), "{refusal}");
        }
    }
}
