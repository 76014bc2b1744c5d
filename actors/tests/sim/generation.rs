//! A generation as the driver runs it: a prompt in batches, then token by token.

use forebay_actors::fault::Fault;
use forebay_actors::step::{Sizes, Step, StepDone};
use forebay_plans::giving_way::GivingWay;

use crate::case::Case;
use crate::embedding::read_rows;
use crate::models::{CONTEXT, Model};
use crate::random::Random;
use crate::rest::check_rest;
use crate::visits::Visits;
use crate::world::{Moved, World};

/// Consecutive tokens of the model's text in one step.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    pub n_tokens: usize,
    /// Position of the first one.
    pub position: usize,
    /// How many of the last ones want logits.
    pub n_logits: usize,
    /// Whether more of the same prompt follows.
    pub more: bool,
    /// Whether it only drafts.
    pub drafts: bool,
}

/// The steps of a generation.
#[derive(Debug)]
pub struct Generation {
    pub steps: Vec<Batch>,
}

impl Generation {
    /// A generation from position `from` on: some of its prompts are cut short.
    pub fn draw(random: &mut Random, case: &Case, from: usize) -> Self {
        let room = CONTEXT - from;
        let most = if case.max_batch >= 16 { room } else { 8 };
        let (total, mut at) = (random.within(1..=most.min(room)), 0);
        let prompt = random.within(1..=total);
        let cut = random.chance(10);
        let mut steps = Vec::new();
        while at < total {
            let (n_tokens, more) = match at < prompt {
                true => (
                    case.max_batch.min(prompt - at),
                    at + case.max_batch < prompt,
                ),
                false => (1, false),
            };
            let wanted = case.max_logits.min(n_tokens);
            let n_logits = match more {
                true => random.one_of(&[0, 0, wanted]),
                false => random.within(1..=wanted),
            };
            steps.push(Batch {
                n_tokens,
                position: from + at,
                n_logits,
                more,
                drafts: false,
            });
            if cut && more {
                break;
            }
            at += n_tokens;
        }
        Self { steps }
    }

    /// Positions whose keys and values are there afterwards.
    pub fn end(&self) -> usize {
        self.steps.last().map_or(0, |s| s.position + s.n_tokens)
    }
}

/// Why a generation did not come to its end.
#[derive(Debug)]
pub enum Ended {
    /// The graph reported a fault, as it should where the disk fails.
    Failed(Fault),
    /// Something that must never happen.
    Wrong(String),
}

impl From<String> for Ended {
    fn from(what: String) -> Self {
        Self::Wrong(what)
    }
}

/// Sees the logits of a position.
pub type OnLogits<'a> = dyn FnMut(usize, &[f32]) -> Result<(), String> + 'a;

