//! Names of tensors: tables that architectures put together, and what is looked up in them.

mod tables;

use crate::network::Network;
use crate::tensor::{LayerTensor as T, Stored, TensorId};
pub(super) use tables::*;

/// What a name means.
#[derive(Clone, Copy)]
pub(super) enum Role {
    /// A tensor that belongs to no layer.
    Model(TensorId),
    /// A tensor of a layer, or several in one: their rows in this order. None: it is not needed.
    Layer(&'static [T]),
    /// With what the names of layers begin.
    Layers,
}

/// How a tensor contains what its name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFile {
    /// How its elements are stored.
    pub(crate) elements: Stored,
    /// Where the rows are.
    pub(crate) form: Form,
}

/// Where the rows of one tensor or several are in a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Row after row, tensor after tensor.
    Rows,
    /// As columns.
    Columns,
    /// A share of each tensor, one after the other, for every key head, or for every expert.
    ByGroup,
    /// KUp's share, transposed, and VUp's, for every head.
    UpsByHead,
    /// It is the share of this number: a row of several, or the rows of an expert.
    Numbered(usize),
}

/// One tensor's names; `""` if a format does not have it.
#[derive(Clone, Copy)]
pub(super) struct Name {
    /// After `blk.N.` for tensors of a layer.
    gguf: &'static str,
    /// After `model.layers.N.`, or what [`Name::layers`] says, for tensors of a layer. If either name has a `*`,
    /// tensors with a number in its place have the rows, one after the other.
    hf: &'static str,
    role: Role,
    /// Whether it is of layers with a recurrent mixer; with attention, the same role may have another name.
    recurrent: bool,
    /// How checkpoints have it.
    in_hf: InFile,
    /// Where GGUF has the rows; the elements are as they are.
    in_gguf: Form,
}

/// As it is.
const PLAIN: InFile = InFile {
    elements: Stored::AsIs,
    form: Form::Rows,
};

impl Name {
    pub(super) const fn layer(gguf: &'static str, hf: &'static str, parts: &'static [T]) -> Self {
        Self {
            gguf,
            hf,
            role: Role::Layer(parts),
            recurrent: false,
            in_hf: PLAIN,
            in_gguf: Form::Rows,
        }
    }

    /// The same in layers with a recurrent mixer.
    pub(super) const fn recurrent(self) -> Self {
        Self {
            recurrent: true,
            ..self
        }
    }

    pub(super) const fn model(gguf: &'static str, hf: &'static str, id: TensorId) -> Self {
        Self {
            gguf,
            hf,
            role: Role::Model(id),
            recurrent: false,
            in_hf: PLAIN,
            in_gguf: Form::Rows,
        }
    }

    /// With what the names of layers in checkpoints begin, if not with `model.layers.`; several are alternatives.
    pub(super) const fn layers(hf: &'static str) -> Self {
        Self {
            gguf: "",
            hf,
            role: Role::Layers,
            recurrent: false,
            in_hf: PLAIN,
            in_gguf: Form::Rows,
        }
    }

    /// The same for checkpoints that store the difference from 1.
    const fn plus_one(self) -> Self {
        self.stored(Stored::MinusOne)
    }

    /// The same for checkpoints that store the elements like this.
    pub(super) const fn stored(self, elements: Stored) -> Self {
        Self {
            in_hf: InFile {
                elements,
                ..self.in_hf
            },
            ..self
        }
    }

    /// The same for checkpoints that have the rows in this form.
    pub(super) const fn in_form(self, form: Form) -> Self {
        Self {
            in_hf: InFile { form, ..self.in_hf },
            ..self
        }
    }

    /// The same for files of both formats that have a share of each tensor for every key head or expert.
    pub(super) const fn grouped(self) -> Self {
        self.in_both(Form::ByGroup)
    }

