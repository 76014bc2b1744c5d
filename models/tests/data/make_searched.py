#!/usr/bin/env python3
"""How well llama.cpp's search for scales does, which the engine's own is compared with.

    pip install gguf==0.19.0 numpy
    python make_searched.py LIBRARY

LIBRARY is a shared library with ggml_quantize_chunk (libggml-base of any llama.cpp package). Writes next to this script:
    blocks/weights.f32     8 rows of 512 numbers of unequal sizes, as trained weights are
    blocks/searched.json   per format the sum of the squared errors, as a share of the sum of the squares
"""
import ctypes
import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, quants

OUT = Path(__file__).parent / "blocks"
FORMATS = [T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL, T.IQ4_XS]

library = ctypes.CDLL(sys.argv[1])
library.ggml_quantize_chunk.restype = ctypes.c_size_t
library.ggml_quantize_chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
rng = np.random.default_rng(20261122)
sizes = np.exp(0.5 * rng.standard_normal((8, 512)))
x = (0.02 * rng.standard_normal((8, 512)) * sizes).astype("<f4")
(OUT / "weights.f32").write_bytes(x.tobytes())
errors = {}
for ty in FORMATS:
    length, size = GGML_QUANT_SIZES[ty]
    blocks = np.zeros((8, 512 // length * size), dtype=np.uint8)
    library.ggml_quantize_chunk(int(ty), x.ctypes.data, blocks.ctypes.data, 0, 8, 512, None)
    error = quants.dequantize(blocks, ty).astype(np.float64) - x
    errors[ty.name] = float(f"{(error**2).sum() / (x.astype(np.float64) ** 2).sum():.6g}")
(OUT / "searched.json").write_text(json.dumps(errors, indent=2) + "\n")
