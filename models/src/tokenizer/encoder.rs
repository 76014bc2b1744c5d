//! The tokenizer itself.

use std::path::Path;
use std::sync::Arc;

use super::bpe::ByteLevelBpe;
use super::detokenizer::{Detokenizer, TextPosition};
use super::hf::HfEncoder;
use super::merge::{BYTES_PER_SYMBOL, Merger};
use super::pre_tokenizer::PreTokenizer;
use super::room::{EncodingMemory, Room};
use super::special::{Fragment, Names, SpecialTokens};
use super::spm::SentencePiece;
use super::vocabulary::{TokenKind, Vocabulary};
use super::{TokenizerModel, TokenizerSpec};
use crate::error::{ModelError, Result};
use crate::limits::{MAX_MERGES, MAX_TOKENS};

/// What messages call a tokenizer, whose file is not known here.
const TOKENIZER: &str = "tokenizer";

/// How a text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Begin with BOS if the model wants one (and the text does not bring its own).
    pub add_bos: bool,
    /// Turn the names of control tokens in the text, such as `<|im_end|>`, into these tokens. Off
    /// for text from strangers, who could otherwise end the user's turn.
    pub parse_special: bool,
}

/// Text to tokens and back. Cheap to share behind an `Arc`; all methods take `&self`.
#[derive(Debug)]
pub struct Tokenizer {
    pub(super) vocab: Arc<Vocabulary>,
    encoder: Encoder,
    pub(super) special: SpecialTokens,
    bos: Option<u32>,
    add_bos: bool,
    /// Sorted.
    eog: Vec<u32>,
}

#[derive(Debug)]
enum Encoder {
    Bpe(ByteLevelBpe),
    Spm(SentencePiece),
    Hf(Box<HfEncoder>),
}

impl Tokenizer {
    /// Builds the tokenizer. The specification is taken apart on the way, so that vocabulary and
    /// merges are not in memory twice; a GGUF vocabulary then takes about 40 bytes per token.
    ///
    /// # Errors
    /// A specification that contradicts itself or asks for something unknown.
    pub fn from_spec(spec: TokenizerSpec) -> Result<Self> {
        let TokenizerSpec {
            model,
            bos,
            mut eog,
            add_bos,
        } = spec;
        let path = Path::new(TOKENIZER);
        let (vocab, encoder) = match model {
            TokenizerModel::HfJson(json) => {
                let (vocab, encoder) = HfEncoder::build(&json)?;
                (vocab, Encoder::Hf(Box::new(encoder)))
            }
            TokenizerModel::ByteLevelBpe {
                pre,
                tokens,
                types,
                merges,
            } => {
                check_sizes(&tokens, &[("types", types.len())])?;
                check_merges(&merges)?;
                let pre = PreTokenizer::parse(&pre)
                    .ok_or_else(|| PreTokenizer::unknown(path, "pre", &pre))?;
                let (vocab, bpe) = ByteLevelBpe::build(pre, tokens, &types, merges, path)?;
                (vocab, Encoder::Bpe(bpe))
            }
            TokenizerModel::SentencePiece {
                tokens,
                scores,
                types,
                add_space_prefix,
                swallows_space,
            } => {
                check_sizes(&tokens, &[("types", types.len()), ("scores", scores.len())])?;
                let (mut vocab, spm) =
                    SentencePiece::by_scores(tokens, &scores, &types, add_space_prefix, path)?;
                if swallows_space {
                    vocab.swallow_space();
                }
                (vocab, Encoder::Spm(spm))
            }
            TokenizerModel::SentencePieceMerges {
                tokens,
                types,
                merges,
            } => {
                check_sizes(&tokens, &[("types", types.len())])?;
                check_merges(&merges)?;
                let (vocab, spm) = SentencePiece::by_merges(tokens, &types, merges, path)?;
                (vocab, Encoder::Spm(spm))
            }
        };
        if let Some(bos) = bos.filter(|&bos| add_bos && vocab.kind(bos).is_none()) {
            let problem = format!("token {bos} of a vocabulary of {}", vocab.len());
            return Err(ModelError::damaged(path, "bos", problem));
        }
        eog.sort_unstable();
        Ok(Self {
            special: SpecialTokens::of(&vocab),
            vocab: Arc::new(vocab),
            encoder,
            bos,
            add_bos,
            eog,
        })
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// A run of more than 64 KiB (16 KiB where the tokenizer came as a `tokenizer.json`) without a place to cut, such
    /// as one letter over and over; a text that the `tokenizers` crate refuses.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        self.encode_up_to(text, options, usize::MAX)
    }

