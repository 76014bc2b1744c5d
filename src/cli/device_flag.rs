//! Devices by name.

use std::str::FromStr;

use forebay::DeviceChoice;

/// `auto`, `cpu`, `gpu` or `gpu:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceName(pub DeviceChoice);

/// Not the name of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown device {0:?}; give auto, cpu, gpu, or gpu:N with a number that `forebay doctor` lists"
)]
pub struct UnknownDevice(String);

impl FromStr for DeviceName {
    type Err = UnknownDevice;

    fn from_str(s: &str) -> Result<Self, UnknownDevice> {
        let number = |n: &str| {
            let digits = n.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| n.parse().ok())?
        };
        let choice = match (s, s.strip_prefix("gpu:")) {
            ("auto", _) => Some(DeviceChoice::Auto),
            ("cpu", _) => Some(DeviceChoice::Cpu),
            ("gpu", _) => Some(DeviceChoice::Gpu(None)),
            (_, Some(n)) => number(n).map(|n| DeviceChoice::Gpu(Some(n))),
            _ => None,
        };
        choice.map(Self).ok_or_else(|| UnknownDevice(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names_with_or_without_a_number() {
        let named = |name: &str| name.parse().map(|DeviceName(choice)| choice);
        assert_eq!(named("auto"), Ok(DeviceChoice::Auto));
        assert_eq!(named("cpu"), Ok(DeviceChoice::Cpu));
        assert_eq!(named("gpu"), Ok(DeviceChoice::Gpu(None)));
        assert_eq!(named("gpu:0"), Ok(DeviceChoice::Gpu(Some(0))));
        assert_eq!(named("gpu:12"), Ok(DeviceChoice::Gpu(Some(12))));
        for name in [
            "",
            "gpu:",
            "gpu1",
            "gpu:+1",
            "gpu:x",
            "GPU",
            "gpu:99999999999999999999",
        ] {
            let refusal = named(name).expect_err(name).to_string();
            assert!(refusal.contains("gpu:N"), "{refusal}");
        }
    }
}
