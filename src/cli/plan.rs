//! `forebay plan`

use clap::Args;
use forebay::{Engine, Measure, PlanGoal};

use super::context_flag::ContextFlag;
use super::draft_flags::DraftFlags;
use super::engine_flags::EngineFlags;
use super::model_argument::ModelArgument;
use super::output::{print_json, print_text};
use super::progress::{reporter, thousandths};

#[derive(Debug, Args)]
pub struct PlanCommand {
    #[command(flatten)]
    model: ModelArgument,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    draft: DraftFlags,
    /// Find the minimum memory for this many tokens per second; --memory is then the maximum.
    #[arg(long, value_name = "TOKENS/S", value_parser = speed, conflicts_with = "plan")]
    speed: Option<f64>,
    #[command(flatten)]
    context: ContextFlag,
    /// Also measure kernels and cores again; memory and disk are always measured.
    #[arg(long)]
    measure: bool,
    /// Measure only what has never been measured: the plan that `run` makes.
    #[arg(long, conflicts_with = "measure")]
    quick: bool,
    /// Print the plan as JSON, for --plan; the model is packed first.
    #[arg(long)]
    json: bool,
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed.is_finite() => Ok(speed),
        _ => Err("give a number above 0".into()),
    }
}

impl PlanCommand {
    pub fn execute(self) -> anyhow::Result<()> {
        let builder = self.engine.configure(Engine::builder())?;
        let mut builder = self.draft.configure(builder);
        builder = builder.on_preparation(reporter(self.json));
        if let Some(model) = self.model.path() {
            builder = builder.model(model);
        }
        builder = self.context.configure(builder);
        if let Some(speed) = self.speed {
            builder = builder.goal(PlanGoal::Speed(speed));
        }
        let measure = match (self.measure, self.quick) {
            (true, _) => Measure::Anew,
            (_, true) => Measure::Missing,
            _ => Measure::Now,
        };
        let bar = thousandths(self.json).with_message("measuring");
        let progress = &mut |share| bar.set_position((share * 1000.0) as u64);
        let plan = match self.json {
            // For --plan, which names the packed model.
            true => builder.plan_only(measure, progress),
            false => builder.plan_unpacked(measure, progress),
        };
        bar.finish_and_clear();
        let plan = plan?;
        if self.json {
            return print_json(&plan);
        }
        print_text(&plan.to_string())
    }
}
