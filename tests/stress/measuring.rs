//! A machine is measured with the memory that there is: a control group may have little.

use crate::group::Group;
use crate::measured::{MIB, command, run_command};
use crate::support::{TemporaryFile, number};

/// Bytes of groups: the demo runs in them, but the memory and the disk are usually measured with more.
const GROUPS: [u64; 2] = [48 * MIB, 96 * MIB];

#[test]
fn a_machine_is_measured_in_a_small_group() {
    for bytes in GROUPS {
        let Some(group) = Group::new(bytes) else {
            return;
        };
        let cache = tempfile::tempdir().expect("a folder");
        let stats = TemporaryFile::new(&format!("measured-{bytes}.json"));
        let mut run = command(None, 8, None, &stats.0);
        run.args(["--memory", "auto"]);
        run.env("FOREBAY_CACHE", cache.path());
        let run = run_command(group.run(&run), &stats.0);
        assert!(cache.path().join("machine.json").exists());
        assert_eq!(group.kills(), 0, "in {bytes}");
        let budget = number(&run.statistics, "/memory/budget_bytes") as u64;
        assert!(budget <= bytes, "{budget} in {bytes}");
        assert!(run.peak() <= budget, "{} over {budget}", run.peak());
    }
}
