//! Texts that go on where others ended: the steps before the model put nothing in front of them.

use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper, PreTokenizerWrapper};

/// The file's normalizer on the text between added tokens.
pub(super) struct Section<'a> {
    pub normalizer: Option<&'a NormalizerWrapper>,
    /// The piece goes on where another ended: nothing is prepended to its begin.
    pub continues: bool,
}

impl Normalizer for Section<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let Some(normalizer) = self.normalizer else {
            return Ok(());
        };
        if self.continues && text.offsets_original().0 == 0 {
            return continued(normalizer, text);
        }
        normalizer.normalize(text)
    }
}

/// Applies the steps of a normalizer but those that prepend.
fn continued(
    normalizer: &NormalizerWrapper,
    text: &mut NormalizedString,
) -> tokenizers::Result<()> {
    match normalizer {
        NormalizerWrapper::Prepend(_) => Ok(()),
        NormalizerWrapper::Sequence(steps) => steps
            .as_ref()
            .iter()
            .try_for_each(|step| continued(step, text)),
        step => step.normalize(text),
    }
}

/// The same without what it puts in front of a text; `None` if it puts nothing there.
pub(super) fn without_prefix(pre_tokenizer: &PreTokenizerWrapper) -> Option<PreTokenizerWrapper> {
    match pre_tokenizer {
        PreTokenizerWrapper::Metaspace(metaspace) => {
            let mut metaspace = metaspace.clone();
            let prepends = metaspace.get_prepend_scheme() != PrependScheme::Never;
            metaspace.set_prepend_scheme(PrependScheme::Never);
            prepends.then(|| metaspace.into())
        }
        PreTokenizerWrapper::ByteLevel(bytes) => {
            let prepends = bytes.add_prefix_space;
            prepends.then(|| bytes.add_prefix_space(false).into())
        }
        PreTokenizerWrapper::Sequence(steps) => {
            let steps = steps.as_ref();
            let without: Vec<_> = steps.iter().map(without_prefix).collect();
            let prepends = without.iter().any(Option::is_some);
            let pairs = without.into_iter().zip(steps);
            let steps = pairs.map(|(without, step)| without.unwrap_or_else(|| step.clone()));
            prepends.then(|| Sequence::new(steps.collect()).into())
        }
        _ => None,
    }
}

/// Whether it puts something in front of the first text only.
pub(super) fn begins_once(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::Metaspace(metaspace) => {
            metaspace.get_prepend_scheme() == PrependScheme::First
        }
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().any(begins_once),
        _ => false,
    }
}
