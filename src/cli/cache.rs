//! `forebay cache`

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use forebay::cached::{self, CachedModel, State};
use forebay_models::error::Shown;
use forebay_plans::cache_dir;
use forebay_plans::size::{format_size, parse_size};
use serde::Serialize;

use super::output::{print_json, print_text, say};
use super::progress::reporter;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Subcommand)]
pub enum Cache {
    /// List packed models: size, last use, state, source.
    #[command(visible_alias = "list")]
    Ls(List),
    /// Remove packed models; they are packed again when they are next run.
    Rm(Remove),
    /// Remove what cannot be used any more, and on request what has not been used for long.
    Prune(Prune),
}

#[derive(Debug, Args)]
struct Folder {
    /// Folder for packed models [default: $FOREBAY_CACHE, $XDG_CACHE_HOME/forebay or ~/.cache/forebay].
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    folder: Folder,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct Remove {
    /// Names as in the list, with or without their number, or the models that were packed.
    #[arg(value_name = "NAME", required_unless_present = "all")]
    names: Vec<PathBuf>,
    /// Remove all but those that were packed with `pack -o`.
    #[arg(long, conflicts_with = "names")]
    all: bool,
    #[command(flatten)]
    folder: Folder,
}

#[derive(Debug, Args)]
pub struct Prune {
    /// Also remove models that were not used for this many days.
    #[arg(long, value_name = "DAYS")]
    unused_for: Option<u32>,
    /// Also remove models, those first that have not been used for longest, until the others take at most this.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<u64>,
    /// Only say what would be removed.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    folder: Folder,
}

/// A packed model in `--json`.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    name: String,
    path: &'a Path,
    bytes: u64,
    unused_for_seconds: u64,
    state: &'static str,
    source: Option<&'a Path>,
}

#[derive(Debug, Serialize)]
struct Listing<'a> {
    folder: Option<&'a Path>,
    bytes: u64,
    models: Vec<Entry<'a>>,
}

impl Cache {
    pub fn execute(self) -> anyhow::Result<()> {
        match self {
            Self::Ls(list) => list.execute(),
            Self::Rm(remove) => remove.execute(),
            Self::Prune(prune) => prune.execute(),
        }
    }
}

impl Folder {
    /// The folder, if there is one, and its models. A folder that is still to be made has none.
    fn models(&self) -> anyhow::Result<(Option<PathBuf>, Vec<CachedModel>)> {
        let folder = cached::folder(self.cache.as_deref());
        let made = folder.as_deref().filter(|folder| is_made(folder));
        let models = made.map_or(Ok(vec![]), cached::list)?;
        Ok((folder, models))
    }
}

impl List {
    fn execute(self) -> anyhow::Result<()> {
        let (folder, models) = self.folder.models()?;
        let bytes = total(&models);
        if self.json {
            let models = models.iter().map(entry).collect();
            let folder = folder.as_deref();
            return print_json(&Listing {
                folder,
                bytes,
                models,
            });
        }
        let Some(folder) = folder else {
            return print_text("no packed models: there is no cache folder yet\n");
        };
        let name_width = models.iter().map(|m| shown(&name(m)).chars().count()).max();
        let mut text = String::new();
        for model in &models {
            let source = model.source.as_deref().unwrap_or(Path::new(""));
            text += &format!(
                "{:width$}  {:>8}  {:>9}  {:14}  {}\n",
                shown(&name(model)),
                format_size(model.bytes),
                age(model),
                in_words(model.state),
                shown(&source.to_string_lossy()),
                width = name_width.unwrap_or(0),
            );
        }
        let (n, folder) = (counted(models.len()), folder.display());
        text += &format!("{n}, {}, in {folder}\n", format_size(bytes));
        print_text(&text)
    }
}

