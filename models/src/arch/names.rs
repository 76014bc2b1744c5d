//! Names of tensors: tables that architectures put together.

use crate::tensor::{LayerTensor as T, TensorId};

/// What a name means.
#[derive(Clone, Copy)]
pub(super) enum Role {
    /// A tensor that belongs to no layer.
    Model(TensorId),
    /// A tensor of a layer, or several in one: their rows in this order.
    Layer(&'static [T]),
}

/// One tensor's names; `""` if a format does not have it.
#[derive(Clone, Copy)]
pub(super) struct Name {
    /// After `blk.N.` for tensors of a layer.
    gguf: &'static str,
    /// After `model.layers.N.` for tensors of a layer.
    hf: &'static str,
    role: Role,
    /// Whether checkpoints store the difference from 1.
    plus_one_in_hf: bool,
}

impl Name {
    pub(super) const fn layer(gguf: &'static str, hf: &'static str, parts: &'static [T]) -> Self {
        Self {
            gguf,
            hf,
            role: Role::Layer(parts),
            plus_one_in_hf: false,
        }
    }

    const fn model(gguf: &'static str, hf: &'static str, id: TensorId) -> Self {
        Self {
            gguf,
            hf,
            role: Role::Model(id),
            plus_one_in_hf: false,
        }
    }

    /// The same for checkpoints that store the difference from 1.
    const fn plus_one(self) -> Self {
        Self {
            plus_one_in_hf: true,
            ..self
        }
    }

    fn is_of(&self, id: TensorId) -> bool {
        match (self.role, id) {
            (Role::Layer(parts), TensorId::Layer(_, t)) => parts.contains(&t),
            (Role::Model(model), id) => model == id,
            _ => false,
        }
    }
}

/// Embedding, final norm and head.
pub(super) const MODEL: [Name; 3] = [
    Name::model(
        "token_embd.weight",
        "model.embed_tokens.weight",
        TensorId::TokenEmbedding,
    ),
    Name::model(
        "output_norm.weight",
        "model.norm.weight",
        TensorId::OutputNorm,
    ),
    Name::model("output.weight", "lm_head.weight", TensorId::OutputHead),
];

/// The same for checkpoints that store the norm's difference from 1.
pub(super) const MODEL_PLUS_ONE: [Name; 3] = [MODEL[0], MODEL[1].plus_one(), MODEL[2]];

/// Norms of the blocks' inputs.
pub(super) const PRE_NORMS: [Name; 2] = [
    Name::layer("attn_norm.weight", "input_layernorm.weight", &[T::AttnNorm]),
    Name::layer(
        "ffn_norm.weight",
        "post_attention_layernorm.weight",
        &[T::FfnNorm],
    ),
];

/// The norm of both blocks' input in parallel layers.
pub(super) const SHARED_PRE_NORM: [Name; 1] = [PRE_NORMS[0]];

/// Biases of the norms of the blocks' inputs.
pub(super) const PRE_NORM_BIASES: [Name; 2] = [
    Name::layer("attn_norm.bias", "input_layernorm.bias", &[T::AttnNormBias]),
    Name::layer(
        "ffn_norm.bias",
        "post_attention_layernorm.bias",
        &[T::FfnNormBias],
    ),
];

/// Bias of the final norm.
pub(super) const MODEL_NORM_BIAS: [Name; 1] = [Name::model(
    "output_norm.bias",
    "model.norm.bias",
    TensorId::OutputNormBias,
)];

/// Norms of queries and keys.
pub(super) const QK_NORMS: [Name; 2] = [
    Name::layer("attn_q_norm.weight", "self_attn.q_norm.weight", &[T::QNorm]),
    Name::layer("attn_k_norm.weight", "self_attn.k_norm.weight", &[T::KNorm]),
];

/// Norms of the blocks' outputs.
pub(super) const POST_NORMS: [Name; 2] = [
    Name::layer(
        "post_attention_norm.weight",
        "post_attention_layernorm.weight",
        &[T::AttnPostNorm],
    ),
    Name::layer(
        "post_ffw_norm.weight",
        "post_feedforward_layernorm.weight",
        &[T::FfnPostNorm],
    ),
];

/// Norms of the blocks' inputs if there are also norms of their outputs.
pub(super) const INNER_PRE_NORMS: [Name; 2] = [
    Name::layer("attn_norm.weight", "input_layernorm.weight", &[T::AttnNorm]),
    Name::layer(
        "ffn_norm.weight",
        "pre_feedforward_layernorm.weight",
        &[T::FfnNorm],
    ),
];

/// These names for checkpoints that store the difference from 1.
pub(super) const fn plus_one(names: [Name; 2]) -> [Name; 2] {
    [names[0].plus_one(), names[1].plus_one()]
}

/// Q, K, V and O. Converters to GGUF can be told to make one tensor of the first three.
pub(super) const ATTENTION: [Name; 5] = [
    Name::layer("attn_q.weight", "self_attn.q_proj.weight", &[T::Q]),
    Name::layer("attn_k.weight", "self_attn.k_proj.weight", &[T::K]),
    Name::layer("attn_v.weight", "self_attn.v_proj.weight", &[T::V]),
    Name::layer("attn_output.weight", "self_attn.o_proj.weight", &[T::O]),
    Name::layer("attn_qkv.weight", "", &[T::Q, T::K, T::V]),
];

/// Biases of Q, K and V.
pub(super) const QKV_BIAS: [Name; 3] = [
    Name::layer("attn_q.bias", "self_attn.q_proj.bias", &[T::QBias]),
    Name::layer("attn_k.bias", "self_attn.k_proj.bias", &[T::KBias]),
    Name::layer("attn_v.bias", "self_attn.v_proj.bias", &[T::VBias]),
];

/// Gate, Up and Down, each in its own tensor.
pub(super) const FFN: [Name; 3] = [
    Name::layer("ffn_gate.weight", "mlp.gate_proj.weight", &[T::Gate]),
    Name::layer("ffn_up.weight", "mlp.up_proj.weight", &[T::Up]),
    Name::layer("ffn_down.weight", "mlp.down_proj.weight", &[T::Down]),
];

/// An FFN that is not gated: its one matrix of rows, which decides what is alive, and Down.
pub(super) const PLAIN_FFN: [Name; 2] = [
    Name::layer("ffn_up.weight", "mlp.up_proj.weight", &[T::Gate]),
    Name::layer("ffn_down.weight", "mlp.down_proj.weight", &[T::Down]),
];

/// Gate and Up in one tensor, and Down.
pub(super) const FUSED_FFN: [Name; 2] = [
    Name::layer(
        "ffn_up.weight",
        "mlp.gate_up_proj.weight",
        &[T::Gate, T::Up],
    ),
    Name::layer("ffn_down.weight", "mlp.down_proj.weight", &[T::Down]),
];

/// What PowerInfer's files have in addition.
pub(super) const POWERINFER: [Name; 3] = [
    Name::layer("ffn_down_t.weight", "", &[T::DownT]),
    Name::layer("fc1.weight", "mlp.predictor.fc1.weight", &[T::PredictorFc1]),
    Name::layer("fc2.weight", "mlp.predictor.fc2.weight", &[T::PredictorFc2]),
];

/// The two tensors that are not needed: precomputed rotary angles of old converters and old versions of transformers.
const REDUNDANT: [&str; 2] = ["attn_rot_embd.weight", "self_attn.rotary_emb.inv_freq"];

/// Parts of checkpoints for several kinds of input that have nothing to do with text.
const OTHER_PARTS: [&str; 2] = ["vision_tower.", "multi_modal_projector."];

/// A naming scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// llama.cpp's and PowerInfer's.
    Gguf,
    /// Those of transformers.
    Hf,
    /// The same for a checkpoint that has other parts besides the text model.
    HfParts,
}

