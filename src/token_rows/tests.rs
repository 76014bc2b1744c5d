//! Embedding rows against the source's, from memory and from flash.

#[path = "../../models/tests/gguf_writer/mod.rs"]
mod gguf_writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_actors::fault::FaultCell;
use forebay_actors::io::{DriverChoice, open_driver};
use forebay_actors::load::load_resident;
use forebay_actors::memory::WeightMemory;
use forebay_actors::runtime::{Runtime, RuntimeOptions};
use forebay_actors::shared::NeuronOptions;
use forebay_models::block::{BlockType, dequantize};
use forebay_models::bundle::{Bundle, PackOptions};
use forebay_models::kv_type::KvType;
use forebay_models::source;
use forebay_models::tensor::TensorId;
use forebay_plans::fewer_experts::FewerExperts;
use forebay_plans::on_device::OnDevice;
use forebay_plans::preload::SEQUENTIAL_GAIN;
use forebay_plans::program::compile;
use forebay_plans::residency::{
    Pipeline, Residency, ResidencyRequest, STREAM_WINDOW, Sparsity, all_pinned_bytes, decide,
    least_weight_bytes, table_bytes,
};
use forebay_queues::lending::Lending;
use forebay_stages::attention::KvRoom;
use forebay_stages::boards::Boards;
use forebay_stages::kernels::KernelTable;
use forebay_stages::rule::Rule;
use forebay_stages::weights::Resident;
use gguf_writer::Model;

use super::*;

/// More tokens than there are buffers.
const BATCH: usize = 100;

/// A folder that is gone when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// As little as possible.
    Least,
    /// What every token needs.
    Weights,
    /// Tables, too.
    All,
}

/// A graph over the packed model `path`.
fn start(path: &Path, kept: Kept) -> (Runtime, TokenRows) {
    let bundle = Bundle::open(path).expect("a sound file");
    let request = ResidencyRequest {
        weight_bytes: match kept {
            Kept::Least => least_weight_bytes(&bundle, 1, Sparsity::Dense),
            Kept::Weights => all_pinned_bytes(&bundle, Sparsity::Dense),
            Kept::All => all_pinned_bytes(&bundle, Sparsity::Dense) + table_bytes(&bundle),
        },
        threads: 1,
        sparsity: Sparsity::Dense,
        pipeline: Pipeline::Cluster,
        stream_window: STREAM_WINDOW,
        neuron_cache: 0,
    };
    let plan = decide(&bundle, &request).expect("enough memory");
    let programs = vec![compile(
        &bundle,
        &plan,
        0,
        NeuronOptions::default().program(false),
    )];
    let mut memory = WeightMemory::carve(&bundle, &plan, &programs, BATCH).expect("memory");
    let open = || {
        open_driver(path, DriverChoice::Pread, 8, &[])
            .expect("a driver")
            .0
    };
    let slots = &mut memory.resident;
    load_resident(open().as_mut(), &bundle, &plan, slots, &mut |_| {}).expect("read");
    let network = &bundle.meta.network;
    let shared = Arc::new(Shared {
        rule: Rule::new(Sparsity::Dense, network.ffn(0).activation, Vec::new()),
        neurons: NeuronOptions::default(),
        fewer: FewerExperts::default(),
        sequential_gain: SEQUENTIAL_GAIN,
        observer: None,
        device: None,
        boards: Boards::new(network, 1, BATCH, 1, 0),
        lending: Lending::new(1),
        resident: Arc::new(Resident::new(memory.resident)),
        kernels: KernelTable::best(),
        faults: FaultCell::default(),
        kv: KvRoom::new(network, KvType::default(), BATCH, BATCH, 1),
        max_batch: BATCH,
        threads: 1,
        plan,
        on_device: OnDevice::default(),
        bundle,
    });
    let rows = TokenRows::new(&shared, memory.rows, Vec::new());
    let options = RuntimeOptions::default();
    let graph = Runtime::start(shared, programs, memory.cores, open(), None, &options);
    (graph.expect("threads"), rows)
}

/// What `tokens` embed to must be the source's rows.
fn check(block: BlockType, tied_head: bool, kept: Kept) {
    let name = format!(
        "forebay-embed-{}-{block}-{tied_head}-{kept:?}",
        std::process::id()
    );
    let folder = Folder(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&folder.0).expect("a writable folder");
    let vocab = 5003;
    let model = Model {
        vocab,
        tied_head,
        block,
        ..Model::default()
    };
    let source = model.writer().write(&folder.0, "model.gguf");
    let target = folder.0.join("model.fbay");
    crate::packed::convert(&source, &target, &PackOptions::default(), &mut |_| {}).expect("packed");
    let source = source::open(&source).expect("a sound source");
    let meta = source.meta(TensorId::TokenEmbedding).expect("an embedding");

    let (mut graph, mut rows) = start(&target, kept);
    let shared = Arc::clone(graph.shared());
    let tables = shared.bundle.clusters.iter().zip(&shared.plan.residency);
    let mut tables = tables.filter(|(e, _)| e.layer().is_none());
    let in_memory = tables.any(|(_, &r)| r == Residency::Pinned);
    let is_kept = kept != Kept::Least;
    assert!(
        is_kept == in_memory,
        "the head is not where it is to be tested"
    );
    let has_rows = is_kept && tied_head || kept == Kept::All;
    // From all clusters, with the last row, neighbours and repetitions.
    let mut tokens: Vec<u32> = (0..BATCH - 3).map(|i| (i * 1237 % vocab) as u32).collect();
    tokens.extend([vocab as u32 - 1, 0, vocab as u32 - 1]);
    let mut out = vec![f32::NAN; BATCH * meta.cols];
    for (i, tokens) in [&tokens[..], &tokens[..1], &tokens[BATCH - 33..]]
        .into_iter()
        .enumerate()
    {
        let out = &mut out[..tokens.len() * meta.cols];
        let reads = |graph: &Runtime| graph.io_counters().reads;
        let before = reads(&graph);
        if i == 2 {
            let link = graph.rows().expect("a running graph");
            rows.look_ahead(&shared, link, tokens, i);
        }
        let ahead = reads(&graph);
        let link = graph.rows().expect("a running graph");
        rows.show(&shared, link, tokens, i).expect("sound rows");
        let shown = reads(&graph);
        // Each row is read once, ahead or not, if it is on flash.
        assert_eq!(shown == before, has_rows);
        assert!(i != 2 || shown == ahead);
        shared.boards.input.read(0, out);
        for (&token, row) in tokens.iter().zip(out.chunks_exact(meta.cols)) {
            let (mut bytes, mut expected) = (vec![0; meta.row_bytes()], vec![0.0; meta.cols]);
            let at = token as usize * meta.row_bytes();
            source
                .read(TensorId::TokenEmbedding, at, &mut bytes)
                .expect("a row");
            dequantize(meta.block, &bytes, &mut expected);
            assert_eq!(row, expected, "token {token} in {block}, kept: {kept:?}");
        }
    }
}

#[test]
fn rows_of_a_tied_head_are_the_sources() {
    for block in [BlockType::F16, BlockType::Q4_0, BlockType::Q8_0] {
        check(block, true, Kept::Weights);
        check(block, true, Kept::Least);
    }
}

#[test]
fn rows_of_a_separate_embedding_are_the_sources() {
    check(BlockType::Q5_1, false, Kept::Weights);
    check(BlockType::Q5_1, false, Kept::All);
    check(BlockType::F16, false, Kept::Least);
}
