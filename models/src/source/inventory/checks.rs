//! Whether a source has every tensor that the network needs, in the shape that follows from it.

use super::Inventory;
use crate::block::BlockType;
use crate::error::{ModelError, Result};
use crate::network::{Content, Network, Shape};
use crate::tensor::{LayerTensor as T, TensorId, TensorMeta};

impl Inventory {
    /// Checks that every needed tensor is there and that every shape follows from `network`.
    ///
    /// # Errors
    /// The first missing or misshapen tensor, by name.
    pub(crate) fn check(&self, network: &Network) -> Result<()> {
        for (&id, p) in &self.placed {
            if let Some(number) = p.place.gap() {
                let problem = format!("number {number} of tensors like it is missing");
                return Err(self.wrong(&p.meta.name, problem));
            }
            self.check_shape(network, id, &p.meta)?;
        }
        let predictors = self.placed.keys().any(|id| id.is_predictor());
        for content in network.contents(predictors) {
            match content {
                Content::Rows(id) | Content::Table(id) => self.require(network, id)?,
                Content::HotNeurons(layer) | Content::Neurons(layer) => {
                    self.check_ffn(network, layer)?;
                }
                Content::Experts(layer) => self.check_experts(network, layer)?,
            }
        }
        for (id, _) in network.vectors() {
            self.require(network, id)?;
        }
        let layers = 0..network.n_layers();
        layers
            .filter(|_| predictors)
            .try_for_each(|l| self.check_predictor(network, l))
    }

    fn check_ffn(&self, network: &Network, layer: usize) -> Result<()> {
        let id = |t| TensorId::Layer(layer, t);
        for &t in network.ffn(layer).row_matrices() {
            self.require(network, id(t))?;
        }
        match (self.meta(id(T::Down)), self.meta(id(T::DownT))) {
            (Some(_), Some(t)) => {
                Err(self.wrong(&t.name, "the down projection is there twice".into()))
            }
            (None, None) => self.require(network, id(T::Down)),
            _ => Ok(()),
        }
    }

    fn check_experts(&self, network: &Network, layer: usize) -> Result<()> {
        let rows = network.ffn(layer).expert_row_matrices().iter();
        rows.chain(&[T::ExpertDown])
            .try_for_each(|&t| self.require(network, TensorId::Layer(layer, t)))
    }

    fn check_predictor(&self, network: &Network, layer: usize) -> Result<()> {
        let id = |t| TensorId::Layer(layer, t);
        let fc1 = self.require_meta(network, id(T::PredictorFc1))?;
        let fc2 = self.require_meta(network, id(T::PredictorFc2))?;
        if fc1.rows == fc2.cols {
            return Ok(());
        }
        let problem = format!(
            "the predictor's rank is {} here and {} in {}",
            fc2.cols, fc1.rows, fc1.name
        );
        Err(self.wrong(&fc2.name, problem))
    }

    fn check_shape(&self, network: &Network, id: TensorId, meta: &TensorMeta) -> Result<()> {
        let Some(shape) = network.shape(id) else {
            return Err(self.out_of_place(network, id, &meta.name));
        };
        if shape.rows.is_some_and(|r| r != meta.rows) || shape.cols.is_some_and(|c| c != meta.cols)
        {
            return Err(self.misshapen(meta, shape));
        }
        match id.is_vector() {
            true => self.check_plain(meta),
            false => Ok(()),
        }
    }

    /// Checks that a vector consists of numbers.
    pub(super) fn check_plain(&self, meta: &TensorMeta) -> Result<()> {
        match meta.block {
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => Ok(()),
            block => Err(ModelError::unsupported(
                self.path_of(&meta.name),
                &meta.name,
                format!("a {block} vector"),
                "norms, biases, factors and the weights of convolutions are read as F32, F16 or BF16",
            )),
        }
    }

    /// The error for a tensor in a role that the network does not have.
    pub(super) fn out_of_place(&self, network: &Network, id: TensorId, name: &str) -> ModelError {
        let problem = match id {
            TensorId::Layer(layer, _) if layer >= network.n_layers() => {
                format!("the model has only {} layers", network.n_layers())
            }
            TensorId::Layer(_, t) if t.is_bias() => {
                "a bias where the model has none elsewhere".into()
            }
            _ => "a tensor where the configuration asks for none".into(),
        };
        self.wrong(name, problem)
    }

    pub(super) fn misshapen(&self, meta: &TensorMeta, shape: Shape) -> ModelError {
        let show = |n: Option<usize>| n.map_or("any".into(), |n| n.to_string());
        let problem = format!(
            "{} rows of {} elements where the configuration asks for {} rows of {}",
            meta.rows,
            meta.cols,
            show(shape.rows),
            show(shape.cols)
        );
        self.wrong(&meta.name, problem)
    }

    fn require(&self, network: &Network, id: TensorId) -> Result<()> {
        self.require_meta(network, id).map(drop)
    }

    fn require_meta(&self, network: &Network, id: TensorId) -> Result<&TensorMeta> {
        self.meta(id).ok_or_else(|| {
            let recurrent = match id {
                TensorId::Layer(layer, _) => network.mixer(layer).is_recurrent(),
                _ => false,
            };
            let name = self.names.name_of(id, recurrent);
            self.wrong(&name, "the tensor is missing".into())
        })
    }
}
