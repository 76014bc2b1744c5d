//! What people give on the command line and the kernel in files: sizes and lists of cores.

use std::path::Path;

use anyhow::Result;
use forebay_plans::kernel_files::{format_cpu_list, parse_cpu_list};
use forebay_plans::size::{MemorySize, format_size, parse_size};

use crate::mutate;
use crate::random::Random;
use crate::target::Target;

struct Sizes;

/// Makes the target.
pub fn make(_: &Path) -> Result<Box<dyn Target>> {
    Ok(Box::new(Sizes))
}

impl Target for Sizes {
    fn seeds(&self) -> Vec<Vec<u8>> {
        [
            "1048576",
            "640MiB",
            "1.5 GiB",
            "2G",
            "2GB",
            "60%",
            "0.000000000000000001T",
            "18446744073709551615",
            "16777215TiB",
            "99.9999999999999999999%",
            "0-3,8,10-11\n",
            "0,1023",
        ]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        match random.below(3) {
            0 => mutate::text::change(input, other, random),
            1 if !input.is_empty() => {
                let at = random.below(input.len());
                input[at] = *random.pick(b"0123456789.,-+%KMGTiBb e");
            }
            _ => mutate::bytes(input, other, random),
        }
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let text = String::from_utf8_lossy(input);
        let cpus = parse_cpu_list(&text);
        let is_list = cpus.is_some();
        if let Some(cpus) = cpus {
            let again = parse_cpu_list(&format_cpu_list(&cpus));
            assert_eq!(again, Some(cpus), "a list written and read");
        }
        if let Ok(bytes) = parse_size(&text) {
            format_size(bytes);
        }
        let size: MemorySize = match text.parse::<MemorySize>() {
            Ok(size) => size,
            Err(_) if is_list => return Ok(()),
            Err(e) => return Err(e.to_string()),
        };
        let again = size.to_string().parse();
        assert_eq!(again, Ok(size), "a size written and read");
        let resolved = size.resolve(1 << 40);
        assert!(matches!(size, MemorySize::Bytes(_)) || resolved <= 1 << 40);
        Ok(())
    }
}
