//! The KV cache's layout.

use forebay_kernels::kv::{BLOCK, KvCache, KvHead, KvLayer, KvRows, KvShape, KvType};
use half::f16;

/// Two pools; layers with heads of different sizes, and one whose keys are longer than its values.
fn shape(kind: KvType, head_dim: usize) -> KvShape {
    let layer = |heads, head_dim, value_dim, pool| KvLayer {
        heads,
        head_dim,
        value_dim,
        pool,
    };
    KvShape {
        kind,
        layers: vec![
            layer(3, head_dim, head_dim, 0),
            layer(1, head_dim + 5, head_dim, 1),
            layer(2, head_dim, head_dim, 0),
        ],
        pools: vec![3, 2],
    }
}

/// A head by its layer and number, a position of it by block and offset, and the elements of a key and of a value.
type Place = ((usize, usize), (u32, usize), (usize, usize));

/// Every position of every head.
fn all(shape: &KvShape) -> Vec<Place> {
    let mut all = Vec::new();
    for (l, layer) in shape.layers.iter().enumerate() {
        for head in 0..layer.heads {
            for block in 0..shape.pools[layer.pool] {
                let place = |offset| {
                    let dims = (layer.head_dim, layer.value_dim);
                    ((l, head), (block as u32, offset), dims)
                };
                all.extend((0..BLOCK).map(place));
            }
        }
    }
    all
}

/// Key and value of a position as numbers, wherever they lie.
fn row(head: KvHead<'_>, (block, offset): (u32, usize)) -> (Vec<f32>, Vec<f32>) {
    let (d, v) = (head.head_dim, head.value_dim);
    let position = block as usize * 64 + offset;
    let (group, lane) = (position / 16, position % 16);
    let (width, words) = (v.next_multiple_of(16), d.div_ceil(4));
    match head.rows {
        KvRows::F16 { keys, values } => {
            let f = |bits: u16| f16::from_bits(bits).to_f32();
            let key = (0..d).map(|i| f(keys[(group * d + i) * 16 + lane]));
            let value = (0..v).map(|i| f(values[position * width + i]));
            (key.collect(), value.collect())
        }
        KvRows::Q8 {
            keys,
            key_bits,
            values,
            key_scales,
            value_scales,
        } => {
            let key = |i: usize| {
                let (word, place) = (group * words + i / 4, lane * 4 + i % 4);
                let bit = (key_bits[word] >> place & 1) as f32;
                2.0 * f32::from(keys[word * 64 + place]) + bit
            };
            let key = (0..d).map(|i| key(i) * key_scales[position]);
            let value = |i: usize| f32::from(values[position * width + i]);
            let value = (0..v).map(|i| value(i) * value_scales[position]);
            (key.collect(), value.collect())
        }
    }
}

/// A key and a value that belong to one position only.
fn numbers(
    (l, h): (usize, usize),
    (block, offset): (u32, usize),
    (d, v): (usize, usize),
) -> (Vec<f32>, Vec<f32>) {
    let p = block as usize * 64 + offset;
    let element = |i: usize| ((l * 7 + h * 5 + p * 3 + i) % 41) as f32 - 20.0;
    let key: Vec<f32> = (0..d).map(element).collect();
    let value = (0..v).map(|i| 0.5 - element(i)).collect();
    (key, value)
}

fn filled(shape: &KvShape) -> KvCache {
    let mut cache = KvCache::new(shape);
    for (head, at, d) in all(shape) {
        let (key, value) = numbers(head, at, d);
        cache.store(head, at, &key, &value);
    }
    cache
}

/// A row multiplied by a normalised Hadamard matrix, part by part, by its definition.
fn spread(row: &[f32]) -> Vec<f32> {
    let n = 1 << row.len().trailing_zeros();
    let sign = |i: usize, j: usize| [1.0, -1.0][(i & j).count_ones() as usize % 2];
    let part = |part: &[f32]| -> Vec<f32> {
        let sum = |i: usize| (0..n).map(|j| sign(i, j) * f64::from(part[j])).sum::<f64>();
        (0..n)
            .map(|i| (sum(i) / (n as f64).sqrt()) as f32)
            .collect()
    };
    row.chunks(n).flat_map(part).collect()
}