impl Remove {
    fn execute(self) -> anyhow::Result<()> {
        let (folder, models) = self.folder.models()?;
        if self.all {
            // The source of what somebody named may be gone on purpose (`pack --consume`).
            let (all, named): (Vec<_>, Vec<_>) = models.iter().partition(is_ours);
            for model in &named {
                let name = name(model);
                say(format_args!(
                    "{} stays: it was packed with `pack -o`; `forebay cache rm {0}` removes it",
                    shown(&name)
                ));
            }
            return remove_all(&all, false);
        }
        let mut chosen = Vec::new();
        for wanted in &self.names {
            let fitting = models.iter().filter(|m| is_named(m, wanted));
            let before = chosen.len();
            chosen.extend(fitting);
            if chosen.len() == before {
                let place = folder.map_or(String::new(), |f| format!(", in {}", f.display()));
                bail!(
                    "no packed model is called {}, or was packed from it{place}; `forebay cache ls` lists them",
                    wanted.display()
                );
            }
        }
        chosen.sort_by_key(|m| &m.path);
        chosen.dedup_by_key(|m| &m.path);
        remove_all(&chosen, false)
    }
}

impl Prune {
    fn execute(self) -> anyhow::Result<()> {
        let (folder, models) = self.folder.models()?;
        let chosen = self.chosen(&models);
        remove_all(&chosen, self.dry_run)?;
        match folder {
            Some(folder) if !self.dry_run && is_made(&folder) => {
                Ok(cached::remove_remains(&folder, &mut reporter(false))?)
            }
            _ => Ok(()),
        }
    }

    /// `models` in the order of their last use. What somebody named stays: its source may be gone on purpose
    /// (`pack --consume`).
    fn chosen<'a>(&self, models: &'a [CachedModel]) -> Vec<&'a CachedModel> {
        let (mut kept, mut is_full, mut chosen) = (0, false, Vec::new());
        let unused_for = self.unused_for.map(|days| DAY * days);
        for model in models.iter().filter(is_ours) {
            let stale = model.state != State::Current;
            let unused = unused_for.is_some_and(|limit| since(model.used) >= limit);
            if stale || unused {
                chosen.push(model);
                continue;
            }
            kept += model.bytes;
            is_full |= self.max_size.is_some_and(|most| kept > most);
            if is_full {
                chosen.push(model);
            }
        }
        chosen
    }
}

fn remove_all(models: &[&CachedModel], dry_run: bool) -> anyhow::Result<()> {
    let (mut bytes, mut report) = (0, reporter(false));
    for model in models {
        if !dry_run {
            cached::remove(model, &mut report).context("nothing more was removed")?;
        }
        bytes += model.bytes;
        let state = in_words(model.state);
        let size = format_size(model.bytes);
        print_text(&format!("{}  {size}  {state}\n", shown(&name(model))))?;
    }
    let done = if dry_run {
        "would be removed"
    } else {
        "removed"
    };
    let (n, size) = (counted(models.len()), format_size(bytes));
    print_text(&format!("{n}, {size}, {done}\n"))
}

/// Whether there is such a folder; one that cannot be looked for is for others to complain about.
fn is_made(folder: &Path) -> bool {
    folder.try_exists().unwrap_or(true)
}

/// Whether the program chose its name.
fn is_ours(model: &&CachedModel) -> bool {
    cache_dir::is_packed_path(&model.path)
}

fn counted(n: usize) -> String {
    match n {
        1 => "1 packed model".into(),
        n => format!("{n} packed models"),
    }
}

/// Whether `wanted` is its file name, its name without the number, or its source.
fn is_named(model: &CachedModel, wanted: &Path) -> bool {
    let name = name(model);
    let stem = name.trim_end_matches(".fbay");
    let is = |text: &str| wanted.as_os_str() == OsStr::new(text);
    let without_number = stem.rsplit_once('-').map(|(model, _)| model);
    let is_source = |source: &PathBuf| {
        // The packed file has the name in UTF-8 only.
        let as_noted = |path: PathBuf| path.to_string_lossy() == source.to_string_lossy();
        let found = |path: &Path| path.canonicalize().ok();
        let real = found(wanted);
        wanted == source
            || real.is_some_and(|real| found(source).as_ref() == Some(&real) || as_noted(real))
    };
    // What is not UTF-8 is shown as something else.
    let is_file_name = model.path.file_name() == Some(wanted.as_os_str());
    is(&name)
        || is(stem)
        || is_file_name
        || without_number.is_some_and(is)
        || wanted == model.path
        || model.source.as_ref().is_some_and(is_source)
}

