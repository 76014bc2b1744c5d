//! Memory of the jobs for a device, for the budget.

use forebay_devices::{DeviceJob, FfnCluster, Group, PanelRange, Routing, SegmentId, Work};
use forebay_models::bundle::{Bundle, MAX_NEURONS};
use forebay_models::network::{Activation, Content};
use forebay_models::tensor::TensorId;
use forebay_plans::program::Item;
use forebay_plans::uploads::{MAX_PLACES, UploadCosts};
use forebay_stages::kernels::Activations;

/// While the device's thread copies from one carrier, the core fills the other.
pub(super) const CARRIERS: usize = 2;
/// Bytes of what a driver keeps besides: tables of panels.
const DRIVERS_OWN: u64 = 16 << 20;
/// Bytes of a job's results of parts, where all clusters have the same tokens.
const PARTIALS: usize = 8 << 20;
/// Bytes of what a job brings for each cluster of an expert: where its panels are.
const TABLES: usize = 4 << 10;
/// Of weights other than experts', tables that a driver keeps take this part: 16 bytes for every panel, with the
/// clusters of a token and of a prompt.
const TABLES_PART: u64 = 256;
/// Jobs that are in flight or behind.
pub(super) const JOBS: u64 = 2;

/// Sizes of the largest jobs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobRoom {
    /// Tokens, and columns of their input.
    pub batch: usize,
    pub columns: usize,
    /// Results of rows, of all tokens.
    pub rows: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Clusters of a phase's neurons, and their neurons.
    pub clusters: usize,
    pub neurons: usize,
    /// Of these neurons, those that one token uses.
    pub used: usize,
    /// In a phase with experts, how many groups of clusters a token uses: its experts, and what all tokens use.
    pub groups: usize,
    /// Clusters of a phase's rows.
    pub row_clusters: usize,
}

impl JobRoom {
    /// Room for all that a phase of a model can ask for, in steps of `batch` tokens of which `max_logits` want logits.
    /// Predictors in use have at most `rank`.
    pub fn new(bundle: &Bundle, (batch, max_logits): (usize, usize), rank: usize) -> Self {
        let network = &bundle.meta.network;
        let columns = network.widest_input(rank);
        let d_model = network.d_model;
        let mixers = network.widest_mixer_in().max(d_model).max(rank);
        let others = network.widest_routing().max(network.inputs_width());
        let rows = (batch * mixers.max(others)).max(max_logits * network.vocab_size);
        let layers = network.n_layers();
        let (mut neurons, mut of_rows) = (vec![(0, 0); layers], vec![0; layers + 1]);
        let mut used = vec![0.0; layers];
        for entry in &bundle.clusters {
            match entry.content {
                Content::HotNeurons(layer) | Content::Neurons(layer) | Content::Experts(layer) => {
                    neurons[layer].0 += 1;
                    neurons[layer].1 += entry.count as usize;
                    used[layer] += f64::from(entry.count) * network.used_share(entry.content);
                }
                Content::Rows(TensorId::Layer(layer, _)) => of_rows[layer] += 1,
                Content::Rows(_) | Content::Table(_) => of_rows[layers] += 1,
            }
        }
        Self {
            batch,
            columns,
            rows,
            d_model,
            clusters: neurons.iter().map(|l| l.0).max().unwrap_or(0),
            neurons: neurons.iter().map(|l| l.1).max().unwrap_or(0),
            used: used.into_iter().fold(0.0, f64::max).ceil() as usize,
            groups: (0..layers)
                .filter_map(|layer| Some(1 + network.experts(layer)?.used))
                .max()
                .unwrap_or(0),
            row_clusters: of_rows.into_iter().max().unwrap_or(0),
        }
    }

    /// The same for jobs of at most `places` streamed clusters.
    pub fn of_places(self, places: usize) -> Self {
        Self {
            columns: self.d_model,
            clusters: places,
            neurons: places * MAX_NEURONS,
            used: places * MAX_NEURONS,
            groups: self.groups.min(1),
            ..self
        }
    }

    fn job(self, work: Work) -> DeviceJob {
        DeviceJob {
            id: 0,
            segment: SegmentId::NONE,
            tokens: Activations::new(self.batch, self.columns),
            work,
        }
    }

    /// A job for rows, with room for the largest.
    pub fn empty_rows(self) -> DeviceJob {
        let panels = Vec::with_capacity(self.most_items());
        let out = Vec::with_capacity(self.rows);
        self.job(Work::Rows { panels, out })
    }

