//! The demo model on its way through faults: packed once, copied for each test, under a weight
//! memory that forces reads while tokens are generated.

use std::borrow::Cow;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forebay::{
    DriverChoice, Engine, Error, Loading, Prompt, Request, Sparsity, StreamItem, packed,
};
use forebay_models::bundle::{Bundle, DirectoryEntry, PackOptions};
use forebay_plans::residency::{Pipeline, Residency, ResidencyRequest, STREAM_WINDOW, decide};

use crate::scratch::Scratch;

pub const PROMPT: &str = "Once upon a time";
pub const TOKENS: usize = 12;
/// Tokens of [`continuation`].
pub const CONTINUED: usize = 8;
const THREADS: usize = 2;

/// Bytes of the packed demo model.
pub fn packed_demo() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| packed("models/demo/hf"))
}

/// Bytes of a model of the repository, packed.
pub fn packed(source: &str) -> Vec<u8> {
    let scratch = Scratch::new();
    let target = scratch.join("model.fbay");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    packed::convert(&source, &target, &PackOptions::default(), &mut |_| {}).expect("packed");
    std::fs::read(target).expect("readable")
}

/// Compute threads of these tests: two, or what the machine has.
pub fn threads() -> usize {
    std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(THREADS)
}

/// How weights are brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    pub sparsity: Sparsity,
    /// Bytes for weights, of 6.9 MB in all.
    pub weight_memory: u64,
    pub driver: DriverChoice,
}

/// Every way of streaming under both drivers: whole clusters in dense and exact mode, and single neurons.
pub fn modes() -> Vec<Mode> {
    let drivers: &[DriverChoice] = match forebay_actors::io::probe::uring_available() {
        Ok(()) => &[DriverChoice::Uring, DriverChoice::Pread],
        Err(e) => {
            eprintln!("SKIPPED: io_uring is not available here ({e}); threads only");
            &[DriverChoice::Pread]
        }
    };
    let kinds = [
        (Sparsity::Dense, 2 << 20),
        (Sparsity::Exact, 1 << 20),
        (Sparsity::Exact, 9 << 19),
    ];
    let modes = kinds.iter().flat_map(|&(sparsity, weight_memory)| {
        drivers.iter().map(move |&driver| Mode {
            sparsity,
            weight_memory,
            driver,
        })
    });
    modes.collect()
}

/// An engine on a copy of a packed model that a test may damage.
pub struct Patient {
    pub engine: Engine,
    pub path: PathBuf,
    pub bundle: Bundle,
    pub residency: Vec<Residency>,
    packed: Cow<'static, [u8]>,
    _scratch: Scratch,
}

impl Patient {
    /// The demo model.
    pub fn new(mode: Mode) -> Self {
        Self::of(packed_demo().into(), mode)
    }

    /// A model of these bytes.
    pub fn of(packed: Cow<'static, [u8]>, mode: Mode) -> Self {
        Self::loading(packed, mode, Loading::Bundle)
    }

    /// The same, with another way of reading neurons.
    pub fn loading(packed: Cow<'static, [u8]>, mode: Mode, loading: Loading) -> Self {
        let scratch = Scratch::new();
        let path = scratch.write("patient.fbay", &packed);
        let bundle = Bundle::open(&path).expect("a sound file");
        let request = ResidencyRequest {
            weight_bytes: mode.weight_memory,
            threads: threads(),
            sparsity: mode.sparsity,
            pipeline: Pipeline::Cluster,
            stream_window: STREAM_WINDOW,
            neuron_cache: 0,
        };
        let residency = decide(&bundle, &request).expect("enough memory").residency;
        let engine = Engine::builder()
            .hot_set(false)
            .model(&path)
            .threads(threads())
            .weight_memory(mode.weight_memory)
            .sparsity(mode.sparsity)
            .driver(mode.driver)
            .loading(loading)
            .context(128)
            .build()
            .expect("an engine");
        Self {
            engine,
            path,
            bundle,
            residency,
            packed,
            _scratch: scratch,
        }
    }

    /// The last cluster whose data is read while tokens flow.
    pub fn last_read(&self) -> DirectoryEntry {
        let read = |r: &Residency| matches!(r, Residency::Streamed | Residency::GatePinned);
        let at = self
            .residency
            .iter()
            .rposition(read)
            .expect("something is read");
        self.bundle.clusters[at]
    }