fn name(model: &CachedModel) -> String {
    let name = model.path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn shown(name: &str) -> String {
    Shown::name(name).to_string()
}

fn in_words(state: State) -> &'static str {
    match state {
        State::Current => "current",
        State::SourceChanged => "source changed",
        State::SourceMissing => "source missing",
        State::Unreadable => "unreadable",
    }
}

fn since(time: SystemTime) -> Duration {
    SystemTime::now().duration_since(time).unwrap_or_default()
}

fn age(model: &CachedModel) -> String {
    let seconds = since(model.used).as_secs();
    match seconds {
        0..60 => "now".into(),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

fn total(models: &[CachedModel]) -> u64 {
    models.iter().map(|m| m.bytes).sum()
}

fn entry(model: &CachedModel) -> Entry<'_> {
    Entry {
        name: name(model),
        path: &model.path,
        bytes: model.bytes,
        unused_for_seconds: since(model.used).as_secs(),
        state: in_words(model.state),
        source: model.source.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str, bytes: u64, days: u32, state: State) -> CachedModel {
        CachedModel {
            path: Path::new("/cache").join(name),
            bytes,
            source: Some("/models/a.gguf".into()),
            state,
            used: SystemTime::now() - DAY * days,
        }
    }

    fn pruned(unused_for: Option<u32>, max_size: Option<u64>) -> Vec<String> {
        let models = [
            model("a-0123456789abcdef.fbay", 100, 0, State::Current),
            model("b-0123456789abcdef.fbay", 50, 1, State::SourceChanged),
            model("c-0123456789abcdef.fbay", 100, 3, State::Current),
            model("d-0123456789abcdef.fbay", 100, 9, State::Current),
            model("e-0123456789abcdef.fbay", 10, 9, State::Unreadable),
            // Names that somebody gave.
            model("f.fbay", 1000, 9, State::SourceMissing),
            model("f-0123.fbay", 1000, 9, State::SourceChanged),
        ];
        let prune = Prune {
            unused_for,
            max_size,
            dry_run: true,
            folder: Folder { cache: None },
        };
        let chosen = prune.chosen(&models).into_iter().map(name);
        chosen
            .map(|name| name.replace("-0123456789abcdef.fbay", ""))
            .collect()
    }

    #[test]
    fn pruning_takes_what_is_useless_then_what_is_old_then_what_is_too_much() {
        assert_eq!(pruned(None, None), ["b", "e"]);
        assert_eq!(pruned(Some(9), None), ["b", "d", "e"]);
        assert_eq!(pruned(None, Some(150)), ["b", "c", "d", "e"]);
        assert_eq!(pruned(None, Some(u64::MAX)), pruned(None, None));
    }

    #[test]
    fn models_are_named_by_file_by_name_and_by_source() {
        let model = model("a.Q4_0-0123456789abcdef.fbay", 1, 0, State::Current);
        let names = [
            "a.Q4_0-0123456789abcdef.fbay",
            "a.Q4_0-0123456789abcdef",
            "a.Q4_0",
            "/models/a.gguf",
            "/cache/a.Q4_0-0123456789abcdef.fbay",
        ];
        assert!(names.iter().all(|name| is_named(&model, Path::new(name))));
        let others = ["a", "a.gguf", "0123456789abcdef", ""];
        assert!(!others.iter().any(|name| is_named(&model, Path::new(name))));
    }
}
