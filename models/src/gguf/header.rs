//! Reads the header of a GGUF file. Nothing in it is trusted: every length and count is checked
//! against the remaining bytes before memory is reserved for it.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::value::{Array, Value};
use crate::error::{ModelError, Result};
use crate::limits::{MAX_MERGES, MAX_TOKENS};

/// Longest header read. The largest vocabularies need about 20 MiB; the limit bounds the memory
/// that a hostile (sparse) file can claim.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// Most strings in all arrays together: vocabulary and merges, with room to spare. Each takes some 50 bytes beside
/// its text.
const MAX_STRINGS: u64 = (MAX_TOKENS + MAX_MERGES) as u64;

/// Elements for which memory is reserved before they are read; longer arrays grow while they are
/// read.
const RESERVED_ELEMENTS: usize = 1 << 16;

/// GGUF's value type ids.
const TYPE_STRING: u32 = 8;
const TYPE_ARRAY: u32 = 9;

/// A buffered reader that knows its position, and how far the header can extend.
pub(super) struct HeaderReader<'a> {
    reader: BufReader<&'a File>,
    path: &'a Path,
    position: u64,
    end: u64,
    file_bytes: u64,
    /// Strings in arrays that may still come.
    strings_left: u64,
}

impl<'a> HeaderReader<'a> {
    /// Reads `file` (of `file_bytes` bytes) from its current position, which must be 0.
    pub(super) fn new(file: &'a File, path: &'a Path, file_bytes: u64) -> Self {
        Self {
            reader: BufReader::with_capacity(1 << 16, file),
            path,
            position: 0,
            end: file_bytes.min(MAX_HEADER_BYTES),
            file_bytes,
            strings_left: MAX_STRINGS,
        }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    fn damaged(&self, field: &str, problem: impl Into<String>) -> ModelError {
        ModelError::damaged(self.path, field, problem)
    }

    /// Fails unless `count` items of at least `item_bytes` bytes can still follow.
    pub(super) fn expect_room(&self, count: u64, item_bytes: u64, field: &str) -> Result<()> {
        let left = self.end - self.position;
        if count
            .checked_mul(item_bytes)
            .is_some_and(|need| need <= left)
        {
            return Ok(());
        }
        let of = if self.end < self.file_bytes {
            "of the largest header accepted"
        } else {
            "in the file"
        };
        Err(self.damaged(
            field,
            format!("{count} items of at least {item_bytes} bytes at byte {} exceed the {left} bytes left {of}", self.position),
        ))
    }

    /// Fails for more than `most` of `what`.
    pub(super) fn expect_at_most(
        &self,
        count: u64,
        most: u64,
        field: &str,
        what: &str,
    ) -> Result<()> {
        if count <= most {
            return Ok(());
        }
        Err(ModelError::Format {
            path: self.path.into(),
            field: field.into(),
            problem: format!(
                "{count} {what} exceed the {most} accepted, far more than known models have"
            ),
            remedy: "convert the original model again, with its own tokenizer".into(),
        })
    }

    fn bytes<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        self.expect_room(1, N as u64, field)?;
        let mut b = [0; N];
        self.reader
            .read_exact(&mut b)
            .map_err(|e| ModelError::io(self.path, format!("read {field}"), e))?;
        self.position += N as u64;
        Ok(b)
    }

    /// Four raw bytes (the magic).
    pub(super) fn four_bytes(&mut self, field: &str) -> Result<[u8; 4]> {
        self.bytes(field)
    }

    /// A little-endian u32.
    pub(super) fn u32(&mut self, field: &str) -> Result<u32> {
        self.bytes(field).map(u32::from_le_bytes)
    }

    /// A little-endian u64.
    pub(super) fn u64(&mut self, field: &str) -> Result<u64> {
        self.bytes(field).map(u64::from_le_bytes)
    }

    fn string_bytes(&mut self, field: &str) -> Result<Vec<u8>> {
        let len = self.u64(field)?;
        self.expect_room(len, 1, field)?;
        // Below MAX_HEADER_BYTES, by the check above.
        let mut b = Vec::with_capacity((len as usize).min(RESERVED_ELEMENTS));
        let read = (&mut self.reader)
            .take(len)
            .read_to_end(&mut b)
            .map_err(|e| ModelError::io(self.path, format!("read {field}"), e))?;
        self.position += read as u64;
        if (read as u64) < len {
            return Err(self.damaged(field, "the file became shorter while it was read"));
        }
        Ok(b)
    }

