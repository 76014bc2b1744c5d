"""Writes tiny/<name>/model.gguf with golden.json: every block format in a small model.

    python make_tiny_gguf.py [NAME...]

Needs what make_tiny.py needs, and the gguf package. The logits are those of transformers in f32 on
the weights that gguf's own reference dequantises. K-quants, which that package cannot quantise to,
get random blocks, so that every scale and bit pattern occurs; IQ4_NL and IQ4_XS are quantised here. The PowerInfer file has its own
magic, Down stored transposed, and predictors; its golden holds a second run under their mask.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as T

import make_tiny
import tiny_model

LAYER_TENSORS = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
GLOBAL_TENSORS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def formats(embedding: T, head: T | None, *layers: str) -> dict[str, T]:
    """GGUF names to formats; each layer is the formats of MATRICES in their order."""
    table = {"token_embd.weight": embedding}
    if head is not None:
        table["output.weight"] = head
    for i, layer in enumerate(layers):
        for name, kind in zip(MATRICES, layer.split(), strict=True):
            table[f"blk.{i}.{name}.weight"] = T[kind]
    return table


POWERINFER = "bamboo_powerinfer"
PREDICTOR_RANK = 16
SPARSE_THRESHOLD = 0.25
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 32}
LINEAR_ROPE = {"rope_type": "linear", "factor": 2.0}

# name: (config.json, formats)
MODELS = {
    "llama_legacy": (
        tiny_model.config(*make_tiny.LLAMA, tie_word_embeddings=True),
        formats(T.Q8_0, None, "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 F16 BF16", "F32 Q8_0 Q5_1 Q4_0 Q4_1 Q5_0 Q8_0"),
    ),
    "qwen2_legacy": (
        tiny_model.config(*make_tiny.QWEN2, rope_scaling=LINEAR_ROPE),
        formats(T.BF16, T.Q5_0, "Q8_0 F16 BF16 Q4_0 Q5_0 Q4_0 Q4_1", "Q5_1 Q5_0 Q4_0 BF16 Q8_0 Q5_1 F32"),
    ),
    # head_dim is not d_model / n_heads, and rope_freqs.weight carries llama 3's scaling.
    "llama_k": (
        tiny_model.config(
            *make_tiny.LLAMA,
            **WIDE,
            rope_theta=500000.0,
            rope_scaling=make_tiny.LLAMA3_ROPE,
            tie_word_embeddings=True,
        ),
        formats(T.Q4_K, None, "Q2_K Q3_K Q8_0 Q4_0 Q4_K Q5_K Q6_K", "Q4_K Q5_K Q6_K Q8_0 Q3_K Q2_K Q3_K"),
    ),
    "qwen2_k": (
        tiny_model.config(
            *make_tiny.QWEN2, **WIDE | {"head_dim": 64}, num_hidden_layers=1, num_key_value_heads=1
        ),
        formats(T.Q2_K, T.Q6_K, "Q5_K Q4_K Q2_K Q3_K Q2_K Q3_K Q4_K"),
    ),
    POWERINFER: (
        tiny_model.config("bamboo", "BambooForCausalLM", hidden_act="relu"),
        formats(T.Q8_0, T.Q5_0, "Q4_0 Q4_0 Q8_0 Q4_0 F16 F16 Q4_0", "Q8_0 Q8_0 Q8_0 Q8_0 Q4_0 Q4_0 F16"),
    ),
    "llama_iq4_nl": (
        tiny_model.config(*make_tiny.LLAMA, tie_word_embeddings=True),
        formats(T.IQ4_NL, None, " ".join(["IQ4_NL"] * 7), "IQ4_NL Q4_0 IQ4_NL Q8_0 Q4_0 IQ4_NL IQ4_NL"),
    ),
    "llama_iq4_xs": (
        tiny_model.config(*make_tiny.LLAMA, **WIDE),
        formats(
            T.IQ4_XS,
            T.IQ4_XS,
            "IQ4_XS IQ4_XS IQ4_XS IQ4_NL IQ4_XS IQ4_XS IQ4_XS",
            "IQ4_XS Q4_K Q6_K MXFP4 IQ4_XS Q5_K IQ4_XS",
        ),
    ),
    "qwen2_mxfp4": (
        tiny_model.config(*make_tiny.QWEN2),
        formats(T.MXFP4, T.MXFP4, " ".join(["MXFP4"] * 7), "Q8_0 MXFP4 Q4_0 MXFP4 MXFP4 Q5_0 MXFP4"),
    ),
    POWERINFER + "_tables": (
        tiny_model.config("bamboo", "BambooForCausalLM", hidden_act="relu"),
        formats(T.Q8_0, T.Q5_0, "Q4_0 Q4_0 Q8_0 Q4_0 IQ4_NL MXFP4 IQ4_NL", "Q8_0 Q8_0 Q8_0 Q8_0 MXFP4 Q4_0 MXFP4"),
    ),
}


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """HF's half-split rotary rows of Q or K in GGUF's interleaved order (llama only)."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def unpermuted(rows: np.ndarray, heads: int) -> np.ndarray:
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def random_k_blocks(kind: T, shape: tuple[int, int], std: float, rng: np.random.Generator) -> np.ndarray:
    """Random bytes under super-block scales that give the values this standard deviation."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    n = shape[0] * shape[1] // block_len
    blocks = rng.integers(0, 256, (n, block_bytes), dtype=np.uint8)
    # Byte offset of the f16 scale d, and of dmin with its ratio to d that centres the values.
    d_at, dmin_at, ratio = {
        T.Q2_K: (80, 82, 1.5),
        T.Q3_K: (108, None, 0),
        T.Q4_K: (0, 2, 7.5),
        T.Q5_K: (0, 2, 15.5),
        T.Q6_K: (208, None, 0),
    }[kind]

    def set_scales(d: np.ndarray) -> None:
        blocks[:, d_at : d_at + 2] = d.astype(np.float16)[:, None].view(np.uint8)
        if dmin_at is not None:
            blocks[:, dmin_at : dmin_at + 2] = (d * ratio).astype(np.float16)[:, None].view(np.uint8)

    spread = rng.uniform(0.5, 1.5, n) * rng.choice([-1, 1], n)
    set_scales(spread * 0.01)
    std_now = gguf.quants.dequantize(blocks, kind).std()
    set_scales(spread * 0.01 * std / std_now)
    return blocks.reshape(shape[0], -1)


def iq4_blocks(kind: T, rows: np.ndarray) -> np.ndarray:
    """Every 32 values get the scale with which the one of largest magnitude is the table's first, -127; in IQ4_XS these
    scales are 6-bit multiples of one."""
    groups = rows.reshape(-1, 32)
    extremes = np.take_along_axis(groups, np.abs(groups).argmax(axis=1, keepdims=True), axis=1)
    scales = extremes / -127
    if kind == T.IQ4_XS:
        supers = scales.reshape(-1, 8)
        d = np.take_along_axis(supers, np.abs(supers).argmax(axis=1, keepdims=True), axis=1) / -32
        d = d.astype(np.float16)
        steps = np.clip(np.rint(supers / d.astype(np.float32)), -32, 31).astype(np.int32)
        scales = (d.astype(np.float32) * steps).reshape(-1, 1)
    else:
        d = scales.astype(np.float16)
        scales = d.astype(np.float32)
    values = np.array(gguf.quants.IQ4_NL.kvalues, dtype=np.float32)
    inverse = np.where(scales == 0, 0, 1 / np.where(scales == 0, 1, scales))
    codes = np.abs((groups * inverse)[:, :, None] - values).argmin(axis=2).astype(np.uint8)
    codes = codes[:, :16] | codes[:, 16:] << 4
    if kind == T.IQ4_XS:
        steps = (steps + 32).astype(np.uint16)
        high = sum((steps[:, i : i + 1] >> 4) << (2 * i) for i in range(8)).astype(np.uint16)
        low = (steps[:, 0::2] & 15 | (steps[:, 1::2] & 15) << 4).astype(np.uint8)
        parts = d.view(np.uint8), high.view(np.uint8), low, codes.reshape(-1, 128)
    else:
        parts = d.view(np.uint8), codes
    return np.concatenate(parts, axis=1).reshape(rows.shape[0], -1)


def stored(weight: np.ndarray, kind: T, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of a tensor in a format, and the f32 values they stand for."""
    if kind in (T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K):
        data = random_k_blocks(kind, weight.shape, float(weight.std()), rng)
    elif kind in (T.IQ4_NL, T.IQ4_XS):
        data = iq4_blocks(kind, weight)
    else:
        data = gguf.quants.quantize(weight, kind)
    return data, gguf.quants.dequantize(data, kind).reshape(weight.shape)


