//! Which of the instructions that matter to the kernels this CPU has.

use serde::Serialize;

/// Features found at run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CpuFeatures {
    /// The architecture, as in `std::env::consts::ARCH`.
    pub arch: &'static str,
    /// Names as Rust's target features spell them, the most basic first.
    pub features: Vec<&'static str>,
}

/// Instruction families with an int8 dot product of 4 elements into 32 bits, the best first.
const INT8_DOT: [&str; 4] = ["avx512vnni", "avxvnni", "i8mm", "dotprod"];

impl CpuFeatures {
    /// Asks the CPU (and the system, which must save the registers).
    pub fn detect() -> Self {
        Self {
            arch: std::env::consts::ARCH,
            features: features(),
        }
    }

    /// Whether the CPU has the feature of this name.
    pub fn has(&self, feature: &str) -> bool {
        self.features.contains(&feature)
    }

    /// The best feature with an int8 dot product, on which the speed of quantised decoding depends.
    pub fn int8_dot(&self) -> Option<&'static str> {
        INT8_DOT.into_iter().find(|name| self.has(name))
    }
}

/// The names of those features that `$detected` finds.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! present {
    ($detected:ident: $($name:tt),* $(,)?) => {
        [$(($name, std::arch::$detected!($name))),*]
            .into_iter()
            .filter_map(|(name, found)| found.then_some(name))
            .collect()
    };
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    present!(is_x86_feature_detected:
        "sse4.1", "sse4.2", "popcnt", "avx", "f16c", "fma", "avx2", "bmi2", "avxvnni", "avx512f",
        "avx512dq", "avx512bw", "avx512vl", "avx512vbmi", "avx512vnni", "avx512bf16", "avx512fp16",
    )
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<&'static str> {
    present!(is_aarch64_feature_detected:
        "neon", "fp16", "fhm", "dotprod", "i8mm", "bf16", "sve", "sve2",
    )
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel lists the same features independently (under its own names).
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn features_agree_with_the_kernels_list() {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").expect("/proc/cpuinfo");
        let flags: Vec<&str> = cpuinfo
            .lines()
            .find(|line| line.starts_with("flags"))
            .and_then(|line| line.split_once(':'))
            .map(|(_, flags)| flags.split_whitespace().collect())
            .expect("flags");
        let isa = CpuFeatures::detect();
        for (ours, kernels) in [
            ("sse4.2", "sse4_2"),
            ("avx2", "avx2"),
            ("fma", "fma"),
            ("f16c", "f16c"),
            ("avxvnni", "avx_vnni"),
            ("avx512f", "avx512f"),
            ("avx512bw", "avx512bw"),
            ("avx512vnni", "avx512_vnni"),
            ("avx512bf16", "avx512_bf16"),
            ("avx512fp16", "avx512_fp16"),
        ] {
            assert_eq!(isa.has(ours), flags.contains(&kernels), "{ours}");
        }
    }

    #[test]
    fn the_best_int8_dot_product_is_chosen() {
        let isa = |features: &[&'static str]| CpuFeatures {
            arch: "test",
            features: features.to_vec(),
        };
        assert_eq!(
            isa(&["avxvnni", "avx512f", "avx512vnni"]).int8_dot(),
            Some("avx512vnni")
        );
        assert_eq!(isa(&["neon", "dotprod", "i8mm"]).int8_dot(), Some("i8mm"));
        assert_eq!(isa(&["avx2", "fma"]).int8_dot(), None);
    }
}
