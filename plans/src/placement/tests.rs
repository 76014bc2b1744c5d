//! The plan against an exhaustive search and against the baselines, on machines with published figures.

use std::fmt::Write;

use forebay_models::block::BlockType;
use forebay_models::network::{Attention, KvOrigin};

use super::baselines::{everything_on_the_device, oato};
use super::cost::{memory, seconds};
use super::*;

/// A matrix of a model.
fn operator(name: &str, format: BlockType, (rows, cols): (usize, usize)) -> Operator {
    let elements = (rows * cols) as f64;
    Operator {
        cold_bytes: 0.0,
        cold_operations: 0.0,
        name: name.to_owned(),
        formats: vec![format],
        bytes: elements * format.block_bytes() as f64 / format.block_len() as f64,
        used: 1.0,
        operations: 2.0 * elements,
        input_bytes: 1.5 * cols as f64,
        output_bytes: 4.0 * rows as f64,
        streaming: None,
        attends: false,
    }
}

/// A transformer: layers, width, rows of Q, K and V, width of the FFN, experts used and there, vocabulary.
fn model(
    layers: usize,
    d: usize,
    qkv: usize,
    d_ff: usize,
    experts: (usize, usize),
) -> Vec<Operator> {
    let q = BlockType::Q4_K;
    let mut operators = Vec::new();
    for layer in 0..layers {
        operators.push(operator(&format!("layer {layer}, qkv"), q, (qkv, d)));
        operators.push(operator(&format!("layer {layer}, output"), q, (d, d)));
        let (used, all) = experts;
        let mut ffn = operator(&format!("layer {layer}, ffn"), q, (3 * d_ff * all, d));
        ffn.used = used as f64 / all as f64;
        ffn.operations *= ffn.used;
        ffn.output_bytes = 8.0 * d as f64;
        operators.push(ffn);
    }
    operators.push(operator("logits", BlockType::Q6_K, (128_256, d)));
    operators
}