def convert(weights: dict, config: dict, table: dict[str, T], seed: int) -> tuple[dict, dict]:
    """GGUF tensors by name as (data, format), and the HF weights they stand for."""
    rng = np.random.default_rng(seed)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors, meant = {}, {}
    for name, tensor in weights.items():
        if name in GLOBAL_TENSORS:
            out = GLOBAL_TENSORS[name]
        else:
            _, _, layer, rest = name.split(".", 3)
            out = f"blk.{layer}.{LAYER_TENSORS[rest]}"
        kind, rows = table.get(out, T.F32), tensor.numpy()
        n = heads.get(out.split(".")[-2]) if config["model_type"] != "qwen2" else None
        transposed = config["model_type"] == "bamboo" and "ffn_down" in out
        if n:
            rows = permuted(rows, n)
        if transposed:
            out, rows = out.replace("ffn_down", "ffn_down_t"), np.ascontiguousarray(rows.T)
        data, values = stored(rows, kind, rng)
        tensors[out] = (data, kind)
        values = values.T if transposed else unpermuted(values, n) if n else values
        meant[name] = torch.tensor(np.ascontiguousarray(values))
    return tensors, meant


def add_predictors(tensors: dict, config: dict, seed: int) -> list[list[torch.Tensor]]:
    """Adds random predictors to the GGUF tensors; returns (fc1, fc2) of every layer."""
    rng = np.random.default_rng(seed)
    d_model, d_ff = config["hidden_size"], config["intermediate_size"]
    predictors = []
    for i in range(config["num_hidden_layers"]):
        fc1 = rng.standard_normal((PREDICTOR_RANK, d_model)) / d_model**0.5
        fc2 = rng.standard_normal((d_ff, PREDICTOR_RANK)) / PREDICTOR_RANK**0.5
        pair = fc1.astype(np.float16), fc2.astype(np.float16)
        for name, matrix in zip(("fc1", "fc2"), pair):
            tensors[f"blk.{i}.{name}.weight"] = (matrix, T.F16)
        predictors.append([torch.tensor(matrix.astype(np.float32)) for matrix in pair])
    return predictors