/// Whether `got` is `want`, as far as the format allows. These numbers are exact in f16; a code of a row that was
/// spread is half a step off at most, and there are `steps` up to the largest.
fn assert_close(kind: KvType, steps: f32, got: &[f32], want: &[f32]) {
    let (want, step) = match kind {
        KvType::F16 => (want.to_vec(), 0.0),
        KvType::Q8 => {
            let want = spread(want);
            let largest = want.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            (want, largest / (2.0 * steps) * 1.001)
        }
    };
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= step, "{kind}: {got} for {want}");
    }
}

#[test]
fn heads_layers_and_positions_do_not_overlap() {
    for kind in KvType::ALL {
        for d in [1, 6, 16, 20, 64] {
            let shape = shape(kind, d);
            let cache = filled(&shape);
            for (head, at, d) in all(&shape) {
                let (got, want) = (row(cache.head(head.0, head.1), at), numbers(head, at, d));
                assert_close(kind, 254.0, &got.0, &want.0);
                assert_close(kind, 127.0, &got.1, &want.1);
            }
        }
    }
}

#[test]
fn a_copied_block_is_one_pool_s_and_leaves_the_others_alone() {
    for kind in KvType::ALL {
        let shape = shape(kind, 20);
        let mut cache = filled(&shape);
        cache.copy_block(0, 2, 0);
        for (head, at, d) in all(&shape) {
            let from = match (shape.layers[head.0].pool, at.0) {
                (0, 0) => (2, at.1),
                _ => at,
            };
            let (got, want) = (row(cache.head(head.0, head.1), at), numbers(head, from, d));
            assert_close(kind, 254.0, &got.0, &want.0);
            assert_close(kind, 127.0, &got.1, &want.1);
        }
    }
}

#[test]
fn the_largest_element_has_the_largest_code_and_faults_show() {
    let mut cache = KvCache::new(&shape(KvType::Q8, 3));
    cache.store((0, 0), (0, 0), &[-2.0, 1.0, 0.25], &[1e-37, 0.0, 0.0]);
    cache.store((0, 0), (0, 2), &[1.0; 3], &[-2.0, 1.0, 0.0]);
    let faults = ([f32::INFINITY, 1.0, 0.0], [0.0, f32::NAN, 0.0]);
    cache.store((0, 0), (0, 1), &faults.0, &faults.1);
    let KvRows::Q8 {
        keys,
        key_bits,
        values,
        key_scales,
        value_scales,
    } = cache.head(0, 0).rows
    else {
        panic!("a q8 cache");
    };
    // Codes -254, 127 and, of 31.75, 32: twice a byte, and a bit.
    assert_eq!((&keys[..3], key_bits[0] & 7), (&[-127, 63, 16][..], 0b010));
    assert_eq!(key_scales[0], 2.0 / 254.0);
    assert_eq!((&values[..3], value_scales[0]), (&[0, 0, 0][..], 0.0));
    // 63.5 rounds to the even 64.
    let third = 2 * 16;
    assert_eq!(values[third..third + 3], [-127, 64, 0]);
    assert_eq!(value_scales[2], 2.0 / 127.0);
    assert!(key_scales[1].is_nan() && value_scales[1].is_nan());
}

