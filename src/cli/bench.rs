//! `forebay bench`

use anyhow::{Context, bail};
use clap::Args;
#[cfg(feature = "gpu")]
use forebay::DeviceChoice;
use forebay::bench::{BenchTest, KernelReport, TestReport, measure_kernels};
use forebay::{Engine, Error, PlanInForce};
use forebay_plans::process::rss_peak;
use forebay_plans::size::format_size;
use serde::Serialize;

use super::bench_ladder::Sparse;
use super::comparison_flags::ComparisonFlags;
use super::engine_flags::EngineFlags;
use super::model_argument::ModelArgument;
use super::numbers::count;
use super::output::{print_json, print_text, say, warn_of_loss};
use super::progress::reporter;

/// What llama-bench measures, and a short prompt.
const USUAL_TESTS: [&str; 3] = ["pp128", "pp512", "tg128"];

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    sparse: Option<Sparse>,
    #[command(flatten)]
    model: ModelArgument,
    /// Tests, separated by commas: ppN reads a prompt of N random tokens, tgN generates N tokens, each
    /// from an empty context [default: pp128,pp512,tg128].
    #[arg(long, value_name = "TESTS", value_delimiter = ',')]
    tests: Vec<BenchTest>,
    /// Measurements of each test, in turn with the others, after one warm-up.
    #[arg(long, short, value_name = "N", default_value_t = 5, value_parser = count::<1>)]
    repetitions: usize,
    /// Also measure the compute kernels, on one core; without a model and --tests, only those.
    #[arg(long)]
    kernels: bool,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    comparison: ComparisonFlags,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What is printed with `--json`.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    run: Option<RunReport>,
    isa: &'static str,
    threads: usize,
    tests: Vec<TestReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernels: Option<Vec<KernelReport>>,
    #[cfg(feature = "gpu")]
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceNames>,
}

/// The device whose kernels were measured.
#[cfg(feature = "gpu")]
#[derive(Debug, Serialize)]
struct DeviceNames {
    name: String,
    arithmetic: &'static str,
}

/// Results of a model's tests.
#[derive(Debug, Serialize)]
struct RunReport {
    model: String,
    weight_bytes: u64,
    memory_budget_bytes: u64,
    /// Before kernels are measured, which comes after the tests and needs memory of its own.
    peak_rss_bytes: u64,
    repetitions: usize,
    plan: PlanInForce,
}

impl Bench {
    pub fn execute(self) -> anyhow::Result<()> {
        if let Some(sparse) = self.sparse {
            return sparse.execute();
        }
        self.comparison.check(self.engine.device)?;
        let mut report = if self.kernels && self.model.path().is_none() && self.tests.is_empty() {
            Report {
                run: None,
                isa: "",
                threads: 1,
                tests: Vec::new(),
                kernels: None,
                #[cfg(feature = "gpu")]
                device: None,
            }
        } else {
            self.run_tests()?
        };
        if self.kernels {
            self.engine.configure(Engine::builder())?.check()?;
            let measured = measure_kernels(self.engine.isa, self.repetitions)?;
            report.isa = measured.isa;
            report.kernels = Some(measured.kernels);
            #[cfg(feature = "gpu")]
            self.device_kernels(&mut report)?;
        }
        if self.json {
            return print_json(&report);
        }
        print_text(&report.tables())
    }

    #[cfg(feature = "gpu")]
    fn device_kernels(&self, report: &mut Report) -> anyhow::Result<()> {
        let Some(DeviceChoice::Gpu(index)) = self.engine.device.map(|device| device.0) else {
            return Ok(());
        };
        let measured = forebay::bench::measure_device_kernels(index, self.repetitions)?;
        report.device = Some(DeviceNames {
            name: measured.device,
            arithmetic: measured.arithmetic,
        });
        let kernels = report.kernels.get_or_insert_default();
        kernels.extend(measured.kernels);
        Ok(())
    }

    fn run_tests(&self) -> anyhow::Result<Report> {
        let tests = self.chosen_tests()?;
        let longest = tests.iter().max_by_key(|test| test.tokens);
        let longest = longest.context("--tests names no test")?;
        let engine = self.start(*longest)?;
        let (json, repetitions) = (self.json, self.repetitions);
        if !json {
            engine
                .notes()
                .iter()
                .for_each(|note| say(format_args!("note: {note}")));
        }
        let progress = move |test: BenchTest, repetition: usize, speed: f64| {
            if !json {
                say(format_args!(
                    "{test} {repetition} of {repetitions}: {speed:.1} tokens/s"
                ));
            }
        };
        let tests = engine.bench(&tests, repetitions, progress)?;
        warn_of_loss(engine.device_problem());
        let plan = engine.plan().clone();
        Ok(Report {
            run: Some(RunReport {
                model: engine.model().to_string(),
                weight_bytes: engine.weight_bytes(),
                memory_budget_bytes: engine.budget().total_bytes(),
                peak_rss_bytes: rss_peak()?,
                repetitions,
                plan,
            }),
            isa: engine.isa().name(),
            threads: engine.threads(),
            tests,
            kernels: None,
            #[cfg(feature = "gpu")]
            device: None,
        })
    }

    /// An engine with room for `longest`.
    fn start(&self, longest: BenchTest) -> anyhow::Result<Engine> {
        let builder = self.engine.configure(Engine::builder())?;
        let mut builder = self
            .comparison
            .configure(builder)
            .context(longest.tokens)
            .on_preparation(reporter(self.json));
        if let Some(model) = self.model.path() {
            builder = builder.model(model);
        }
        builder.check()?;
        match builder.build() {
            Err(Error::ContextTooLarge { trained, .. }) => bail!(
                "{longest} takes more than the {trained} tokens that the model was trained for; give a shorter test"
            ),
            built => built.with_context(|| format!("cannot run {longest}")),
        }
    }