    /// Inverts a byte in every 64 bytes of a cluster, behind the engine's back.
    pub fn damage(&self, entry: &DirectoryEntry) {
        let mut bytes = self.original(entry);
        bytes.iter_mut().step_by(64).for_each(|b| *b ^= 0x10);
        self.overwrite(entry.offset, &bytes);
    }

    pub fn repair(&self, entry: &DirectoryEntry) {
        self.overwrite(entry.offset, &self.original(entry));
    }

    /// Cuts the file off at `len`.
    pub fn truncate(&self, len: u64) {
        let file = OpenOptions::new()
            .write(true)
            .open(&self.path)
            .expect("writable");
        file.set_len(len)
            .and_then(|()| file.sync_all())
            .expect("a shorter file");
    }

    /// Puts all bytes back.
    pub fn restore(&self) {
        self.overwrite(0, &self.packed);
    }

    fn original(&self, entry: &DirectoryEntry) -> Vec<u8> {
        self.packed[entry.offset as usize..][..entry.len as usize].to_vec()
    }

    fn overwrite(&self, offset: u64, bytes: &[u8]) {
        let file = OpenOptions::new()
            .write(true)
            .open(&self.path)
            .expect("writable");
        // Synced, so that reads past the page cache see it.
        file.write_all_at(bytes, offset)
            .and_then(|()| file.sync_all())
            .expect("writable");
    }

    /// The tokens of a new session.
    pub fn tokens(&self) -> Result<Vec<u32>, Error> {
        tokens_of(&self.engine)
    }
}

/// The greedy continuation of [`PROMPT`] in a new session.
pub fn tokens_of(engine: &Engine) -> Result<Vec<u32>, Error> {
    let mut ids = Vec::new();
    let mut finished = false;
    for item in engine
        .session()
        .generate(Request::text(PROMPT).max_tokens(TOKENS))?
        .blocking()
    {
        match item? {
            StreamItem::Token(token) => ids.push(token.id),
            StreamItem::Done(statistics) => {
                assert_eq!(statistics.tokens, ids);
                finished = true;
            }
            _ => {}
        }
    }
    assert!(
        finished,
        "a stream without an error ends with its statistics"
    );
    Ok(ids)
}

/// The greedy continuation of `ids`, and how many of them were not read again.
pub fn continuation(engine: &Engine, ids: &[u32]) -> Result<(Vec<u32>, usize), Error> {
    let mut request = Request::text("").max_tokens(CONTINUED);
    request.prompt = Prompt::Tokens(ids.to_vec());
    request.ignore_eog = true;
    let mut done = None;
    for item in engine.session().generate(request)?.blocking() {
        if let StreamItem::Done(statistics) = item? {
            done = Some(statistics);
        }
    }
    let done = done.expect("a stream without an error ends with its statistics");
    Ok((done.tokens, done.prompt.reused_tokens))
}

/// A model in memory, whose file nothing happens to.
fn healthy() -> Patient {
    let mode = Mode {
        sparsity: Sparsity::Dense,
        weight_memory: 1 << 30,
        driver: DriverChoice::Pread,
    };
    let patient = Patient::new(mode);
    // Predictors, which this mode has no use for, stay on flash.
    let kept = |&r: &Residency| matches!(r, Residency::Pinned | Residency::OnFlash);
    assert!(patient.residency.iter().all(kept));
    patient
}

/// What an engine with everything in memory says, on an intact file.
pub fn right_tokens() -> &'static [u32] {
    static TOKENS_: OnceLock<Vec<u32>> = OnceLock::new();
    TOKENS_.get_or_init(|| {
        let tokens = healthy().tokens().expect("a sound file");
        assert_eq!(tokens.len(), TOKENS);
        tokens
    })
}

/// The same for as long as the context allows.
pub fn long_text() -> &'static [u32] {
    static TOKENS_: OnceLock<Vec<u32>> = OnceLock::new();
    TOKENS_.get_or_init(|| {
        let patient = healthy();
        let request = Request::text(PROMPT).max_tokens(120);
        let stream = patient.engine.session().generate(request);
        let done = stream.and_then(forebay::TokenStream::finish);
        done.expect("a sound file").1.tokens
    })
}
