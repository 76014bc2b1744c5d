//! Plans as JSON.

use std::path::Path;

use anyhow::Result;
use forebay_plans::plan::Plan;
use serde_json::json;

use crate::mutate;
use crate::random::Random;
use crate::target::{Placed, Target};

struct Plans {
    file: Placed,
}

/// Makes the target.
pub fn make(folder: &Path) -> Result<Box<dyn Target>> {
    let file = Placed::new(folder, "plan.json")?;
    Ok(Box::new(Plans { file }))
}

impl Target for Plans {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let plan = json!({
            "version": 1,
            "model": {"name": "tiny", "identity": 17, "weight_bytes": 100_000},
            "machine": "avx2, 2 cores",
            "memory_bytes": 1 << 30,
            "choices": {"threads": 2, "context": 4096, "max_batch": 128, "sparsity": "predicted",
                "loading": "bundle", "stream_window_bytes": 1 << 20, "neuron_cache_bytes": 1 << 20},
            "expected": {"decode_tokens_per_second": 10.5, "prefill_tokens_per_second": 100.0,
                "bound_by": "disk read",
                "decode_seconds": {"attention": 0.01, "predictor": 0.0, "ffn": 0.02, "head": 0.01,
                    "overhead": 0.001, "stream": 0.0, "io": 0.05},
                "reads_per_token": 100.0, "bytes_per_token": 1e6,
                "memory_items": {"process": 1000, "kv_cache": 2000}},
            "reasons": [{"choice": "threads", "taken": "2", "others": [
                {"value": "1", "decode_tokens_per_second": 5.0, "prefill_tokens_per_second": 50.0},
                {"value": "3", "decode_tokens_per_second": null, "prefill_tokens_per_second": null}]}],
            "notes": ["one"],
        });
        vec![plan.to_string().into_bytes()]
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        mutate::json::change(input, other, random);
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        self.file.put(input, 0).map_err(|e| e.to_string())?;
        let path = self.file.path();
        let plan = Plan::read(path).map_err(|e| {
            let message = e.to_string();
            message.replace(&*path.to_string_lossy(), "")
        })?;
        plan.to_string();
        plan.expected.compared(7.5);
        let own = plan
            .fits(path, &plan.model)
            .and(plan.fits_machine(path, &plan.machine));
        assert!(own.is_ok(), "a plan that does not fit its own model");
        let text = serde_json::to_vec(&plan).map_err(|e| e.to_string())?;
        let again: Plan = serde_json::from_slice(&text).expect("what was written");
        drop(again);
        Ok(())
    }
}