    /// A job for a share of an FFN, likewise.
    pub fn empty_share(self) -> DeviceJob {
        self.job(Work::Share {
            clusters: Vec::with_capacity(self.clusters),
            activation: Activation::Silu,
            biases: [0; 2].map(|_| Vec::with_capacity(self.neurons)),
            routing: Routing {
                groups: Vec::with_capacity(self.of_experts(self.clusters)),
                tokens: Vec::with_capacity(self.groups * self.batch),
                weights: Vec::with_capacity(self.groups * self.batch),
            },
            out: Vec::with_capacity(self.batch * self.d_model),
        })
    }

    /// Most clusters of a job.
    pub fn most_items(&self) -> usize {
        self.clusters.max(self.row_clusters)
    }

    /// `n` if there are experts.
    fn of_experts(&self, n: usize) -> usize {
        if self.groups > 0 { n } else { 0 }
    }

    /// Bytes of a job of a share.
    fn share_bytes(&self) -> usize {
        let biases = 2 * self.neurons * size_of::<f32>();
        let tokens = self.groups * self.batch * (size_of::<u32>() + size_of::<f32>());
        let groups = self.of_experts(self.clusters) * size_of::<Group>();
        Activations::bytes_for(self.batch, self.columns)
            + self.batch * self.d_model * size_of::<i64>()
            + biases
            + tokens
            + groups
            + self.clusters * size_of::<FfnCluster>()
    }

    /// Bytes of the buffers that a driver has for jobs of any kind: what they bring, also on its way, gates and ups,
    /// hidden values, results of parts, results here and there.
    fn buffers(&self) -> u64 {
        let results = self.rows * size_of::<f32>();
        let shares = self.batch * self.d_model * size_of::<i64>();
        // A block of 32 values is 48 bytes.
        let tokens = self.batch * self.columns / 2 * 3;
        let neurons = self.batch * self.used * (2 * size_of::<f32>() + 2);
        let partials = match self.groups {
            0 => PARTIALS.min(shares * self.clusters),
            groups => shares * groups,
        };
        let given = tokens + self.of_experts(self.clusters) * TABLES;
        JOBS * (2 * given + neurons + partials + 2 * results.max(shares)) as u64
    }

    /// Bytes of both jobs: for rows, and for a share.
    fn bytes(&self) -> usize {
        let places =
            self.row_clusters * size_of::<PanelRange>() + 2 * self.most_items() * size_of::<Item>();
        Activations::bytes_for(self.batch, self.columns)
            + self.rows * size_of::<f32>()
            + self.share_bytes()
            + places
    }
}

/// Bytes that jobs take of a device's own memory, in steps of `batch` tokens of which `max_logits` want logits, with
/// what its driver keeps for those that come again. Predictors in use have at most `rank`.
pub fn job_memory(bundle: &Bundle, (batch, max_logits): (usize, usize), rank: usize) -> u64 {
    let room = JobRoom::new(bundle, (batch, max_logits), rank);
    room.buffers() + DRIVERS_OWN
}

/// What a window for streamed clusters takes, in steps of `batch` tokens, with a device that shares the memory or not.
pub fn upload_costs(bundle: &Bundle, batch: usize, shares_memory: bool) -> UploadCosts {
    let job = JobRoom::new(bundle, (batch, 0), 0).of_places(MAX_PLACES);
    UploadCosts {
        jobs: job.share_bytes() as u64,
        carriers: CARRIERS,
        // Where memory is shared, the driver's own copies are in it.
        copies: 1 + u64::from(shares_memory),
    }
}

/// Bytes of the jobs for a device, and of places of clusters on it, in steps of `batch` tokens of which `max_logits`
/// want logits; if it shares the memory, with its driver's buffers. Predictors in use have at most `rank`.
pub fn boards_bytes(
    bundle: &Bundle,
    (batch, max_logits): (usize, usize),
    rank: usize,
    shares_memory: bool,
) -> u64 {
    let places = size_of::<FfnCluster>() + 2 * size_of::<Item>();
    let room = JobRoom::new(bundle, (batch, max_logits), rank);
    let buffers = match shares_memory {
        true => room.buffers() + kept_tables(bundle),
        false => 0,
    };
    (room.bytes() + bundle.clusters.len() * places) as u64 + buffers
}

/// Bytes of the tables that a driver keeps.
fn kept_tables(bundle: &Bundle) -> u64 {
    let entries = bundle.clusters.iter();
    let others = entries.filter(|e| !matches!(e.content, Content::Experts(_)));
    others.map(|e| u64::from(e.len)).sum::<u64>() / TABLES_PART
}
