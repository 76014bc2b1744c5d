//! What is run: the cases of the table, and the settings that must not change their hashes.

use std::fmt;

use crate::models::Model;

/// Tokens generated after each prompt.
pub const NEW_TOKENS: usize = 8;
/// Values of `--kv`.
pub const KV_FORMATS: [&str; 2] = ["f16", "q8"];
/// Budgets: 0 % would be the minimum that is accepted, 100 % holds everything.
const PERCENTS: [u64; 4] = [100, 60, 30, 10];

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What takes one or two minutes.
    Part,
    /// The complete cross product.
    Full,
    /// The complete cross product; the first hash of each case goes into the table, and all others must equal it.
    Bless,
}

/// What `FOREBAY_HASHES` asks for.
pub fn extent() -> Extent {
    const VARIABLE: &str = "FOREBAY_HASHES";
    match std::env::var(VARIABLE).as_deref() {
        Err(_) | Ok("") => Extent::Part,
        Ok("full") => Extent::Full,
        Ok("bless") => Extent::Bless,
        Ok(other) => panic!("{VARIABLE} is {other:?}; it can be \"full\" or \"bless\""),
    }
}

/// What must not make a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// How much of the model the budget holds, from the minimum to everything.
    pub percent: u64,
    pub threads: usize,
}

/// Cases that differ only in the prompt, and the settings to run them with.
pub struct Group {
    pub model: &'static Model,
    pub sparsity: &'static str,
    pub kv: &'static str,
    pub prompts: Vec<usize>,
    pub program_settings: Vec<Setting>,
    pub library_settings: Vec<Setting>,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %, {} threads", self.percent, self.threads)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.model.name, self.sparsity, self.kv)
    }
}

impl Group {
    /// The name of one of its cases in the table.
    pub fn key(&self, prompt: usize) -> String {
        self.model.key(self.sparsity, self.kv, prompt)
    }
}

/// What is run now with `model`.
pub fn groups(model: &'static Model) -> Vec<Group> {
    let part = extent() == Extent::Part;
    let mut groups = Vec::new();
    for sparsity in model.sparsities_to_run() {
        for kv in KV_FORMATS {
            groups.push(Group {
                model,
                sparsity,
                kv,
                prompts: if part && !model.is_small() {
                    vec![model.prompts[1]]
                } else {
                    model.prompts.to_vec()
                },
                program_settings: if part {
                    some_settings(model, kv)
                } else {
                    all_settings()
                },
                library_settings: if part {
                    some_budgets(kv)
                } else {
                    all_settings()
                },
            });
        }
    }
    groups
}

/// One setting of the program: it runs with plenty of memory as well, with as many threads, and the library runs small
/// models with others. Each number of threads has a KV format of its own.
fn some_settings(model: &Model, kv: &str) -> Vec<Setting> {
    let percent = match (model.is_tiny(), model.is_small()) {
        (true, _) => 100,
        (_, true) => 10,
        _ => 30,
    };
    let threads = if kv == "f16" && !model.is_tiny() {
        1
    } else {
        2
    };
    vec![Setting { percent, threads }]
}

/// Every other budget: each KV format has budgets and a number of threads of its own, not that with which the program
/// runs.
fn some_budgets(kv: &str) -> Vec<Setting> {
    let (first, threads) = if kv == "f16" { (1, 2) } else { (0, 1) };
    let budgets = PERCENTS.into_iter().skip(first).step_by(2);
    let settings = budgets.map(|percent| Setting { percent, threads });
    settings.collect()
}

/// Larger budgets come before smaller ones.
fn all_settings() -> Vec<Setting> {
    let with = |threads| PERCENTS.map(|percent| Setting { percent, threads });
    [1, 2].map(with).concat()
}
