#!/usr/bin/env python3
"""Golden data for the block formats, from an independent implementation (PyPI: gguf, numpy).

    pip install gguf==0.19.0 numpy
    python make_blocks.py

writes next to this script, all little endian:
    blocks/TYPE.blocks     random valid blocks, scales from denormal to the largest f16
    blocks/TYPE.f32        the same, decoded by gguf.quants.dequantize
    blocks/input.f32       what is quantised: 64 rows of 32
    blocks/TYPE.quantized  the same, encoded by gguf.quants.quantize
"""
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, quants

OUT = Path(__file__).parent / "blocks"
RNG = np.random.default_rng(20240607)
# Byte offsets of the f16 fields of a block.
F16_FIELDS = {
    T.F32: [], T.F16: [0], T.BF16: [], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2],
    T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}
# Drawn after everything else, whose numbers therefore stay what they were.
LATER_F16_FIELDS = {T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: []}
WRITTEN = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0]
EXTREMES = np.array([0, -0.0, 65504, -65504, 6e-8, -6e-8, 6.1e-5, 1, -1], dtype=np.float16)


def random_f16(n):
    values = (RNG.standard_normal(n) * 10.0 ** RNG.uniform(-4, 2, n)).astype(np.float16)
    values[: len(EXTREMES)] = EXTREMES[:n]
    return RNG.permutation(values)


def random_blocks(ty, f16_fields):
    length, size = GGML_QUANT_SIZES[ty]
    n = {1: 512, 32: 32, 256: 12}[length]
    blocks = RNG.integers(0, 256, (n, size), dtype=np.uint8)
    for at in f16_fields:
        blocks[:, at : at + 2] = random_f16(n).view(np.uint8).reshape(n, 2)
    if ty in (T.F32, T.BF16):  # any exponent but that of infinities and NaN
        blocks[:, -1] &= 0xBF
    return blocks


def inputs():
    rows = RNG.standard_normal((64, 32)) * 10.0 ** RNG.uniform(-6, 4, (64, 1))
    rows[0] = 0
    rows[1] = 3.25
    rows[2] = np.where(np.arange(32) % 2, 1.0, -1.0)  # the extreme occurs with both signs
    rows[3] = np.arange(32) - 16
    rows[4] = (np.arange(32) - 16) * 0.5 + 127 * (np.arange(32) == 31)  # ties of Q8_0's rounding
    rows[5] = -np.abs(rows[5])
    rows[6] = 1e-30 * np.arange(32)  # the scale is too small for f16
    rows[7] = 1e30 * np.arange(32)  # the scale is too large for f16
    return rows.astype(np.float32)


def write_blocks(types):
    for ty, f16_fields in types.items():
        blocks = random_blocks(ty, f16_fields)
        decoded = quants.dequantize(blocks.reshape(1, -1), ty).astype("<f4")
        (OUT / f"{ty.name}.blocks").write_bytes(blocks.tobytes())
        (OUT / f"{ty.name}.f32").write_bytes(decoded.tobytes())


OUT.mkdir(exist_ok=True)
np.seterr(over="ignore")
write_blocks(F16_FIELDS)
x = inputs()
(OUT / "input.f32").write_bytes(x.astype("<f4").tobytes())
for ty in WRITTEN:
    (OUT / f"{ty.name}.quantized").write_bytes(np.ascontiguousarray(quants.quantize(x, ty)).tobytes())
write_blocks(LATER_F16_FIELDS)
(OUT / "MXFP4.quantized").write_bytes(quants.quantize(x, T.MXFP4).tobytes())