    /// The same for files of both formats that have the rows in this form.
    pub(super) const fn in_both(self, form: Form) -> Self {
        Self {
            in_gguf: form,
            ..self.in_form(form)
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

/// The two tensors that are not needed: precomputed rotary angles of old converters and old versions of transformers.
const REDUNDANT: [&str; 2] = ["attn_rot_embd.weight", "self_attn.rotary_emb.inv_freq"];

/// Parts of checkpoints for several kinds of input that have nothing to do with text.
const OTHER_PARTS: [&str; 6] = [
    "vision_tower.",
    "multi_modal_projector.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
    "visual.",
];

/// Layers that predict further tokens, in checkpoints that have them beside the model's own.
const FURTHER_LAYERS: &str = "mtp.";

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
    /// These tensors, which the file has like this.
    Tensors(Vec<TensorId>, InFile),
    /// Nothing that the network needs.
    Redundant,
}

impl Part {
    /// Whether it has a matrix for every expert or every head, one after the other.
    pub(crate) fn is_stack(&self) -> bool {
        matches!(self, Self::Tensors(ids, _) if ids.iter().all(|id| id.is_stack()))
    }
}

/// The names of one architecture's tensors in one format.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    tables: &'static [&'static [Name]],
    format: Format,
    /// Layers from this one on, if any, are not needed.
    layers: Option<usize>,
    /// By number, the tensors of layers that the network does not have.
    absent: u64,
}

impl Names {
    pub(super) fn new(tables: &'static [&'static [Name]], format: Format) -> Self {
        Self {
            tables,
            format,
            layers: None,
            absent: 0,
        }
    }

    /// The same for this network: of several roles of a name, one that it has is meant.
    pub(super) fn of_network(self, network: &Network) -> Self {
        let has = |t: T| {
            let mut layers = 0..network.n_layers();
            layers.any(|l| network.shape(TensorId::Layer(l, t)).is_some())
        };
        let absent = T::ALL.into_iter().filter(|&t| !has(t));
        let absent = absent.fold(0, |all, t| all | 1 << (t as u8));
        Self { absent, ..self }
    }

    /// The same for files with layers that are not needed behind the first `n`.
    pub(super) fn of_layers(self, n: usize) -> Self {
        Self {
            layers: Some(n),
            ..self
        }
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

    /// With what names of layers may begin.
    fn layer_prefixes(&self) -> impl Iterator<Item = &'static str> {
        let own = self.all().filter(|n| matches!(n.role, Role::Layers));
        let mut own = own.map(|n| self.of(n)).filter(|p| !p.is_empty()).peekable();
        let usual = match self.format {
            Format::Gguf => "blk.",
            Format::Hf | Format::HfParts => "model.layers.",
        };
        let usual = own.peek().is_none().then_some(usual);
        own.chain(usual)
    }

    /// The name of a role, for messages and for writing; `recurrent` tells whether its layer has a recurrent mixer.
    pub(crate) fn name_of(&self, id: TensorId, recurrent: bool) -> String {
        let named = |n: &&Name| n.is_of(id) && !self.of(n).is_empty();
        let names = || self.all().filter(named);
        let name = names().find(|n| n.recurrent == recurrent);
        let name = name.or_else(|| names().next()).map_or("", |n| self.of(n));
        match id {
            TensorId::Layer(layer, _) => {
                let prefix = self.layer_prefixes().next().unwrap_or_default();
                format!("{prefix}{layer}.{name}")
            }
            _ => name.to_owned(),
        }
    }

    /// All names of a role in GGUF that stand for the whole tensor, the one that [`Self::name_of`] would take first.
    pub(crate) fn in_gguf(&self, id: TensorId, recurrent: bool) -> Vec<String> {
        let whole = |n: &&Name| n.is_of(id) && !n.gguf.is_empty() && !n.gguf.contains('*');
        let mut names: Vec<&Name> = self.all().filter(whole).collect();
        names.sort_by_key(|n| n.recurrent != recurrent);
        let spelled = names.into_iter().map(|n| match id {
            TensorId::Layer(layer, _) => format!("blk.{layer}.{}", n.gguf),
            _ => n.gguf.to_owned(),
        });
        spelled.collect()
    }

