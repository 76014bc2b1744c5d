//! Recording which experts each token of a text uses.

use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_models::network::Network;
use forebay_stages::frame::Observer;
use parking_lot::Mutex;

use crate::profiles::{LayerRoutes, Routes};

/// Records the experts of all layers.
#[derive(Debug)]
pub(super) struct RouteWatch {
    /// The token at position 0 of the current text.
    base: AtomicUsize,
    tokens: usize,
    text: usize,
    layers: Vec<Mutex<LayerRoutes>>,
}

impl RouteWatch {
    /// For `tokens` tokens in texts of `text`.
    pub fn new(network: &Network, tokens: usize, text: usize) -> Self {
        let routes = Routes::new(network, tokens, text);
        Self {
            base: AtomicUsize::new(0),
            tokens,
            text,
            layers: routes.layers.into_iter().map(Mutex::new).collect(),
        }
    }

    /// A new text begins with token `base`.
    pub fn begin(&self, base: usize) {
        self.base.store(base, Ordering::Release);
    }

    /// The number of the token at `position` of the current text.
    pub fn token(&self, position: usize) -> usize {
        self.base.load(Ordering::Acquire) + position
    }

    /// Takes out what was recorded.
    pub fn take(&self) -> Routes {
        let none = || LayerRoutes::new(None, 0);
        let layers = self.layers.iter();
        Routes {
            layers: layers
                .map(|l| std::mem::replace(&mut *l.lock(), none()))
                .collect(),
            tokens: self.tokens,
            text: self.text,
        }
    }
}

impl Observer for RouteWatch {
    fn bytes(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| {
            let layer = layer.lock();
            size_of_val(&*layer.ids) + size_of_val(&*layer.weights)
        });
        layers.sum::<usize>() as u64
    }

    fn routed(&self, layer: usize, position: usize, chosen: &[(u32, f32)]) {
        let mut layer = self.layers[layer].lock();
        let first = self.token(position) * layer.used;
        // What comes after the last token that is recorded is left out.
        let places = first..layer.ids.len();
        for (place, &(expert, weight)) in places.zip(chosen) {
            (layer.ids[place], layer.weights[place]) = (expert as u16, weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_models::network::{Experts, Router, Scores};

    use super::*;

    #[test]
    fn routes_are_kept_where_they_belong() {
        let mut network = crate::learn::tests::sizes().network();
        network.layers[1].ffn.body.experts = Some(Experts {
            count: 5,
            used: 2,
            d_ff: 16,
            bias: false,
            router: Router {
                before_layer: false,
                scores: Scores::Softmax,
                bias: false,
                selection_bias: false,
                groups: None,
                normalised: true,
                scale: 1.0,
            },
            shared_gate: false,
        });
        let watch = RouteWatch::new(&network, 3, 2);
        watch.routed(1, 0, &[(4, 0.75), (0, 0.25), (1, 0.5), (2, 0.5)]);
        watch.begin(2);
        watch.routed(1, 0, &[(3, 1.0), (1, 0.0), (2, 0.5), (0, 0.5)]);
        let routes = watch.take();
        assert!(routes.layers[0].ids.is_empty());
        assert_eq!(routes.layers[1].ids, [4, 0, 1, 2, 3, 1]);
        assert_eq!(routes.layers[1].weights, [0.75, 0.25, 0.5, 0.5, 1.0, 0.0]);
    }
}