/// What a tensor of a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// These tensors, row after row; if true, 1 is to be added to all elements.
    Tensors(Vec<TensorId>, bool),
    /// Nothing that the network needs.
    Redundant,
}

/// The names of one architecture's tensors in one format.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    tables: &'static [&'static [Name]],
    format: Format,
    /// Layers from this one on are not needed.
    layers: usize,
}

impl Names {
    pub(super) fn new(tables: &'static [&'static [Name]], format: Format) -> Self {
        Self {
            tables,
            format,
            layers: usize::MAX,
        }
    }

    /// The same for files with layers that are not needed behind the first `n`.
    pub(super) fn of_layers(self, n: usize) -> Self {
        Self { layers: n, ..self }
    }

    fn all(&self) -> impl Iterator<Item = &'static Name> {
        self.tables.iter().copied().flatten()
    }

    fn of(&self, name: &Name) -> &'static str {
        match self.format {
            Format::Gguf => name.gguf,
            Format::Hf | Format::HfParts => name.hf,
        }
    }

    fn layer_prefix(&self) -> &'static str {
        match self.format {
            Format::Gguf => "blk.",
            Format::Hf | Format::HfParts => "model.layers.",
        }
    }

    /// The name of a role, for messages and for writing.
    pub(crate) fn name_of(&self, id: TensorId) -> String {
        let named = |n: &&Name| n.is_of(id) && !self.of(n).is_empty();
        let name = self.all().find(named).map_or("", |n| self.of(n));
        match id {
            TensorId::Layer(layer, _) => format!("{}{layer}.{name}", self.layer_prefix()),
            _ => name.to_owned(),
        }
    }

    /// What the tensor called `name` is; `None` for one that this engine does not know.
    pub(crate) fn part(&self, name: &str) -> Option<Part> {
        let name = match self.format {
            Format::HfParts => match text_name(name) {
                Some(name) => name,
                None => return Some(Part::Redundant),
            },
            Format::Gguf | Format::Hf => name.into(),
        };
        let layer = split_layer(&name, self.layer_prefix());
        if layer.is_some_and(|(n, _)| n >= self.layers) {
            return Some(Part::Redundant);
        }
        let suffix = layer.map_or(name.as_ref(), |(_, suffix)| suffix);
        if layer.is_some() && REDUNDANT.contains(&suffix) {
            return Some(Part::Redundant);
        }
        let found = self.all().find(|n| {
            let in_layer = matches!(n.role, Role::Layer(_));
            self.of(n) == suffix && !suffix.is_empty() && in_layer == layer.is_some()
        })?;
        let ids = match (found.role, layer) {
            (Role::Layer(parts), Some((layer, _))) => {
                let id = |&t| TensorId::Layer(layer, t);
                parts.iter().map(id).collect()
            }
            (Role::Model(id), _) => vec![id],
            (Role::Layer(_), None) => return None,
        };
        let plus_one = found.plus_one_in_hf && self.format != Format::Gguf;
        Some(Part::Tensors(ids, plus_one))
    }

    /// Every name leads back to its role, and no name occurs twice.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for name in self.all().filter(|n| !self.of(n).is_empty()) {
            let ids = match name.role {
                Role::Model(id) => vec![id],
                Role::Layer(parts) => parts.iter().map(|&t| TensorId::Layer(17, t)).collect(),
            };
            let full = match name.role {
                Role::Model(_) => self.of(name).to_owned(),
                Role::Layer(_) => format!("{}17.{}", self.layer_prefix(), self.of(name)),
            };
            let plus_one = name.plus_one_in_hf && self.format != Format::Gguf;
            assert_eq!(
                self.part(&full),
                Some(Part::Tensors(ids.clone(), plus_one)),
                "{full}"
            );
            assert!(ids.iter().all(|&id| !self.name_of(id).is_empty()), "{full}");
        }
    }
}

