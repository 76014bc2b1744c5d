//! A GGUF file's header (v3) as bytes.

use super::value::Value;
use crate::block::BlockType;

/// Alignment of tensors, the format's default.
const ALIGN: u64 = 32;

/// Type ids of metadata values (`gguf_metadata_value_type`).
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A tensor of the header.
pub(crate) struct Entry {
    pub name: String,
    /// Elements of a row, rows, …
    pub dims: Vec<usize>,
    pub block: BlockType,
    /// Length in the file.
    pub bytes: u64,
}

/// Everything before the first tensor's bytes, padded. Tensors follow in this order, each padded.
pub(crate) fn header(metadata: &Encoded, tensors: &[Entry]) -> Vec<u8> {
    let mut b = b"GGUF".to_vec();
    b.extend(3u32.to_le_bytes());
    b.extend((tensors.len() as u64).to_le_bytes());
    b.extend(metadata.entries.to_le_bytes());
    b.extend(&metadata.bytes);
    let mut offset = 0u64;
    for t in tensors {
        put_string(&mut b, &t.name);
        b.extend((t.dims.len() as u32).to_le_bytes());
        t.dims
            .iter()
            .for_each(|&d| b.extend((d as u64).to_le_bytes()));
        b.extend(t.block.ggml_id().to_le_bytes());
        b.extend(offset.to_le_bytes());
        offset = (offset + t.bytes).next_multiple_of(ALIGN);
    }
    b.extend(padding(b.len() as u64));
    b
}

/// Zeros from `len` to the next aligned offset.
pub(crate) fn padding(len: u64) -> Vec<u8> {
    vec![0; (len.next_multiple_of(ALIGN) - len) as usize]
}

/// Metadata being encoded.
#[derive(Default)]
pub(crate) struct Encoded {
    entries: u64,
    bytes: Vec<u8>,
}

impl Encoded {
    fn key(&mut self, key: &str, kind: u32) -> &mut Vec<u8> {
        self.entries += 1;
        put_string(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        &mut self.bytes
    }

    /// A text or a number, as descriptions of networks have them.
    pub fn value(&mut self, key: &str, value: &Value) {
        match value {
            Value::Str(text) => self.string(key, text),
            Value::U32(number) => self.number(key, *number),
            Value::F32(number) => self.key(key, F32).extend(number.to_le_bytes()),
            other => unreachable!("{key} is written as {other:?}"),
        }
    }

    pub fn string(&mut self, key: &str, value: &str) {
        put_string(self.key(key, STRING), value);
    }

    pub fn number(&mut self, key: &str, value: u32) {
        self.key(key, U32).extend(value.to_le_bytes());
    }

    pub fn flag(&mut self, key: &str, value: bool) {
        self.key(key, BOOL).push(value.into());
    }

    pub fn strings(&mut self, key: &str, items: &[String]) {
        self.array(key, STRING, items, |b, s| put_string(b, s));
    }

    pub fn floats(&mut self, key: &str, items: &[f32]) {
        self.array(key, F32, items, |b, v| b.extend(v.to_le_bytes()));
    }

    pub fn integers(&mut self, key: &str, items: &[i32]) {
        self.array(key, I32, items, |b, v| b.extend(v.to_le_bytes()));
    }

    fn array<T>(&mut self, key: &str, kind: u32, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
        let b = self.key(key, ARRAY);
        b.extend(kind.to_le_bytes());
        b.extend((items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| put(b, item));
    }
}

fn put_string(b: &mut Vec<u8>, s: &str) {
    b.extend((s.len() as u64).to_le_bytes());
    b.extend(s.as_bytes());
}