#[test]
fn bytes_are_what_is_allocated() {
    // Keys of 20 elements, values padded to 32; keys of 25 (28 in bytes), values padded to 32.
    let (wide, narrow) = (5 * 3 * 64, 2 * 64);
    let pages = |bytes: usize| bytes.next_multiple_of(forebay_queues::pages::page());
    let f16 = shape(KvType::F16, 20).bytes();
    let (keys, values) = (wide * 20 + narrow * 25, (wide + narrow) * 32);
    assert_eq!(f16, pages(2 * keys) + pages(2 * values));
    let q8 = shape(KvType::Q8, 20).bytes();
    let keys = wide * 20 + narrow * 28;
    let scales = 2 * pages((wide + narrow) * 4);
    assert_eq!(q8, pages(keys) + pages(keys / 8) + pages(values) + scales);
    let absurd = KvShape {
        pools: vec![usize::MAX, 1],
        ..shape(KvType::Q8, 64)
    };
    assert_eq!(absurd.bytes(), usize::MAX);
}

/// Pages of a slice that are in memory. An emulator has other addresses than the kernel.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn in_memory<T>(slice: &[T]) -> usize {
    use std::os::unix::fs::FileExt;
    let pagemap = std::fs::File::open("/proc/self/pagemap").expect("the kernel's table");
    let page = forebay_queues::pages::page();
    let (start, bytes) = (slice.as_ptr().addr(), size_of_val(slice));
    let pages = start / page..(start + bytes).div_ceil(page);
    let is_there = |n: &usize| {
        let mut entry = [0; 8];
        pagemap
            .read_exact_at(&mut entry, *n as u64 * 8)
            .expect("an entry");
        u64::from_le_bytes(entry) >> 63 == 1
    };
    pages.filter(is_there).count() * page
}

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn only_what_is_written_is_in_memory_and_what_is_forgotten_is_not() {
    let layer = |heads, head_dim, pool| KvLayer {
        heads,
        head_dim,
        value_dim: head_dim,
        pool,
    };
    for kind in [KvType::F16, KvType::Q8] {
        let shape = KvShape {
            kind,
            layers: vec![layer(2, 128, 0), layer(1, 64, 1), layer(2, 128, 0)],
            pools: vec![40, 6],
        };
        let mut cache = KvCache::new(&shape);
        let bytes = |cache: &KvCache| {
            let heads = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)];
            let of_head = |(l, h)| match cache.head(l, h).rows {
                KvRows::F16 { keys, values } => in_memory(keys) + in_memory(values),
                KvRows::Q8 {
                    keys,
                    key_bits,
                    values,
                    key_scales,
                    value_scales,
                } => {
                    in_memory(keys)
                        + in_memory(key_bits)
                        + in_memory(values)
                        + in_memory(key_scales)
                        + in_memory(value_scales)
                }
            };
            heads.map(of_head).iter().sum::<usize>()
        };
        let write = |cache: &mut KvCache, blocks: usize| {
            let places = all(&shape).into_iter();
            for (head, at, d) in places.filter(|(_, at, _)| (at.0 as usize) < blocks) {
                let (key, value) = numbers(head, at, d);
                cache.store(head, at, &key, &value);
            }
        };
        assert_eq!(bytes(&cache), 0);
        write(&mut cache, 3);
        let three = bytes(&cache);
        assert!(three > 0 && three <= shape.bytes_written(3), "{three}");
        write(&mut cache, 40);
        // Pages that two heads share count twice here.
        assert!(bytes(&cache) >= shape.bytes_written(40));
        assert_eq!(shape.bytes_written(40), shape.bytes());
        cache.forget(3);
        let left = bytes(&cache);
        assert!(left <= shape.bytes_written(3) && left < 2 * three, "{left}");
        for (head, at, d) in all(&shape) {
            if at.0 < 3 {
                let (got, want) = (row(cache.head(head.0, head.1), at), numbers(head, at, d));
                assert_close(kind, 254.0, &got.0, &want.0);
                assert_close(kind, 127.0, &got.1, &want.1);
            }
        }
    }
}

#[test]
#[should_panic(expected = "is not in a KV cache")]
fn blocks_beyond_the_pool_are_rejected() {
    KvCache::new(&shape(KvType::F16, 2)).store((0, 0), (3, 0), &[0.0; 2], &[0.0; 2]);
}
