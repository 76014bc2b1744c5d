//! Where packed models are kept, and under which name.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::geteuid;

use crate::error::PlanError;

/// The variable that names the folder explicitly.
pub const CACHE_VARIABLE: &str = "FOREBAY_CACHE";

/// Extension of packed models.
pub const PACKED_EXTENSION: &str = "fbay";

/// Endings that name a format and not the model. Anything else after a dot belongs to the name, as in the folder
/// `Qwen2.5-1.5B`.
const FORMAT_EXTENSIONS: [&str; 4] = ["gguf", "safetensors", "json", PACKED_EXTENSION];

/// File systems allow 255 bytes per name; hash, dash and extension take 22.
const MOST_STEM_BYTES: usize = 200;

/// A folder in which packed models may be kept, and the variable that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The folder; it need not exist.
    pub dir: PathBuf,
    /// The environment variable that names it.
    pub variable: &'static str,
}

/// The folders that the environment suggests, the preferred first: `$FOREBAY_CACHE`, else
/// `$XDG_CACHE_HOME/forebay`, `$HOME/.cache/forebay`. Nothing is created.
///
/// An explicit `$FOREBAY_CACHE` is the only candidate: many gigabytes must not end up on another
/// disk.
pub fn candidates() -> Vec<Candidate> {
    candidates_from(|name| std::env::var_os(name))
}

fn candidates_from(variable: impl Fn(&str) -> Option<OsString>) -> Vec<Candidate> {
    let folder = |name: &'static str, below: &str| {
        let value = variable(name).filter(|value| !value.is_empty())?;
        Some(Candidate {
            dir: PathBuf::from(value).join(below),
            variable: name,
        })
    };
    if let Some(value) = variable(CACHE_VARIABLE).filter(|value| !value.is_empty()) {
        return vec![Candidate {
            dir: PathBuf::from(value),
            variable: CACHE_VARIABLE,
        }];
    }
    // The XDG base directory specification requires that relative paths are ignored.
    let xdg = folder("XDG_CACHE_HOME", "forebay").filter(|c| c.dir.is_absolute());
    let home = folder("HOME", ".cache/forebay").filter(|c| c.dir.is_absolute());
    xdg.into_iter().chain(home).collect()
}

/// The folder for packed models: `named`, if somebody did; else the first of the [`candidates`] that is, or can be
/// made, a writable folder, or at least one that can be read, since it may have everything packed. It is created.
///
/// # Errors
/// There is none (the message says what was wrong with each), or others may write to it.
pub fn prepare(named: Option<&Path>) -> Result<PathBuf, PlanError> {
    let folder = match named {
        None => prepare_from(&candidates())?,
        Some(named) => {
            make(named).map_err(|source| match source.kind() {
                ErrorKind::NotADirectory => PlanError::NoCacheFolder {
                    tried: format!("{}: {source}", named.display()),
                },
                _ => PlanError::Write {
                    path: named.into(),
                    source,
                },
            })?;
            named.into()
        }
    };
    check_owner(&folder)?;
    Ok(folder)
}

/// Refuses a folder or file of the cache that somebody else could have put there or may change: it would be believed.
/// One's own and the superuser's are used, if nobody else may write to them.
///
/// # Errors
/// Another owner or generous permissions, with the remedy.
pub fn check_owner(path: &Path) -> Result<(), PlanError> {
    let Ok(info) = std::fs::metadata(path) else {
        // What is wrong with it is said by who opens it.
        return Ok(());
    };
    let what = if info.is_dir() { "folder" } else { "file" };
    let owner = info.uid();
    if owner != 0 && owner != geteuid().as_raw() {
        let remedy = match info.is_dir() {
            true => format!("take one of your own with --cache or {CACHE_VARIABLE}"),
            false => "delete it, or name it as the model if you trust it".into(),
        };
        return Err(PlanError::Untrusted {
            path: path.into(),
            why: format!(
                "the {what} belongs to user {owner}, who could forge packed models; {remedy}"
            ),
        });
    }
    // Where users have groups of their own, with their own numbers, a umask usually lets the group write.
    let others = match info.gid() == owner {
        true => 0o002,
        false => 0o022,
    };
    match info.mode() & others {
        0 => Ok(()),
        _ => Err(PlanError::Untrusted {
            path: path.into(),
            why: format!(
                "others may write to the {what} and could forge packed models; `chmod go-w` it if it is \
                 your own, or take another folder with --cache or {CACHE_VARIABLE}"
            ),
        }),
    }
}

fn prepare_from(candidates: &[Candidate]) -> Result<PathBuf, PlanError> {
    let usable = Access::WRITE_OK | Access::EXEC_OK;
    let mut tried = Vec::new();
    for candidate in candidates {
        let made = make(&candidate.dir);
        match made.and_then(|()| Ok(access(&candidate.dir, usable)?)) {
            Ok(()) => return Ok(candidate.dir.clone()),
            Err(error) => tried.push(format!(
                "{} (from {}): {error}",
                candidate.dir.display(),
                candidate.variable
            )),
        }
    }
    let readable = |c: &&Candidate| access(&c.dir, Access::READ_OK | Access::EXEC_OK).is_ok();
    let readable = candidates.iter().filter(|c| c.dir.is_dir()).find(readable);
    if let Some(candidate) = readable {
        return Ok(candidate.dir.clone());
    }
    if tried.is_empty() {
        tried.push(format!(
            "none of {CACHE_VARIABLE}, XDG_CACHE_HOME and HOME is set"
        ));
    }
    Err(PlanError::NoCacheFolder {
        tried: tried.join(", "),
    })
}