/// Runs a generation; every position's logits are shown to `on_logits`.
///
/// # Errors
/// The fault, or what went wrong.
pub fn run(
    world: &mut World,
    model: &Model,
    generation: &Generation,
    (visits, random): (&mut Visits, &mut Random),
    on_logits: &mut OnLogits<'_>,
) -> Result<(), Ended> {
    for step in &generation.steps {
        if random.chance(20) {
            resize(world, visits, random)?;
        }
        let decodes = step.n_tokens == 1 && !step.more;
        if decodes && world.steps.shared().can_draft() && random.chance(30) {
            draft(world, model, step, (visits, random))?;
        }
        checked_step(world, model, step, visits)?;
        take_logits(world, model, step, on_logits)?;
        match random.within(0..=9) {
            0..=1 => settle(world)?,
            2..=4 => {
                for _ in 0..random.within(1..=60) {
                    world.advance()?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Before a token's step: a few that draft, which it must not notice.
fn draft(
    world: &mut World,
    model: &Model,
    step: &Batch,
    (visits, random): (&mut Visits, &mut Random),
) -> Result<(), Ended> {
    let end = CONTEXT.min(step.position + random.within(1..=3));
    (step.position..end).try_for_each(|position| {
        let drafted = Batch {
            position,
            n_logits: 1,
            drafts: true,
            ..*step
        };
        checked_step(world, model, &drafted, visits)
    })
}

/// Runs a step, and checks which way its clusters have gone.
fn checked_step(
    world: &mut World,
    model: &Model,
    step: &Batch,
    visits: &mut Visits,
) -> Result<(), Ended> {
    read_rows(world, model, step)?;
    let ended = one_step(world, model, *step);
    // Cores that have ended keep no trace.
    if !matches!(ended, Err(Ended::Wrong(_))) && !world.io_is_dead() {
        visits.check(world, step)?;
    }
    ended
}

/// Between two steps, another part of what may be evicted is kept in memory, and on a device.
fn resize(world: &mut World, visits: &mut Visits, random: &mut Random) -> Result<(), Ended> {
    let shared = world.steps.shared();
    let order = GivingWay::new(&shared.bundle, &shared.plan).clusters;
    let cells = shared.plan.expert_cache.cells;
    let device = shared.device.is_some();
    if order.is_empty() && cells == 0 && !device {
        return Ok(());
    }
    // What is only a device's is not drawn: a seed means the same with it and without.
    let phases = shared.on_device.phases.len();
    let phases_on_device = world.turns as usize % (phases + 2);
    let given = match order.is_empty() && cells == 0 {
        true => 0,
        false => random.within(0..=order.len()),
    };
    let sizes = Sizes {
        cache_slots: match cells {
            0 => usize::MAX,
            _ => random.within(1..=cells),
        },
        evicted_clusters: given as u32,
        phases_on_device,
        // What a step does not need goes back, which it must not notice.
        max_tokens: match world.turns % 3 {
            0 => shared.max_batch,
            _ => usize::MAX,
        },
        ..Sizes::ALL
    };
    let ended = step_to_end(
        world,
        Step {
            resize: Some(sizes),
            ..Step::default()
        },
    );
    if matches!(ended, Err(Ended::Wrong(_))) {
        return ended;
    }
    // Where the disk has failed, some cores may have done it and others not.
    let streamed = visits.follow(world);
    ended?;
    world.check_device(phases_on_device)?;
    let wanted = sizes.cache_slots;
    for (rank, (first, now)) in world.censuses().into_iter().enumerate() {
        let (most, cells) = (first.cells_in_use, now.cells_in_use);
        if cells != wanted.min(most) {
            let wrong = format!("core {rank} has {cells} cells in use, not {wanted} of {most}");
            return Err(Ended::Wrong(wrong));
        }
    }
    match streamed == order[..given].iter().copied().collect() {
        true => Ok(()),
        false => Err(Ended::Wrong(format!(
            "{streamed:?} are streamed, not the first {given} of {order:?}"
        ))),
    }
}

fn one_step(world: &mut World, model: &Model, step: Batch) -> Result<(), Ended> {
    model.show(world, 0, step.position..step.position + step.n_tokens);
    let tokens = world.place(&step);
    step_to_end(
        world,
        Step {
            tokens,
            more: step.more,
            decodes: step.n_tokens == 1 && !step.more,
            drafts: step.drafts,
            ..Step::default()
        },
    )
}

/// Runs a step.
///
/// # Errors
/// The fault, or that nothing can continue.
pub fn step_to_end(world: &mut World, step: Step) -> Result<(), Ended> {
    world.steps.begin(step.clone()).map_err(Ended::Failed)?;
    let mut reports: Vec<StepDone> = Vec::new();
    while !world.steps.poll(&mut reports).map_err(Ended::Failed)? {
        if world.advance()? == Moved::Still {
            let dump = world.dump();
            return Err(Ended::Wrong(format!(
                "STALLED in {step:?}: nobody can do anything, and no read is in flight\n{dump}"
            )));
        }
    }
    world.steps.end(&mut reports).map_err(Ended::Failed)
}

fn take_logits(
    world: &World,
    model: &Model,
    step: &Batch,
    on_logits: &mut OnLogits<'_>,
) -> Result<(), String> {
    let vocab = model.network.vocab_size;
    let mut logits = vec![0.0; vocab];
    let first = step.position + step.n_tokens - step.n_logits;
    for i in 0..step.n_logits {
        let board = &world.steps.shared().boards.logits;
        board.read(i * vocab, &mut logits);
        on_logits(first + i, &logits)?;
    }
    Ok(())
}

/// Lets everything come to rest, and looks whether everything is at home then.
///
/// # Errors
/// Something is not at rest, or an actor without work does not sleep as it should.
pub fn settle(world: &mut World) -> Result<(), String> {
    while world.advance()? == Moved::Yes {}
    if world.io_is_dead() {
        // It died meanwhile; what is left is looked at when that has been told.
        return Ok(());
    }
    if !world.is_idle() {
        return Err(format!("not idle at rest\n{}", world.dump()));
    }
    check_rest(world)
}

/// Takes the work away; all cores have to end.
///
/// # Errors
/// One does not.
pub fn shut_down(world: &mut World) -> Result<(), String> {
    world.steps.close();
    while world.advance()? == Moved::Yes {}
    match world.all_finished() {
        true => Ok(()),
        false => Err(format!("a core does not end\n{}", world.dump())),
    }
}