    /// The name in the tables that `suffix`, of a layer or not, is a spelling of, with the number in place of a `*`. If
    /// there are several, the first one that the network has.
    fn find(&self, suffix: &str, of_layer: bool) -> Option<(&'static Name, Option<usize>)> {
        let spelled = |n: &'static Name| {
            let in_layer = match n.role {
                Role::Layer(_) => true,
                Role::Model(_) => false,
                Role::Layers => return None,
            };
            let number = spells(self.of(n), suffix)?;
            (in_layer == of_layer).then_some((n, number))
        };
        let mut first = None;
        for found in self.all().filter_map(spelled) {
            let absent = |t: &T| self.absent >> (*t as u8) & 1 == 1;
            match found.0.role {
                Role::Layer(parts) if parts.iter().all(absent) => first = first.or(Some(found)),
                _ => return Some(found),
            }
        }
        first
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
        if self.format != Format::Gguf && name.starts_with(FURTHER_LAYERS) {
            return Some(Part::Redundant);
        }
        let mut prefixes = self.layer_prefixes();
        let layer = prefixes.find_map(|prefix| split_layer(&name, prefix));
        if layer.zip(self.layers).is_some_and(|((n, _), end)| n >= end) {
            return Some(Part::Redundant);
        }
        let suffix = layer.map_or(name.as_ref(), |(_, suffix)| suffix);
        if layer.is_some() && REDUNDANT.contains(&suffix) {
            return Some(Part::Redundant);
        }
        let (found, number) = self.find(suffix, layer.is_some())?;
        let ids = match (found.role, layer) {
            (Role::Layer([]), _) => return Some(Part::Redundant),
            (Role::Layer(parts), Some((layer, _))) => {
                let id = |&t| TensorId::Layer(layer, t);
                parts.iter().map(id).collect()
            }
            (Role::Model(id), _) => vec![id],
            _ => return None,
        };
        Some(Part::Tensors(ids, self.in_file(found, number)))
    }

    /// How a file of this format has what `name` means; `number` is in place of a `*`.
    fn in_file(&self, name: &Name, number: Option<usize>) -> InFile {
        let in_file = match self.format {
            Format::Gguf => InFile {
                form: name.in_gguf,
                ..PLAIN
            },
            Format::Hf | Format::HfParts => name.in_hf,
        };
        InFile {
            form: number.map_or(in_file.form, Form::Numbered),
            ..in_file
        }
    }

    /// Every name leads back to its role, and no name has a role twice. If names have several roles, it leads to the
    /// first one.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let of_roles = |n: &&Name| !self.of(n).is_empty() && !matches!(n.role, Role::Layers);
        let mut seen: Vec<(String, Vec<TensorId>)> = Vec::new();
        for name in self.all().filter(of_roles) {
            let number = self.of(name).contains('*').then_some(3);
            let spelled = self.of(name).replace('*', "3");
            let prefix = self.layer_prefixes().next().unwrap_or_default();
            let (full, ids) = match name.role {
                Role::Model(id) => (spelled, vec![id]),
                Role::Layer(parts) => {
                    let ids = parts.iter().map(|&t| TensorId::Layer(17, t)).collect();
                    (format!("{prefix}17.{spelled}"), ids)
                }
                Role::Layers => continue,
            };
            let earlier = seen.iter().filter(|(name, _)| *name == full);
            assert!(earlier.clone().all(|(_, roles)| *roles != ids), "{full}");
            if earlier.count() == 0 {
                let part = match ids.is_empty() {
                    true => Part::Redundant,
                    false => Part::Tensors(ids.clone(), self.in_file(name, number)),
                };
                assert_eq!(self.part(&full), Some(part), "{full}");
            }
            for &id in &ids {
                let named = self.name_of(id, name.recurrent);
                assert!(!named.is_empty() && !named.ends_with('.'), "{full}");
            }
            seen.push((full, ids));
        }
    }
}

/// Whether `name` is a spelling of `pattern`, and the number in place of its `*`, if it has one.
fn spells(pattern: &str, name: &str) -> Option<Option<usize>> {
    let Some((before, after)) = pattern.split_once('*') else {
        return (pattern == name && !name.is_empty()).then_some(None);
    };
    let text = name.strip_prefix(before)?.strip_suffix(after)?;
    // Only the canonical spelling, as of layers.
    let number = text.parse().ok().filter(|n: &usize| n.to_string() == text);
    number.map(Some)
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
            Some(Part::Tensors(vec![fc1], PLAIN))
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
        let part = Part::Tensors(vec![fc1], PLAIN);
        assert_eq!(names.part("blk.1.fc1.weight"), Some(part));
    }

    #[test]
    fn text_models_inside_others_have_two_spellings() {
        let names = Names::new(TABLES, Format::HfParts);
        let q = Some(Part::Tensors(vec![TensorId::Layer(2, T::Q)], PLAIN));
        for prefix in ["language_model.model.", "model.language_model.", "model."] {
            let name = format!("{prefix}layers.2.self_attn.q_proj.weight");
            assert_eq!(names.part(&name), q, "{name}");
        }
        for other in [
            "vision_tower.x",
            "model.vision_tower.x",
            "multi_modal_projector.x",
            "model.embed_audio.x",
            "model.visual.x",
            "mtp.layers.0.x",
        ] {
            assert_eq!(names.part(other), Some(Part::Redundant), "{other}");
        }
        assert_eq!(names.part("video_tower.x"), None);
    }
}
