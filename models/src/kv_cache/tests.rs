use half::f16;

use super::*;

fn shape(kind: KvType, head_dim: usize) -> KvShape {
    KvShape {
        kind,
        n_layers: 2,
        heads: 3,
        context: 37,
        head_dim,
    }
}

/// Key and value of a position as numbers, wherever they lie.
fn row(head: KvHead<'_>, position: usize) -> (Vec<f32>, Vec<f32>) {
    let d = head.head_dim;
    let (block, lane) = (position / 16, position % 16);
    let (width, words) = (d.next_multiple_of(16), d.div_ceil(4));
    match head.rows {
        KvRows::F16 { keys, values } => {
            let f = |bits: u16| f16::from_bits(bits).to_f32();
            let key = (0..d).map(|i| f(keys[(block * d + i) * 16 + lane]));
            let value = (0..d).map(|i| f(values[position * width + i]));
            (key.collect(), value.collect())
        }
        KvRows::Q8 {
            keys,
            values,
            key_scales,
            value_scales,
        } => {
            let key = |i: usize| keys[((block * words + i / 4) * 16 + lane) * 4 + i % 4];
            let key = (0..d).map(|i| f32::from(key(i)) * key_scales[position]);
            let value = |i: usize| f32::from(values[position * width + i]);
            let value = (0..d).map(|i| value(i) * value_scales[position]);
            (key.collect(), value.collect())
        }
    }
}

fn element(l: usize, h: usize, p: usize, i: usize) -> f32 {
    ((l * 7 + h * 5 + p * 3 + i) % 41) as f32 - 20.0
}

#[test]
fn heads_layers_and_positions_do_not_overlap() {
    for kind in KvType::ALL {
        for d in [1, 6, 16, 20, 64] {
            let shape = shape(kind, d);
            let mut cache = KvCache::new(shape);
            let rows = |l, h, p| -> (Vec<f32>, Vec<f32>) {
                let key: Vec<f32> = (0..d).map(|i| element(l, h, p, i)).collect();
                (key.clone(), key.iter().map(|k| 0.5 - k).collect())
            };
            let all =
                (0..2).flat_map(|l| (0..3).flat_map(move |h| (0..37).map(move |p| (l, h, p))));
            for (l, h, p) in all.clone() {
                let (key, value) = rows(l, h, p);
                cache.store(l, h, p, &key, &value);
            }
            for (l, h, p) in all {
                let (got, want) = (row(cache.head(l, h), p), rows(l, h, p));
                for (got, want) in [(got.0, want.0), (got.1, want.1)] {
                    let largest = want.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                    // These numbers are exact in f16; a code is half a step off at most.
                    let step = if kind == KvType::Q8 {
                        largest / 254.0
                    } else {
                        0.0
                    };
                    for (got, want) in got.iter().zip(&want) {
                        assert!((got - want).abs() <= step * 1.001, "{kind} {l} {h} {p}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_largest_element_has_code_127_and_faults_show() {
    let mut cache = KvCache::new(shape(KvType::Q8, 3));
    cache.store(0, 0, 0, &[-2.0, 1.0, 0.0], &[1e-37, 0.0, 0.0]);
    cache.store(0, 0, 1, &[f32::INFINITY, 1.0, 0.0], &[0.0, f32::NAN, 0.0]);
    let KvRows::Q8 {
        keys,
        values,
        key_scales,
        value_scales,
    } = cache.head(0, 0).rows
    else {
        panic!("a q8 cache");
    };
    // 63.5 rounds to the even 64.
    assert_eq!(
        (&keys[..3], key_scales[0]),
        (&[-127, 64, 0][..], 2.0 / 127.0)
    );
    assert_eq!((&values[..3], value_scales[0]), (&[0, 0, 0][..], 0.0));
    assert!(key_scales[1].is_nan() && value_scales[1].is_nan());
}

#[test]
fn bytes_are_what_is_allocated() {
    let f16 = KvCache::bytes(shape(KvType::F16, 20));
    // 37 positions take three blocks of keys; values are padded from 20 to 32.
    assert_eq!(f16, (6 * 48 * (20 + 32) + 2 * 32) * 2);
    let q8 = KvCache::bytes(shape(KvType::Q8, 20));
    assert_eq!(q8, 6 * 48 * (20 + 32) + 2 * 64 + 2 * (6 * 48 + 16) * 4);
    let absurd = KvShape {
        context: usize::MAX,
        ..shape(KvType::Q8, 64)
    };
    assert_eq!(KvCache::bytes(absurd), usize::MAX);
}

#[test]
fn names_round_trip() {
    for kind in KvType::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert!("q4".parse::<KvType>().is_err());
}

#[test]
#[should_panic(expected = "is not in a KV cache")]
fn positions_beyond_the_context_are_refused() {
    KvCache::new(shape(KvType::F16, 2)).store(0, 0, 37, &[0.0; 2], &[0.0; 2]);
}
