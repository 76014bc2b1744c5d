//! The metadata of a GGUF file and nothing else, read in the most direct way: independent of the
//! crate's own reader, so that the tokenizer tests do not depend on it.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use forebay_models::gguf::{Array, Metadata, Value};

struct Source(BufReader<File>);

impl Source {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn string(&mut self) -> String {
        let mut bytes = vec![0; u64::from_le_bytes(self.bytes()) as usize];
        self.0.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    fn list<T>(&mut self, n: u64, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..n).map(|_| item(self)).collect()
    }

    fn array(&mut self) -> Array {
        let kind = u32::from_le_bytes(self.bytes());
        let n = u64::from_le_bytes(self.bytes());
        match kind {
            0 => Array::U8(self.list(n, |s| s.bytes::<1>()[0])),
            1 => Array::I8(self.list(n, |s| i8::from_le_bytes(s.bytes()))),
            4 => Array::U32(self.list(n, |s| u32::from_le_bytes(s.bytes()))),
            5 => Array::I32(self.list(n, |s| i32::from_le_bytes(s.bytes()))),
            6 => Array::F32(self.list(n, |s| f32::from_le_bytes(s.bytes()))),
            7 => Array::Bool(self.list(n, |s| s.bytes::<1>()[0] != 0)),
            8 => Array::Str(self.list(n, Self::string)),
            other => panic!("array of type {other}"),
        }
    }

    fn value(&mut self) -> Value {
        match u32::from_le_bytes(self.bytes()) {
            4 => Value::U32(u32::from_le_bytes(self.bytes())),
            5 => Value::I32(i32::from_le_bytes(self.bytes())),
            6 => Value::F32(f32::from_le_bytes(self.bytes())),
            7 => Value::Bool(self.bytes::<1>()[0] != 0),
            8 => Value::Str(self.string()),
            9 => Value::Array(self.array()),
            10 => Value::U64(u64::from_le_bytes(self.bytes())),
            other => panic!("value of type {other}"),
        }
    }
}

/// All metadata of the file at `path`.
pub fn read_metadata(path: &Path) -> Metadata {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut source = Source(BufReader::new(file));
    assert!(matches!(&source.bytes(), b"GGUF" | b"PWRI"));
    let _version: [u8; 4] = source.bytes();
    let _n_tensors: [u8; 8] = source.bytes();
    let n = u64::from_le_bytes(source.bytes());
    let entries = source
        .list(n, |s| (s.string(), s.value()))
        .into_iter()
        .collect();
    Metadata { entries }
}
