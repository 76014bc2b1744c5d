//! How much is kept of the past: the KV cache's format, pools and blocks, for one core and for all, and recurrent
//! states.

use forebay_models::kv_type::KvType;
use forebay_models::network::{Attention, KvOrigin, Network};

use super::share::Share;
use crate::kernels::Turns;
use crate::kernels::kv::{BLOCK, KvLayer, KvShape};
use crate::sequences::{PoolShape, STATES_OF_SEQUENCE};

/// What there is room for. Layers that see equally far back share a pool: a sequence has the same blocks in
/// all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvRoom {
    /// Number format.
    pub kind: KvType,
    /// Maximum positions of one sequence.
    pub context: usize,
    /// First the pool of layers that see everything, if there are any, then one for each length of
    /// sliding window.
    pub pools: Vec<PoolShape>,
    /// Which of the pools each layer with attention uses, in their order.
    pub pool_of: Vec<usize>,
    /// Recurrent states, each of all layers that have one; 0 if none has.
    pub states: usize,
}

impl KvRoom {
    /// Room for `sequences` sequences of up to `context` positions each, in steps of up to `max_tokens` tokens.
    pub fn new(
        network: &Network,
        kind: KvType,
        context: usize,
        max_tokens: usize,
        sequences: usize,
    ) -> Self {
        // A window as long as the context cuts nothing off.
        let windows = network.attentions().map(|a| a.window);
        let of_layers: Vec<Option<usize>> = windows.map(|w| w.filter(|&w| w < context)).collect();
        let mut windows = of_layers.clone();
        windows.sort_unstable();
        windows.dedup();
        let pool = |&window: &Option<usize>| {
            let blocks = PoolShape::blocks_of_sequence(window, context, max_tokens);
            PoolShape {
                blocks: blocks.saturating_mul(sequences),
                window,
            }
        };
        let pool_of = |window| windows.partition_point(|w| w < window);
        Self {
            kind,
            context,
            pools: windows.iter().map(pool).collect(),
            pool_of: of_layers.iter().map(pool_of).collect(),
            states: match network.is_recurrent() {
                true => sequences.saturating_mul(STATES_OF_SEQUENCE),
                false => 0,
            },
        }
    }

    /// The shape of the cache of core `rank` of `threads`. Two cores that share a key/value head both store it: no part
    /// of the cache is passed between cores.
    pub fn shape(&self, network: &Network, rank: usize, threads: usize) -> KvShape {
        // A layer that attends over another's keys and values stores none.
        self.shape_of(network, (rank, threads), |a| a.k_rows() > 0)
    }

    /// The heads of layers that `counts` tells.
    fn shape_of(
        &self,
        network: &Network,
        (rank, threads): (usize, usize),
        counts: impl Fn(&Attention) -> bool,
    ) -> KvShape {
        let layer = |(attention, &pool): (&Attention, &usize)| {
            let heads = Share::new(attention, rank, threads).kv_heads.len();
            KvLayer {
                heads: if counts(attention) { heads } else { 0 },
                head_dim: attention.head_dim,
                value_dim: attention.value_dim(),
                pool,
            }
        };
        KvShape {
            kind: self.kind,
            layers: network.attentions().zip(&self.pool_of).map(layer).collect(),
            pools: self.pools.iter().map(|pool| pool.blocks).collect(),
        }
    }

    /// The rotation of the bias that is not stored with keys, if they become bytes and have one: it can be much larger
    /// than what makes keys differ. A norm of keys removes it.
    pub(super) fn bias_rope(&self, network: &Network, a: &Attention) -> Option<usize> {
        let is_plain = a.qkv_bias && a.qk_norm.is_none() && a.kv == KvOrigin::Own;
        // A layer that attends over another's keys would need that one's bias; no known model has both.
        let mut attentions = network.attentions();
        let are_shared = attentions.any(|a| matches!(a.kv, KvOrigin::Layer(_)));
        let subtracts = self.kind == KvType::Q8 && is_plain && !are_shared;
        a.rope.filter(|_| subtracts)
    }

    /// Bytes of the caches of all cores, and of what reads them, for memory budgets.
    pub fn bytes(&self, network: &Network, threads: usize) -> usize {
        self.bytes_with(network, threads, KvShape::bytes)
    }

    /// Bytes of these that are committed at most while one sequence has never had more than `positions`.
    pub fn bytes_written(&self, network: &Network, threads: usize, positions: usize) -> usize {
        let blocks = positions.div_ceil(BLOCK);
        self.bytes_with(network, threads, |shape| shape.bytes_written(blocks))
    }

    fn bytes_with(
        &self,
        network: &Network,
        threads: usize,
        of_cache: impl Fn(&KvShape) -> usize,
    ) -> usize {
        let ropes = network.ropes.iter().enumerate();
        let turns = ropes.filter(|&(i, _)| {
            let mut attentions = network.attentions();
            attentions.any(|a| self.bias_rope(network, a) == Some(i))
        });
        let turns = turns.map(|(_, rope)| Turns::bytes(rope.rotary_dim / 2, self.context));
        let turns = turns.fold(0, usize::saturating_add);
        let caches = (0..threads).map(|rank| of_cache(&self.shape(network, rank, threads)));
        caches.fold(0, |sum, cache| {
            sum.saturating_add(cache).saturating_add(turns)
        })
    }

    /// Bytes that all layers together go through for a token that sees everything, for estimates: layers that share
    /// keys and values read the same ones.
    pub fn bytes_read(&self, network: &Network, threads: usize) -> usize {
        let of_core = |rank| self.shape_of(network, (rank, threads), |_| true).bytes();
        (0..threads).map(of_core).fold(0, usize::saturating_add)
    }
}