    /// A string: u64 length, UTF-8 bytes.
    pub(super) fn string(&mut self, field: &str) -> Result<String> {
        String::from_utf8(self.string_bytes(field)?).map_err(|e| {
            self.damaged(
                field,
                format!("the string is not UTF-8 ({})", e.utf8_error()),
            )
        })
    }

    /// A metadata value under `key`: u32 type id, then the value.
    pub(super) fn value(&mut self, key: &str) -> Result<Value> {
        Ok(match self.u32(key)? {
            0 => Value::U8(u8::from_le_bytes(self.bytes(key)?)),
            1 => Value::I8(i8::from_le_bytes(self.bytes(key)?)),
            2 => Value::U16(u16::from_le_bytes(self.bytes(key)?)),
            3 => Value::I16(i16::from_le_bytes(self.bytes(key)?)),
            4 => Value::U32(self.u32(key)?),
            5 => Value::I32(i32::from_le_bytes(self.bytes(key)?)),
            6 => Value::F32(f32::from_le_bytes(self.bytes(key)?)),
            7 => Value::Bool(self.bool(key)?),
            TYPE_STRING => Value::Str(self.string(key)?),
            TYPE_ARRAY => Value::Array(self.array(key)?),
            10 => Value::U64(self.u64(key)?),
            11 => Value::I64(i64::from_le_bytes(self.bytes(key)?)),
            12 => Value::F64(f64::from_le_bytes(self.bytes(key)?)),
            id => return Err(self.damaged(key, format!("unknown value type {id}"))),
        })
    }

    fn bool(&mut self, key: &str) -> Result<bool> {
        match self.bytes::<1>(key)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [v] => Err(self.damaged(key, format!("{v} is not a boolean"))),
        }
    }

    fn array(&mut self, key: &str) -> Result<Array> {
        let id = self.u32(key)?;
        let count = self.u64(key)?;
        Ok(match id {
            0 => Array::U8(self.items(count, key, u8::from_le_bytes)?),
            1 => Array::I8(self.items(count, key, i8::from_le_bytes)?),
            2 => Array::U16(self.items(count, key, u16::from_le_bytes)?),
            3 => Array::I16(self.items(count, key, i16::from_le_bytes)?),
            4 => Array::U32(self.items(count, key, u32::from_le_bytes)?),
            5 => Array::I32(self.items(count, key, i32::from_le_bytes)?),
            6 => Array::F32(self.items(count, key, f32::from_le_bytes)?),
            7 => {
                self.expect_room(count, 1, key)?;
                Array::Bool((0..count).map(|_| self.bool(key)).collect::<Result<_>>()?)
            }
            TYPE_STRING => Array::Str(self.strings(count, key)?),
            TYPE_ARRAY => {
                return Err(ModelError::unsupported(
                    self.path,
                    key,
                    "an array of arrays",
                    "no known model needs one: remove this key from the file",
                ));
            }
            10 => Array::U64(self.items(count, key, u64::from_le_bytes)?),
            11 => Array::I64(self.items(count, key, i64::from_le_bytes)?),
            12 => Array::F64(self.items(count, key, f64::from_le_bytes)?),
            id => return Err(self.damaged(key, format!("unknown array element type {id}"))),
        })
    }

    fn items<T, const N: usize>(
        &mut self,
        count: u64,
        key: &str,
        decode: fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        self.expect_room(count, N as u64, key)?;
        let mut items = Vec::with_capacity((count as usize).min(RESERVED_ELEMENTS));
        for _ in 0..count {
            items.push(decode(self.bytes(key)?));
        }
        Ok(items)
    }

    fn strings(&mut self, count: u64, key: &str) -> Result<Vec<String>> {
        // A string takes at least the 8 bytes of its length.
        self.expect_room(count, 8, key)?;
        let most = self.strings_left.min(MAX_TOKENS.max(MAX_MERGES) as u64);
        self.expect_at_most(count, most, key, "strings")?;
        self.strings_left -= count;
        // Vocabularies in the wild hold tokens that are fragments of UTF-8 sequences. Everywhere
        // else invalid UTF-8 means damage.
        let lossy = key == "tokenizer.ggml.tokens";
        let mut strings = Vec::with_capacity((count as usize).min(RESERVED_ELEMENTS));
        for _ in 0..count {
            strings.push(if lossy {
                let b = self.string_bytes(key)?;
                String::from_utf8(b)
                    .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
            } else {
                self.string(key)?
            });
        }
        Ok(strings)
    }
}
