//! The widest of what a network computes, for buffers that serve all layers.

use super::{Attention, MOST_GUESSED_LAYERS, Network};

impl Network {
    /// Maximum number of columns of the input of a matrix, including the predictors', of which the largest has `rank`.
    pub fn widest_input(&self, rank: usize) -> usize {
        let own = self.d_model.max(self.input_width());
        let mixers = self.widest_mixer_out().max(self.widest_query_rank());
        let others = mixers.max(self.widest_routing());
        own.max(others).max(rank)
    }

    /// Maximum number of columns of what the heads or channels of a mixer yield.
    pub fn widest_mixed(&self) -> usize {
        self.widest_mixer_out().max(self.widest_latents())
    }

    /// Number of neurons in the layer that has the most.
    pub fn widest_ffn(&self) -> usize {
        let widths = self.layers.iter().map(|l| l.ffn.body.d_ff);
        widths.max().unwrap_or(0)
    }

    /// Maximum number of columns of the results of a mixer's input matrices: of Q, K and V together.
    pub fn widest_mixer_in(&self) -> usize {
        let widths = self.layers.iter().map(|l| l.mixer.body.in_dim());
        widths.max().unwrap_or(0)
    }

    /// Maximum number of columns of all heads or channels of a layer.
    pub fn widest_mixer_out(&self) -> usize {
        let widths = self.layers.iter().map(|l| l.mixer.body.out_dim());
        widths.max().unwrap_or(0)
    }

    /// Maximum number of columns of the latents that all heads of a layer mix; 0 without latent attention.
    pub fn widest_latents(&self) -> usize {
        let latent = self.attentions().filter(|a| a.latent.is_some());
        latent.map(Attention::mixed_dim).max().unwrap_or(0)
    }

    /// Maximum number of columns of matrices that have one for each head; 0 without latent attention.
    pub fn widest_head_input(&self) -> usize {
        let latents = self.attentions().filter_map(|a| a.latent);
        let widths = latents.map(|latent| latent.plain_dim.max(latent.rank));
        widths.max().unwrap_or(0)
    }

    /// Maximum number of columns of compressed queries; 0 if there are none.
    pub fn widest_query_rank(&self) -> usize {
        let ranks = self.attentions().filter_map(|a| a.latent?.query_rank);
        ranks.max().unwrap_or(0)
    }

    /// Maximum number of columns of a router's results; 0 without experts.
    pub fn widest_router(&self) -> usize {
        let widths = (0..self.n_layers()).filter_map(|l| Some(self.experts(l)?.router_width()));
        widths.max().unwrap_or(0)
    }

    /// Maximum number of columns of a router's results and those of the next layers', if they are guessed.
    pub fn widest_routing(&self) -> usize {
        let width = |l| {
            let next = (1..=MOST_GUESSED_LAYERS).map_while(|later| self.guessed_at(l, later));
            let next: usize = next.map(|next| next.count).sum();
            Some(self.experts(l)?.router_width() + next)
        };
        (0..self.n_layers()).filter_map(width).max().unwrap_or(0)
    }
}
