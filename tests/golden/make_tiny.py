"""Writes tiny/<name>/: complete Hugging Face folders of tiny random models with their goldens.

    python make_tiny.py [NAME...]

Needs torch, transformers, tokenizers and safetensors. golden.json holds a prompt, its ids, logits
at some positions of prompt + continuation, and greedy ids, computed by transformers in f32 from
exactly the stored weights. make_tiny_gguf.py does the same for GGUF.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import tiny_model

LLAMA = ("llama", "LlamaForCausalLM")
QWEN2 = ("qwen2", "Qwen2ForCausalLM")
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 48,
}
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

# name: (stored type, shards, config.json)
MODELS = {
    "llama_gqa_tied_f32": (
        F32,
        1,
        tiny_model.config(*LLAMA, num_hidden_layers=1, tie_word_embeddings=True),
    ),
    "llama_head_dim_bf16": (BF16, 1, tiny_model.config(*LLAMA, num_hidden_layers=1, head_dim=24)),
    "llama3_rope_bf16": (
        BF16,
        1,
        tiny_model.config(
            *LLAMA, num_hidden_layers=1, rope_theta=500000.0, rope_scaling=LLAMA3_ROPE
        ),
    ),
    # transformers 5 writes theta and scaling into one object and calls the type "dtype".
    "llama3_rope_v5_bf16": (
        BF16,
        1,
        tiny_model.config(
            *LLAMA,
            rope_theta=None,
            rope_parameters=LLAMA3_ROPE | {"rope_theta": 500000.0},
            num_hidden_layers=1,
            tie_word_embeddings=True,
            torch_dtype=None,
            dtype="bfloat16",
        ),
    ),
    "llama_linear_rope_f16": (
        F16,
        1,
        tiny_model.config(
            *LLAMA,
            rope_scaling={"type": "linear", "factor": 4.0},
            num_hidden_layers=1,
            tie_word_embeddings=True,
        ),
    ),
    "llama_relu_f16": (
        F16,
        1,
        tiny_model.config(*LLAMA, hidden_act="relu", tie_word_embeddings=True),
    ),
    "llama_fatrelu_bf16": (
        BF16,
        1,
        tiny_model.config(
            *LLAMA,
            hidden_act="fatrelu",
            hidden_act_param=1.0,
            num_hidden_layers=1,
            tie_word_embeddings=True,
        ),
    ),
    "bamboo_drelu_bf16": (
        BF16,
        1,
        tiny_model.config("bamboo", "BambooForCausalLM", hidden_act="relu"),
    ),
    "mistral_window_f16_sharded": (
        F16,
        2,
        tiny_model.config(
            "mistral", "MistralForCausalLM", sliding_window=8, tie_word_embeddings=True
        ),
    ),
    # The window is not in use: a reader that looks at the number alone goes wrong.
    "qwen2_tied_bf16": (
        BF16,
        1,
        tiny_model.config(
            *QWEN2,
            tie_word_embeddings=True,
            rope_theta=1000000.0,
            use_sliding_window=False,
            sliding_window=4,
            max_window_layers=2,
        ),
    ),
    "qwen2_untied_f16": (F16, 1, tiny_model.config(*QWEN2)),
}
DTYPE_NAMES = {F32: "float32", F16: "float16", BF16: "bfloat16"}


def save_weights(folder: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, index = sorted(weights), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: weights[name] for name in names[i::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    size = sum(t.numel() * t.element_size() for t in weights.values())
    value = {"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))}
    tiny_model.write_json(folder / "model.safetensors.index.json", value)


def make(folder: Path, dtype: torch.dtype, shards: int, config: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if "torch_dtype" in config:
        config = config | {"torch_dtype": DTYPE_NAMES[dtype]}
    tied = config["tie_word_embeddings"]
    model = tiny_model.hf_model(config)
    for seed in range(100):
        weights = tiny_model.random_weights(model, seed, tied)
        weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
        tiny_model.load_weights(model, weights, tied)
        if golden := tiny_model.golden(model):
            break
    else:
        raise SystemExit(f"{folder.name}: every seed has a near tie among its greedy steps")
    save_weights(folder, weights, shards)
    tiny_model.write_json(folder / "config.json", config)
    tiny_model.write_tokenizer(folder)
    tiny_model.write_json(folder / "golden.json", {"seed": seed} | golden)
    print(f"{folder.name}: seed {seed}, margin {golden['min_top2_margin']}, {golden['greedy_ids']}")


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        make(Path(__file__).parent / "tiny" / name, *MODELS[name])