def mask_with(predictors: list[list[torch.Tensor]], model: torch.nn.Module) -> None:
    """PowerInfer's rule: a neuron counts where fc2 . relu(fc1 . residual) reaches the threshold."""
    for (fc1, fc2), layer in zip(predictors, model.model.layers, strict=True):
        seen = {}

        def look(_, args, fc1=fc1, fc2=fc2, seen=seen):
            seen["mask"] = torch.relu(args[0] @ fc1.T) @ fc2.T >= SPARSE_THRESHOLD

        def mask(_, args, seen=seen):
            return (args[0] * seen["mask"],)

        layer.post_attention_layernorm.register_forward_pre_hook(look)
        layer.mlp.down_proj.register_forward_pre_hook(mask)


def llama3_factors(config: dict) -> np.ndarray:
    """Divisor of each rotary frequency, as transformers applies it."""
    rope = tiny_model.hf_model(config).model.rotary_emb
    head_dim = 2 * len(rope.inv_freq)
    plain = 1.0 / config["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    return (plain / rope.inv_freq.numpy()).astype(np.float32)


def write_metadata(writer: gguf.GGUFWriter, config: dict) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    if config["model_type"] == "bamboo":
        writer.add_float32("powerinfer.sparse_threshold", SPARSE_THRESHOLD)
    if head_dim * heads != config["hidden_size"]:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if config.get("rope_scaling") == LINEAR_ROPE:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(LINEAR_ROPE["factor"])


def write_vocabulary(writer: gguf.GGUFWriter) -> None:
    model = json.loads(tiny_model.tokenizer().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    special = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([special[0] if i < 2 else special[1] for i in range(len(tokens))])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)


def write_gguf(path: Path, config: dict, tensors: dict) -> None:
    writer = gguf.GGUFWriter(path, config["model_type"])
    writer.add_name(path.parent.name)
    write_metadata(writer, config)
    write_vocabulary(writer)
    if config.get("rope_scaling") == make_tiny.LLAMA3_ROPE:
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if path.parent.name.startswith(POWERINFER):
        path.write_bytes(b"PWRI" + path.read_bytes()[4:])


def run_only(golden: dict) -> dict:
    return {key: golden[key] for key in ("greedy_ids", "min_top2_margin", "logits")}


def make(folder: Path, config: dict, table: dict[str, T]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tied = config["tie_word_embeddings"]
    for seed in range(100):
        weights = tiny_model.random_weights(tiny_model.hf_model(config), seed, tied)
        tensors, meant = convert(weights, config, table, seed)
        model = tiny_model.hf_model(config)
        tiny_model.load_weights(model, meant, tied)
        golden = tiny_model.golden(model)
        if golden and folder.name.startswith(POWERINFER):
            mask_with(add_predictors(tensors, config, seed), model)
            predicted = tiny_model.golden(model)
            golden = predicted and golden | {"predicted": run_only(predicted)}
        if golden:
            break
    else:
        raise SystemExit(f"{folder.name}: no seed has greedy steps that are a test")
    write_gguf(folder / "model.gguf", config, tensors)
    tiny_model.write_json(folder / "golden.json", {"seed": seed} | golden)
    print(f"{folder.name}: seed {seed}, margin {golden['min_top2_margin']}, {golden['greedy_ids']}")


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        make(Path(__file__).parent / "tiny" / name, *MODELS[name])
