//! How much of a matrix was computed.

/// Numbers of neurons, and of products of neurons and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Computed {
    /// Neurons, for any token.
    pub neurons: u64,
    /// Products of a neuron and a token.
    pub products: u64,
}

impl Computed {
    /// Counts a cluster.
    pub fn add(&mut self, neurons: usize, products: usize) {
        self.neurons += neurons as u64;
        self.products += products as u64;
    }

    /// The sum of both counts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            neurons: self.neurons + other.neurons,
            products: self.products + other.products,
        }
    }
}
