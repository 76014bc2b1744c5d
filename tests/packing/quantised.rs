//! Conversions of numbers to formats with blocks.

use std::path::Path;

use crate::program::{answer, forebay};
use crate::scratch::Scratch;

/// The demo's rows have 192 or 768 numbers, its Down columns 192.
#[test]
fn who_gets_another_format_is_told_so() {
    let scratch = Scratch::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/hf");
    for (format, instead) in [
        ("q4_k", Some("are Q5_0 instead of Q4_K")),
        ("Q6_K", Some("are Q8_0 instead of Q6_K")),
        ("iq4_nl", None),
    ] {
        let out = scratch.join(format!("{format}.fbay"));
        let mut pack = forebay(scratch.path(), ["pack", "-q", "--quant", format, "-o"]);
        pack.arg(&out).arg(&source);
        let said = answer(pack);
        assert!(said.status.success(), "{}", said.stderr);
        match instead {
            Some(instead) => assert!(said.stderr.contains(instead), "{}", said.stderr),
            None => assert!(!said.stderr.contains("instead"), "{}", said.stderr),
        }
        let mut run = forebay(scratch.path(), ["run", "-q", "-n", "4", "-p", "Once"]);
        run.arg(&out);
        let ran = answer(run);
        assert!(ran.status.success(), "{}", ran.stderr);
    }
}