    /// The first tokens of `text`. If it has more than `most`, the rest of it is not encoded, and more than `most`
    /// are returned. The text is encoded piece by piece, within [`EncodingMemory::bytes`] of `most`; the tokens do
    /// not depend on the pieces.
    ///
    /// # Errors
    /// As [`Self::encode`], with shorter runs if `most` is below 16384, down to an eighth.
    pub fn encode_up_to(
        &self,
        text: &str,
        options: EncodeOptions,
        most: usize,
    ) -> Result<Vec<u32>> {
        let bos = self.leading_bos().filter(|_| options.add_bos);
        // A second BOS is taken away below.
        let room = Room::of(most.saturating_add(usize::from(bos.is_some())));
        let mut ids = Vec::with_capacity(room.likely_tokens(text.len()));
        ids.extend(bos);
        self.encode_into(text, options.parse_special, room, &mut ids)?;
        if bos.is_some() && ids.get(1).copied() == bos {
            ids.remove(0);
        }
        Ok(ids)
    }

    /// The first tokens of `text` as [`Self::encode_up_to`], without BOS. Control tokens are found by their names, but
    /// no special token reaches across one of `breaks`, which are in ascending order (see [`Self::breaks`]). `position`
    /// says whether text stands before it.
    ///
    /// # Errors
    /// As [`Self::encode_up_to`].
    pub fn encode_unbroken(
        &self,
        (text, position): (&str, TextPosition),
        breaks: &[usize],
        most: usize,
    ) -> Result<Vec<u32>> {
        let names = match breaks {
            [] => Names::All,
            breaks => Names::Unbroken(breaks),
        };
        self.encode_at((text, position), names, most)
    }

    /// The first tokens of `text`, which goes on after the token `last`, as [`Self::encode_up_to`], without BOS.
    ///
    /// # Errors
    /// As [`Self::encode_up_to`].
    pub fn encode_after(
        &self,
        last: Option<u32>,
        text: &str,
        parse_special: bool,
        most: usize,
    ) -> Result<Vec<u32>> {
        self.encode_at(
            (text, self.position_after(last)),
            named(parse_special),
            most,
        )
    }

    fn encode_at(
        &self,
        (text, position): (&str, TextPosition),
        names: Names<'_>,
        most: usize,
    ) -> Result<Vec<u32>> {
        let room = Room::of(most);
        let mut ids = Vec::with_capacity(room.likely_tokens(text.len()));
        self.encode_named((text, position), names, room, &mut ids)?;
        Ok(ids)
    }

    /// Where a text is that follows the token `last`: behind a text, unless that is a control token behind which this
    /// tokenizer begins anew.
    pub fn position_after(&self, last: Option<u32>) -> TextPosition {
        let begins_once = matches!(&self.encoder, Encoder::Hf(hf) if hf.begins_once());
        match last {
            Some(id) if begins_once || !self.is_control(id) => TextPosition::Continuation,
            _ => TextPosition::Start,
        }
    }

    /// The memory that encoding takes, beside the tokenizer itself.
    pub fn encoding_memory(&self) -> EncodingMemory {
        match &self.encoder {
            Encoder::Hf(hf) => EncodingMemory {
                own: 0,
                of_crate: hf.bytes_per_byte(),
            },
            Encoder::Bpe(_) | Encoder::Spm(_) => EncodingMemory {
                own: BYTES_PER_SYMBOL,
                of_crate: 0,
            },
        }
    }

    pub(super) fn encode_into(
        &self,
        text: &str,
        parse_special: bool,
        room: Room,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let names = named(parse_special);
        self.encode_named((text, TextPosition::Start), names, room, ids)
    }