/// Makes the folder, which only its owner may write to whatever the umask says.
fn make(dir: &Path) -> std::io::Result<()> {
    if dir.exists() && !dir.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    DirBuilder::new().recursive(true).mode(0o755).create(dir)
}

/// The packed file for a source: `<stem>-<16 hex digits>.fbay` in `dir`.
///
/// `hash` stands for everything the packed bytes depend on: the canonical path and state of the source, and the pack
/// options. So another version of the source gets another file.
pub fn packed_path(dir: &Path, source: &Path, hash: u64) -> PathBuf {
    dir.join(format!("{}-{hash:016x}.{PACKED_EXTENSION}", stem(source)))
}

/// A packed file in `dir` that is named for `hash`, whatever its source was called.
pub fn packed_with(dir: &Path, hash: u64) -> Option<PathBuf> {
    let end = format!("-{hash:016x}.{PACKED_EXTENSION}");
    let paths = std::fs::read_dir(dir).ok()?.flatten().map(|e| e.path());
    let named = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|n| n.to_string_lossy().ends_with(&end))
    };
    paths.filter(|path| named(path) && path.is_file()).min()
}

/// Whether a file is named like [`packed_path`]'s; others in the folder are somebody's own.
pub fn is_packed_path(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(PACKED_EXTENSION);
    let stem = stem.and_then(|stem| stem.strip_suffix('.'));
    let hash = stem.and_then(|stem| Some(stem.rsplit_once('-')?.1));
    hash.is_some_and(|hash| hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn stem(source: &Path) -> String {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let stem = match name.rsplit_once('.') {
        Some((stem, ending))
            if FORMAT_EXTENSIONS
                .iter()
                .any(|e| ending.eq_ignore_ascii_case(e)) =>
        {
            stem
        }
        _ => &name,
    };
    if stem.is_empty() {
        return "model".to_owned();
    }
    stem.char_indices()
        .take_while(|(at, c)| at + c.len_utf8() <= MOST_STEM_BYTES)
        .map(|(_, c)| c)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| {
            let (_, value) = pairs.iter().find(|(key, _)| *key == name)?;
            Some(OsString::from(value))
        }
    }

    #[test]
    fn the_environment_is_asked_in_order() {
        let dirs = |pairs: &[(&str, &str)]| -> Vec<String> {
            let found = candidates_from(environment(pairs));
            found.iter().map(|c| c.dir.display().to_string()).collect()
        };
        let home = ("HOME", "/home/a");
        assert_eq!(dirs(&[home]), ["/home/a/.cache/forebay"]);
        let xdg = ("XDG_CACHE_HOME", "/fast");
        assert_eq!(
            dirs(&[home, xdg]),
            ["/fast/forebay", "/home/a/.cache/forebay"]
        );
        assert_eq!(dirs(&[home, xdg, ("FOREBAY_CACHE", "/f")]), ["/f"]);
        assert_eq!(
            dirs(&[home, ("FOREBAY_CACHE", "")]),
            ["/home/a/.cache/forebay"]
        );
        assert_eq!(
            dirs(&[home, ("XDG_CACHE_HOME", "rel")]),
            ["/home/a/.cache/forebay"]
        );
        assert!(dirs(&[]).is_empty());
    }

    #[test]
    fn the_folder_is_made_and_an_impossible_one_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "in the way").unwrap();
        let candidate = |dir: PathBuf, variable| Candidate { dir, variable };
        let blocked = candidate(file.join("forebay"), "XDG_CACHE_HOME");
        let good = candidate(dir.path().join("a/b"), "HOME");
        let made = prepare_from(&[blocked.clone(), good.clone()]).unwrap();
        assert_eq!(made, good.dir);
        assert!(made.is_dir());
        let message = prepare_from(&[blocked]).unwrap_err().to_string();
        assert!(
            message.contains("XDG_CACHE_HOME") && message.contains("FOREBAY_CACHE"),
            "{message}"
        );
        let message = prepare_from(&[]).unwrap_err().to_string();
        assert!(message.contains("HOME is set"), "{message}");
    }

    #[test]
    fn names_keep_the_model_and_fit_the_file_system() {
        let name = |source: &str| {
            let path = packed_path(Path::new("/c"), Path::new(source), 0xab);
            assert!(is_packed_path(&path));
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(
            name("/m/SmolLM2.Q4_0.gguf"),
            "SmolLM2.Q4_0-00000000000000ab.fbay"
        );
        assert_eq!(
            name("/m/Qwen2.5-1.5B/"),
            "Qwen2.5-1.5B-00000000000000ab.fbay"
        );
        assert_eq!(name("/m/x.GGUF"), "x-00000000000000ab.fbay");
        assert_eq!(name("/"), "model-00000000000000ab.fbay");
        assert_eq!(name(".gguf"), "model-00000000000000ab.fbay");
        let long = name(&"ä".repeat(120));
        assert!(long.len() <= 255 && long.starts_with('ä'), "{long}");
        for own in [
            "/c/x.fbay",
            "/c/x-00000000000000a.fbay",
            "/c/x-00000000000000ag.fbay",
            "/c/x-00000000000000ab.gguf",
            "/c/00000000000000ab.fbay",
        ] {
            assert!(!is_packed_path(Path::new(own)), "{own}");
        }
    }
}