    fn chosen_tests(&self) -> anyhow::Result<Vec<BenchTest>> {
        if !self.tests.is_empty() {
            return Ok(self.tests.clone());
        }
        let usual = USUAL_TESTS.iter().map(|name| name.parse());
        Ok(usual.collect::<Result<_, _>>()?)
    }
}

impl Report {
    fn tables(&self) -> String {
        let mut text = String::new();
        if let Some(run) = &self.run {
            text += &table(&TEST_COLUMNS, &self.test_rows(run));
            text += &format!(
                "memory {} of {}\n",
                format_size(run.peak_rss_bytes),
                format_size(run.memory_budget_bytes)
            );
        }
        if let Some(kernels) = &self.kernels {
            text += &format!("kernels of {}, one core\n", self.isa);
            #[cfg(feature = "gpu")]
            if let Some(device) = &self.device {
                text += &format!("and of {}, arithmetic {}\n", device.name, device.arithmetic);
            }
            let rows: Vec<_> = kernels.iter().map(kernel_row).collect();
            text += &table(&KERNEL_COLUMNS, &rows);
        }
        text
    }

    fn test_rows(&self, run: &RunReport) -> Vec<Vec<String>> {
        let row = |t: &TestReport| {
            let speed = t.tokens_per_second;
            vec![
                run.model.rsplit('/').next().unwrap_or_default().to_string(),
                format_size(run.weight_bytes),
                self.isa.to_string(),
                self.threads.to_string(),
                t.test.clone(),
                format!("{:.2}", speed.median),
                format!("{:.2}", speed.min),
                format!("{:.2}", speed.max),
                format!("{:.1}", t.gb_per_second),
                format!("{:.1}", t.bound_gb_per_second),
                format!("{:.0}", t.gops),
                format!("{:.0}", t.int8_peak_gops),
                t.bound.what.to_string(),
                format!("{:.1}", t.bound.tokens_per_second),
                format!("{:.1}%", t.fraction_of_bound * 100.0),
            ]
        };
        self.tests.iter().map(row).collect()
    }
}

/// Titles of columns, and whether the columns hold numbers.
type Columns<const N: usize> = [(&'static str, bool); N];

const TEST_COLUMNS: Columns<15> = [
    ("model", false),
    ("size", true),
    ("isa", false),
    ("threads", true),
    ("test", true),
    ("t/s", true),
    ("min", true),
    ("max", true),
    ("GB/s", true),
    ("memory GB/s", true),
    ("GOPS", true),
    ("int8 GOPS", true),
    ("bound", false),
    ("bound t/s", true),
    ("of bound", true),
];

const KERNEL_COLUMNS: Columns<9> = [
    ("kernel", false),
    ("format", false),
    ("shape", false),
    ("us/call", true),
    ("GB/s", true),
    ("GOPS", true),
    ("bound", false),
    ("bound value", true),
    ("of bound", true),
];

fn kernel_row(k: &KernelReport) -> Vec<String> {
    let unit = |what| {
        if what == "memory read" || what == "device read" {
            "GB/s"
        } else {
            "GOPS"
        }
    };
    vec![
        k.kernel.to_string(),
        k.format.unwrap_or_default().to_string(),
        k.shape.clone(),
        format!("{:.2}", k.microseconds_per_call.median),
        format!("{:.1}", k.gb_per_second),
        format!("{:.1}", k.gops),
        k.bound.map_or("", |b| b.what).to_string(),
        k.bound
            .map(|b| format!("{:.1} {}", b.value, unit(b.what)))
            .unwrap_or_default(),
        k.fraction_of_bound
            .map(|f| format!("{:.1}%", f * 100.0))
            .unwrap_or_default(),
    ]
}

/// A table as llama-bench prints it, which is also Markdown.
fn table<const N: usize>(columns: &Columns<N>, rows: &[Vec<String>]) -> String {
    let width = |i: usize, title: &str| {
        let cells = rows.iter().map(|row| row[i].chars().count());
        cells.max().unwrap_or(0).max(title.len())
    };
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(i, (title, _))| width(i, title))
        .collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = (columns.iter().zip(&widths).zip(cells))
            .map(|(((_, number), &width), cell)| {
                if *number {
                    format!(" {cell:>width$} ")
                } else {
                    format!(" {cell:width$} ")
                }
            })
            .collect();
        format!("|{}|\n", padded.join("|"))
    };
    let rule: Vec<String> = (columns.iter().zip(&widths))
        .map(|((_, number), width)| {
            format!(
                "{}{}",
                "-".repeat(width + 1),
                if *number { ":" } else { "-" }
            )
        })
        .collect();
    let mut text = line(columns.iter().map(|(title, _)| *title).collect());
    text += &format!("|{}|\n", rule.join("|"));
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned() {
        let rows = [
            vec!["a".into(), "1.00".into()],
            vec!["long".into(), "22.00".into()],
        ];
        let expected = "\
| name | value |
|------|------:|
| a    |  1.00 |
| long | 22.00 |
";
        assert_eq!(table(&[("name", false), ("value", true)], &rows), expected);
    }

    #[test]
    fn the_usual_tests_have_names_of_tests() {
        for name in USUAL_TESTS {
            assert!(name.parse::<BenchTest>().is_ok(), "{name}");
        }
    }
}