/// The name that the tensor would have in a file of the text model alone; `None` for a tensor of
/// another part.
fn text_name(name: &str) -> Option<std::borrow::Cow<'_, str>> {
    let inside = name.strip_prefix("model.").unwrap_or(name);
    if OTHER_PARTS.iter().any(|p| inside.starts_with(p)) {
        return None;
    }
    // transformers 4 wrote `language_model.model.X`, transformers 5 writes `model.language_model.X`.
    if let Some(name) = name.strip_prefix("language_model.") {
        return Some(name.into());
    }
    match inside.strip_prefix("language_model.") {
        Some(name) => Some(format!("model.{name}").into()),
        None => Some(name.into()),
    }
}

fn split_layer<'a>(name: &'a str, prefix: &str) -> Option<(usize, &'a str)> {
    let (number, suffix) = name.strip_prefix(prefix)?.split_once('.')?;
    let layer: usize = number.parse().ok()?;
    // Only the canonical spelling: "01" or "+1" would be a second name for the same role.
    (layer.to_string() == number).then_some((layer, suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &[&[Name]] = &[&MODEL, &ATTENTION, &POWERINFER];

    #[test]
    fn a_layer_has_one_spelling() {
        let names = Names::new(TABLES, Format::Gguf);
        let fc1 = TensorId::Layer(1, T::PredictorFc1);
        assert_eq!(
            names.part("blk.1.fc1.weight"),
            Some(Part::Tensors(vec![fc1], false))
        );
        for odd in [
            "blk.01.fc1.weight",
            "blk.+1.fc1.weight",
            "blk.-1.fc1.weight",
            "blk..fc1.weight",
        ] {
            assert_eq!(names.part(odd), None, "{odd}");
        }
        assert_eq!(names.part("blk.1."), None);
        let hf = Names::new(TABLES, Format::Hf);
        assert_eq!(hf.part("model.layers.0."), None);
        assert_eq!(
            hf.part("model.layers.0.self_attn.rotary_emb.inv_freq"),
            Some(Part::Redundant)
        );
    }

    #[test]
    fn layers_behind_the_models_own_are_not_needed() {
        let names = Names::new(TABLES, Format::Gguf).of_layers(2);
        assert_eq!(
            names.part("blk.2.nextn.eh_proj.weight"),
            Some(Part::Redundant)
        );
        assert_eq!(names.part("blk.2.fc1.weight"), Some(Part::Redundant));
        let fc1 = TensorId::Layer(1, T::PredictorFc1);
        let part = Part::Tensors(vec![fc1], false);
        assert_eq!(names.part("blk.1.fc1.weight"), Some(part));
    }

    #[test]
    fn text_models_inside_others_have_two_spellings() {
        let names = Names::new(TABLES, Format::HfParts);
        let q = Some(Part::Tensors(vec![TensorId::Layer(2, T::Q)], false));
        for prefix in ["language_model.model.", "model.language_model.", "model."] {
            let name = format!("{prefix}layers.2.self_attn.q_proj.weight");
            assert_eq!(names.part(&name), q, "{name}");
        }
        for other in [
            "vision_tower.x",
            "model.vision_tower.x",
            "multi_modal_projector.x",
        ] {
            assert_eq!(names.part(other), Some(Part::Redundant), "{other}");
        }
        assert_eq!(names.part("audio_tower.x"), None);
    }
}