    fn encode_named(
        &self,
        (text, position): (&str, TextPosition),
        names: Names<'_>,
        room: Room,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let (vocab, special) = (&*self.vocab, &self.special);
        let mut merger = Merger::default();
        let mut done = Ok(());
        match &self.encoder {
            Encoder::Hf(hf) => return hf.encode((text, position), names, room, ids),
            Encoder::Bpe(bpe) => {
                special.partition(text, names, vocab, &mut |fragment| match fragment {
                    _ if done.is_err() || !room.holds(ids) => {}
                    Fragment::Text(text) => {
                        done = bpe.encode(text, vocab, &mut merger, (room, ids))
                    }
                    Fragment::Token(id) => ids.push(id),
                });
            }
            Encoder::Spm(spm) => {
                let mut begins = position == TextPosition::Start;
                special.partition(text, names, vocab, &mut |fragment| {
                    match fragment {
                        _ if done.is_err() || !room.holds(ids) => {}
                        Fragment::Text(text) => {
                            done = spm.encode((text, begins), vocab, &mut merger, (room, ids));
                        }
                        Fragment::Token(id) => ids.push(id),
                    }
                    begins = matches!(fragment, Fragment::Token(_));
                });
            }
        }
        done
    }

    /// The text of a whole sequence. Control tokens are left out where `skip_special`; bytes that
    /// are not UTF-8 become `U+FFFD`; ids outside the vocabulary add nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = self.detokenizer(skip_special, TextPosition::Start);
        let mut text = String::with_capacity(4 * ids.len());
        for &id in ids {
            stream.push_into(id, &mut text);
        }
        text.push_str(&stream.finish());
        text
    }

    /// A decoder for tokens that come one by one.
    pub fn detokenizer(&self, skip_special: bool, position: TextPosition) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.vocab), skip_special, position)
    }

    /// The bytes token `id` stands for, which need not be UTF-8; the name of a control token. `None`
    /// outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocab.bytes(id)
    }

    /// Number of token ids. A model may have more logits than this, for padding.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The token that begins a sequence, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Whether [`Self::encode`] begins a prompt with BOS.
    pub fn adds_bos(&self) -> bool {
        self.leading_bos().is_some()
    }

    /// The token that [`Self::encode`] begins a prompt with, if any.
    pub fn leading_bos(&self) -> Option<u32> {
        self.bos.filter(|_| self.add_bos)
    }

    /// `tokens`, which were cut out of a longer text, as a text of their own: BOS takes the place of the first token,
    /// if the model wants one before a text. llama.cpp evaluates perplexity in this way.
    pub fn piece(&self, tokens: &[u32]) -> Vec<u32> {
        let mut tokens = tokens.to_vec();
        if let (Some(first), Some(bos)) = (tokens.first_mut(), self.leading_bos()) {
            *first = bos;
        }
        tokens
    }

    /// Whether `id` ends a generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.eog.binary_search(&id).is_ok()
    }

    /// Whether `id` is a control token, which has a meaning instead of a text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id) == Some(TokenKind::Control)
    }
}

/// The names that are taken for tokens.
fn named(parse_special: bool) -> Names<'static> {
    match parse_special {
        true => Names::All,
        false => Names::Plain,
    }
}

fn check_merges(merges: &[String]) -> Result<()> {
    if merges.len() <= MAX_MERGES {
        return Ok(());
    }
    let problem = format!("{} merges, more than {MAX_MERGES}", merges.len());
    Err(ModelError::damaged(TOKENIZER, "merges", problem))
}

/// Checks that the vocabulary can be indexed with 32 bits and that every list that stands beside
/// it has its length.
fn check_sizes(tokens: &[String], lists: &[(&str, usize)]) -> Result<()> {
    let bytes: usize = tokens.iter().map(String::len).sum();
    let problem = if tokens.is_empty() {
        Some("the vocabulary is empty".to_owned())
    } else if u32::try_from(bytes).is_err() {
        Some(format!("a vocabulary of {bytes} bytes"))
    } else if tokens.len() > MAX_TOKENS {
        Some(format!("{} tokens, more than {MAX_TOKENS}", tokens.len()))
    } else {
        let wrong = lists.iter().find(|(_, len)| *len != tokens.len());
        wrong.map(|(name, len)| format!("{len} {name} for {} tokens", tokens.len()))
    };
    problem.map_or(Ok(()), |problem| {
        Err(ModelError::damaged(TOKENIZER, "tokens", problem))
    })
}