/// Llama-3.1-8B and -70B, Qwen3-30B-A3B, Llama-3.2-1B, and the first one with attention.
fn models() -> [(&'static str, Vec<Operator>); 5] {
    let products = model(32, 4096, 6144, 14336, (1, 1));
    let attends = [products, attention(4096)].concat();
    [
        ("8B", model(32, 4096, 6144, 14336, (1, 1))),
        ("70B", model(80, 8192, 10240, 28672, (1, 1))),
        ("30B-A3B", model(48, 2048, 5120, 768, (8, 128))),
        ("1B", model(16, 2048, 3072, 8192, (1, 1))),
        ("8B with attention", attends),
    ]
}

/// Attention of all layers of the 8B model, for tokens that see so many positions.
fn attention(positions: usize) -> Vec<Operator> {
    let attention = Attention {
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 128,
        kv: KvOrigin::Own,
        latent: None,
        qkv_bias: false,
        out_bias: false,
        output_gate: false,
        qk_norm: None,
        v_norm: None,
        rope: None,
        window: None,
        scale: 1.0,
        softcap: None,
        temperature: None,
        sinks: false,
    };
    vec![Operator::of_attention(&attention, positions); 32]
}

/// An FFN of the 8B model that is streamed from a disk.
fn streamed(gb_per_second: f64) -> Operator {
    let mut ffn = operator("streamed ffn", BlockType::Q4_K, (3 * 14336, 4096));
    ffn.output_bytes = 8.0 * 4096.0;
    ffn.streaming = Some(Streaming {
        bytes_per_second: gb_per_second * 1e9,
        jobs: 50.0,
    });
    ffn
}

const BATCHES: [usize; 4] = [1, 16, 128, 512];

fn machines() -> Vec<PlacementMachine> {
    published().expect("sound data")
}

/// The least time of any placement, found by trying every choice of every operator: of partial placements that take as
/// much memory, only the fastest is kept. Memory is counted in steps, rounded down, so that the result is at most too
/// small.
fn exhaustive(machine: &PlacementMachine, operators: &[Operator], batch: usize) -> f64 {
    let own = machine.device.and_then(|d| d.memory);
    let (room, steps) = own.map_or((1.0, 1), |m| (m.gb * 1e9, 1 << 14));
    let step = room / steps as f64;
    let mut best = vec![f64::INFINITY; steps + 1];
    best[0] = 0.0;
    for operator in operators {
        let mut next = vec![f64::INFINITY; steps + 1];
        for choice in Choice::all() {
            let cost = seconds(machine, operator, batch, choice);
            let taken = (memory(machine, operator, choice) / step) as usize;
            for at in taken..=steps {
                next[at] = next[at].min(best[at - taken] + cost);
            }
        }
        best = next;
    }
    best.into_iter().fold(f64::INFINITY, f64::min)
}

/// The same without any trick.
fn brute_force(machine: &PlacementMachine, operators: &[Operator], batch: usize) -> f64 {
    let room = machine
        .device
        .and_then(|d| d.memory)
        .map_or(f64::INFINITY, |m| m.gb * 1e9);
    let mut all: Vec<Vec<Choice>> = vec![Vec::new()];
    for _ in operators {
        let longer = |choices: &Vec<Choice>| {
            let choices = choices.clone();
            Choice::all().map(move |c| [choices.clone(), vec![c]].concat())
        };
        all = all.iter().flat_map(longer).collect();
    }
    let placements = all
        .into_iter()
        .map(|c| Placement::of(machine, operators, batch, c));
    let fitting = placements.filter(|p| p.memory <= room).map(|p| p.seconds);
    fitting.fold(f64::INFINITY, f64::min)
}

#[test]
fn the_exhaustive_search_finds_what_trying_everything_does() {
    for machine in machines() {
        let mut machine = machine;
        if let Some(memory) = machine.device.as_mut().and_then(|d| d.memory.as_mut()) {
            // Room for about half of them.
            memory.gb = 0.1;
        }
        let operators = &models()[0].1[..3];
        for batch in [1, 64] {
            let (found, all) = (
                exhaustive(&machine, operators, batch),
                brute_force(&machine, operators, batch),
            );
            assert!(
                found <= all && found > 0.995 * all,
                "{}: {found} {all}",
                machine.name
            );
        }
    }
}

#[test]
fn the_plan_is_within_a_twentieth_of_the_best_and_no_worse_than_the_baselines() {
    for machine in machines() {
        for (name, operators) in models() {
            for batch in BATCHES {
                let plan = Placement::plan(&machine, &operators, batch);
                let best = exhaustive(&machine, &operators, batch);
                let what = format!("{}, {name}, batch {batch}", machine.name);
                assert!(
                    plan.seconds <= 1.05 * best,
                    "{what}: {} {best}",
                    plan.seconds
                );
                if let Some(memory) = machine.device.and_then(|d| d.memory) {
                    assert!(plan.memory <= memory.gb * 1e9, "{what}: {}", plan.memory);
                }
                for baseline in [Placement::without_device, everything_on_the_device, oato] {
                    let other = baseline(&machine, &operators, batch).seconds;
                    // What gains less than 2% is not done.
                    let idle = plan.choices.iter().all(|c| c.share == 0);
                    let bound = other * if idle { 1.02 } else { 1.0 + 1e-9 };
                    assert!(plan.seconds <= bound, "{what}: {} {other}", plan.seconds);
                }
            }
        }
    }
}

#[test]
fn a_machine_without_a_device_computes_on_the_cpu() {
    for machine in machines() {
        let alone = machine.kind == MachineKind::Cpu;
        assert_eq!(machine.device.is_none(), alone);
        let (_, operators) = &models()[0];
        let plan = Placement::plan(&machine, operators, 512);
        assert_eq!(
            plan.choices.iter().all(|c| c.share == 0),
            alone,
            "{}",
            machine.name
        );
        assert_eq!(break_even(&machine, &operators[2], true).is_none(), alone);
    }
}

#[test]
fn formats_without_kernels_stay_on_the_cpu() {
    let machine = &machines()[3];
    let mut ffn = operator("ffn", BlockType::Q4_K, (43_008, 4096));
    let on_device =
        |ffn: &Operator| Placement::plan(machine, std::slice::from_ref(ffn), 64).choices[0].share;
    assert!(on_device(&ffn) > 0);
    ffn.formats.push(BlockType::Q2_K);
    assert_eq!(on_device(&ffn), 0);
    let operators = [ffn];
    let placed = everything_on_the_device(machine, &operators, 64);
    assert_eq!(placed.choices[0].share, 0);
    assert_eq!(oato(machine, &operators, 64).choices[0].share, 0);
    let explanation = placed.explain(machine, &operators, 64, 0).to_string();
    assert!(explanation.contains("no kernels"), "{explanation}");
}

#[test]
fn scarce_memory_goes_where_it_gains_most() {
    let mut machine = machines().swap_remove(5);
    let (_, operators) = &models()[0];
    let all = Placement::plan(&machine, operators, 1);
    let needed = all.memory;
    if let Some(memory) = machine.device.as_mut().and_then(|d| d.memory.as_mut()) {
        memory.gb = needed / 2e9;
    }
    let half = Placement::plan(&machine, operators, 1);
    assert!(
        half.memory <= needed / 2.0 && half.memory > 0.45 * needed,
        "{}",
        half.memory
    );
    assert!(half.seconds > all.seconds);
    // A prompt's weights are worth copying, a single token's are not.
    let copied = |p: &Placement| p.choices.iter().any(|c| c.share > 0 && !c.resident);
    assert!(!copied(&half));
    assert!(copied(&Placement::plan(&machine, operators, 512)));
}

#[test]
fn weights_that_are_copied_need_larger_batches() {
    let machine = &machines()[5];
    let ffn = operator("ffn", BlockType::Q4_K, (43_008, 4096));
    let resident = break_even(machine, &ffn, true).unwrap();
    let copied = break_even(machine, &ffn, false).unwrap();
    assert_eq!(resident, 1);
    assert!(copied > 1 && copied < 512, "{copied}");
}

#[test]
fn tokens_that_share_experts_share_their_weights() {
    let (_, operators) = &models()[2];
    let ffn = &operators[2];
    let of = |batch| ffn.bytes_of(batch) / ffn.bytes;
    assert!((of(1) - 8.0 / 128.0).abs() < 1e-9);
    assert!(of(16) > 0.6 && of(16) < 0.7, "{}", of(16));
    assert!(of(512) > 0.999);
}

/// The table of `docs/devices.md`.
fn table() -> String {
    let mut text = "\
| machine | model | tokens | CPU alone | device alone | OATO | plan | best | FFN on the device | pays from |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|
"
    .to_owned();
    for machine in machines() {
        for (model, operators) in models() {
            let shown = match machine.kind {
                MachineKind::Cpu => model == "8B",
                MachineKind::Unified => model == "8B" || model == "30B-A3B",
                MachineKind::Discrete => model != "1B" && model != "8B with attention",
            };
            for batch in BATCHES
                .into_iter()
                .filter(|b| shown && [1, 16, 512].contains(b))
            {
                row(&mut text, &machine, model, &operators, batch);
            }
        }
    }
    text
}

/// TurboSparse-Mistral-7B, of whose neurons a part is hot; a token wants the part `cold` of all among the others.
fn sparse(hot: f64, cold: f64) -> Vec<Operator> {
    let (layers, d, d_ff) = (32, 4096, 14336.0);
    let (q4, q8) = (BlockType::Q4_0, BlockType::Q8_0);
    let of = |block: BlockType, n: f64| {
        n * d as f64 / block.block_len() as f64 * block.block_bytes() as f64
    };
    let mut operators = Vec::new();
    for layer in 0..layers {
        operators.push(operator(&format!("layer {layer}, qkv"), q4, (6144, d)));
        operators.push(operator(&format!("layer {layer}, output"), q4, (d, d)));
        let wanted = cold * d_ff;
        operators.push(Operator {
            formats: vec![q4, q8],
            bytes: of(q4, 2.0 * hot * d_ff) + of(q8, hot * d_ff),
            operations: 6.0 * hot * d_ff * d as f64,
            cold_bytes: of(q4, 3.0 * wanted),
            cold_operations: 6.0 * wanted * d as f64,
            output_bytes: 8.0 * d as f64,
            ..operator(&format!("layer {layer}, ffn"), q4, (d, d))
        });
    }
    operators.push(operator("logits", q4, (32_064, d)));
    operators
}

/// The table of hot neurons in `docs/devices.md`: parts of the neurons that at least half, or three tenths, of the
/// tokens want in a synthetic model, and what tokens want of the others.
fn table_of_hot_neurons() -> String {
    let mut text = "\
| machine | none hot: CPU alone | plan | 7% hot: CPU alone | plan | 15% hot: CPU alone | plan | of these on the device |
|---|--:|--:|--:|--:|--:|--:|--:|
"
    .to_owned();
    for machine in machines() {
        let _ = write!(text, "| {} |", machine.name);
        let mut on_device = 0.0;
        for (hot, cold) in [(0.0, 0.125), (0.07, 0.076), (0.146, 0.047)] {
            let operators = sparse(hot, cold);
            let plan = Placement::plan(&machine, &operators, 1);
            let alone = Placement::without_device(&machine, &operators, 1).seconds;
            let _ = write!(text, " {:.1} | {:.1} |", 1e3 * alone, 1e3 * plan.seconds);
            on_device = plan.choices[2].part();
        }
        let _ = writeln!(text, " {:.0}% |", 100.0 * on_device);
    }
    text
}

/// The table of attention in `docs/devices.md`: 512 tokens of the 8B model that see so many positions.
fn table_of_attention() -> String {
    let mut text = "\
| machine | positions | attention alone: CPU | plan | on the device | all: CPU | products on the device | both |
|---|--:|--:|--:|--:|--:|--:|--:|
"
    .to_owned();
    let ms = |seconds: f64| format!("{:.0}", 1e3 * seconds);
    for machine in machines().iter().filter(|m| m.device.is_some()) {
        for positions in [512, 4096, 16384] {
            let (products, attention) = (&models()[0].1, attention(positions));
            let alone = |operators: &[Operator]| Placement::without_device(machine, operators, 512);
            let plan = |operators: &[Operator]| Placement::plan(machine, operators, 512);
            let (own, planned) = (alone(&attention).seconds, plan(&attention));
            let _ = writeln!(
                text,
                "| {} | {positions} | {} | {} | {:.0}% | {} | {} | {} |",
                machine.name,
                ms(own),
                ms(planned.seconds),
                100.0 * planned.choices[0].part(),
                ms(alone(products).seconds + own),
                ms(plan(products).seconds + own),
                ms(plan(&[products.clone(), attention].concat()).seconds),
            );
        }
    }
    text
}

fn row(
    text: &mut String,
    machine: &PlacementMachine,
    model: &str,
    operators: &[Operator],
    batch: usize,
) {
    let ms = |seconds: f64| match seconds {
        s if s < 0.1 => format!("{:.1}", s * 1e3),
        s => format!("{:.0}", s * 1e3),
    };
    let plan = Placement::plan(machine, operators, batch);
    let ffns = || {
        operators
            .iter()
            .zip(&plan.choices)
            .filter(|(o, _)| o.name.ends_with("ffn"))
    };
    let share: f64 = ffns().map(|(_, c)| c.part()).sum::<f64>() / ffns().count() as f64;
    let baseline = |of: fn(&PlacementMachine, &[Operator], usize) -> Placement| match machine.kind {
        MachineKind::Cpu => "-".to_owned(),
        _ => ms(of(machine, operators, batch).seconds),
    };
    let from = |resident| {
        let from = break_even(machine, &operators[2], resident);
        from.map_or("-".to_owned(), |n| n.to_string())
    };
    let from = match machine.kind {
        MachineKind::Discrete => format!("{}, copied {}", from(true), from(false)),
        _ => from(true),
    };
    let _ = writeln!(
        text,
        "| {} | {model} | {batch} | {} | {} | {} | {} | {} | {:.0}% | {from} |",
        machine.name,
        ms(Placement::without_device(machine, operators, batch).seconds),
        baseline(everything_on_the_device),
        baseline(oato),
        ms(plan.seconds),
        ms(exhaustive(machine, operators, batch)),
        100.0 * share,
    );
}

#[test]
fn the_table_in_the_documentation_is_the_models() {
    let docs = include_str!("../../../docs/devices.md");
    for table in [table(), table_of_hot_neurons(), table_of_attention()] {
        if !docs.contains(&table) {
            println!("{table}");
            panic!("docs/devices.md has another table");
        }
    }
}

/// Copying takes its time on every device, and every few clusters are a job: it pays later than where weights are
/// resident, and takes none of the device's memory. Behind a slow disk nothing pays.
#[test]
fn what_is_streamed_is_copied_from_a_later_batch_on_and_not_behind_a_slow_disk() {
    for machine in machines() {
        let (fast, slow) = (streamed(f64::INFINITY), streamed(1e-3));
        let resident = Operator {
            streaming: None,
            ..fast.clone()
        };
        let name = &machine.name;
        assert_eq!(break_even(&machine, &slow, false), None, "{name}");
        let Some(from) = break_even(&machine, &fast, false) else {
            assert_eq!(machine.kind, MachineKind::Cpu, "{name}");
            continue;
        };
        let at_once = break_even(&machine, &resident, true);
        assert!(at_once.is_some_and(|at_once| at_once < from), "{name}");
        let operators = [fast];
        let plan = Placement::plan(&machine, &operators, 512);
        let some = plan.choices[0].share;
        assert!(some > 0, "{name}");
        assert_eq!(plan.memory, 0.0, "{name}");
        let explained = plan.explain(&machine, &operators, 512, 0);
        let alone = explained.device_alone.expect("it has kernels");
        assert!(explained.seconds < explained.cpu_alone && explained.seconds <= alone);
        let text = explained.to_string();
        let says = format!("streamed ffn: {some}/16 copied to the device");
        assert!(text.contains(&says), "{text}");
        let without = Placement::plan(&machine, &operators, (from - 1).max(1));
        assert!(from == 1 || without.choices[0].share == 0, "{name}");
        eprintln!("{name}: from {from} tokens; {text}");
    }
}
