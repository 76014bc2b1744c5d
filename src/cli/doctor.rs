//! `forebay doctor`

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay::plans::cache_dir;
use forebay::plans::doctor::{Doctor as Examination, ExamineOptions, Finding};
use forebay::plans::size::format_size;
use forebay_actors::io::DriverChoice;
use forebay_actors::io::probe::{ReadLoad, measure_folder, measure_read, uring_available};

use super::output::{print_json, print_text};

/// Size of the scratch file that the disk is measured on where there is no model.
const PROBE_BYTES: u64 = 256 << 20;
/// Time per disk figure.
const PROBE_TIME: Duration = Duration::from_millis(400);

#[derive(Debug, Args)]
pub struct Doctor {
    /// Measure the disk on this model's file.
    model: Option<PathBuf>,
    /// Compute threads to examine for.
    #[arg(long, short, value_name = "N")]
    threads: Option<usize>,
    /// Skip the measurements of memory and disk.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub fn execute(self) -> anyhow::Result<()> {
        let mut extra = vec![uring()];
        if !self.quick {
            extra.extend(self.disk());
        }
        let examination = Examination::examine(&ExamineOptions {
            model: self.model.clone(),
            cache_dir: None,
            threads: self.threads,
            bandwidth_rounds: if self.quick { 0 } else { 7 },
            extra,
        });
        if self.json {
            return print_json(&examination);
        }
        print_text(&format!("{examination}\n"))
    }

    /// Read speed by block size: small blocks are neurons, large ones clusters.
    fn disk(&self) -> Vec<Finding> {
        [
            (4 << 10, 16),
            (24 << 10, 16),
            (128 << 10, 16),
            (512 << 10, 16),
        ]
        .into_iter()
        .map(|(block_bytes, depth)| {
            let load = ReadLoad {
                block_bytes,
                depth,
                bytes: PROBE_BYTES,
                duration: PROBE_TIME,
                choice: DriverChoice::Auto,
            };
            let what = format!(
                "random reads of {} at depth {depth}",
                format_size(block_bytes.into())
            );
            let rate = match &self.model {
                Some(model) if model.is_file() => {
                    measure_read(model, &load).map_err(|e| e.to_string())
                }
                _ => cache_dir::prepare()
                    .map_err(|e| e.to_string())
                    .and_then(|folder| {
                        measure_folder(&folder, PROBE_BYTES, &load).map_err(|e| e.to_string())
                    }),
            };
            match rate {
                Ok(r) => {
                    let value = format!(
                        "{}/s ({:.0} reads/s, {})",
                        format_size(r.bytes_per_second as u64),
                        r.reads as f64 / r.seconds,
                        r.info
                    );
                    Finding::good("disk", &what, value)
                }
                Err(e) => Finding::bad("disk", &what, e)
                    .remedy("give a model on the disk that you will run from"),
            }
        })
        .collect()
    }
}

fn uring() -> Finding {
    match uring_available() {
        Ok(()) => Finding::good("io", "io_uring", "available"),
        Err(e) => Finding::warn("io", "io_uring", format!("refused: {e}")).remedy(
            "reads go through threads instead; a container needs a seccomp profile that allows io_uring",
        ),
    }
}
