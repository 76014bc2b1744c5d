#!/usr/bin/env python3
"""An importance matrix as llama.cpp's llama-imatrix writes it (tools/imatrix/imatrix.cpp, save_imatrix).

    pip install gguf==0.19.0 numpy
    python make_imatrix.py

Writes imatrix.gguf next to this script: a plain matrix of 4 columns, and one of 3 experts of 2 columns, of which no
token used the second.
"""
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

OUT = Path(__file__).parent / "imatrix.gguf"

writer = GGUFWriter(OUT, "")
writer.add_string("general.type", "imatrix")
writer.add_array("imatrix.datasets", ["wiki.train.raw", "code.txt"])
writer.add_uint32("imatrix.chunk_count", 3)
writer.add_uint32("imatrix.chunk_size", 512)
for name, sums, counts in [
    ("blk.0.attn_q.weight", [[1536.0, 0.0, 768.0, 384.0]], [[1536.0]]),
    ("blk.0.ffn_down_exps.weight", [[8.0, 2.0], [0.0, 0.0], [0.5, 4.0]], [[2.0], [0.0], [5.0]]),
]:
    writer.add_tensor(f"{name}.in_sum2", np.array(sums, dtype="<f4"))
    writer.add_tensor(f"{name}.counts", np.array(counts, dtype="<f4"))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
