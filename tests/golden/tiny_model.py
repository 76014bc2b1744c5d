"""Random tiny models, their tokenizer, and the goldens transformers computes for them in f32.

Weights are drawn so that every part matters: attention scores spread over several units, the gate
is zero about half of the time where it can be, and logits are a few units apart.
"""

import json
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers.activations import ACT2FN

PROMPT = "The river ran over the stones and then under the old bridge to the sea."
NEW_TOKENS = 16
LOGIT_POSITIONS = (0, 9, -1)  # of the prompt; the last fed token is added
MARGIN = 0.02  # least gap between the two best logits of a greedy step
DISTINCT = 4  # least number of different greedy ids
VOCAB = 288
EMBEDDINGS = ("embed_tokens.weight", "word_embeddings.weight", "wte.weight", "wpe.weight", "embed_positions.weight")
MIXTRALS = ("mixtral", "turbosparsemixtral")
MERGES = (
    "t h|Ġ t|h e|Ġt he|e r|i n|a n|o n|o r|Ġ a|Ġ s|an d|r i|o u|Ġ and|"
    "Ġ o|i s|e n|s t|Ġ b|i t|e s|t o|a t|l d|d g|Ġ r|Ġo ld|dg e|e a"
)


def tokenizer() -> Tokenizer:
    """Byte-level BPE: two specials, 256 bytes, 30 merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [tuple(m.split(" ")) for m in MERGES.split("|")]
    tokens = ["<|begin|>", "<|end|>", *alphabet, *("".join(m) for m in merges)]
    assert len(set(tokens)) == VOCAB
    t = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in tokens[:2]])
    return t


def write_tokenizer(folder: Path) -> None:
    tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", config)


def config(model_type: str, architecture: str, **changes) -> dict:
    """A config.json as checkpoints carry it; a value of None removes the key."""
    base = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }
    return {k: v for k, v in (base | changes).items() if v is not None}


class FatRelu(torch.nn.Module):
    """ProSparse: x above the threshold, otherwise 0."""

    def __init__(self, threshold: float):
        super().__init__()
        self.threshold = threshold

    def forward(self, x):
        return torch.where(x > self.threshold, x, torch.zeros_like(x))


def hf_model(config: dict) -> torch.nn.Module:
    """The transformers model of a config.json, with what transformers itself does not know."""
    known = dict(config)
    if config.get("hidden_act") == "fatrelu":
        ACT2FN["fatrelu"] = (FatRelu, {"threshold": config["hidden_act_param"]})
    if config["model_type"] == "bamboo":  # Mistral's layers, an FFN of its own
        known |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
        known.setdefault("sliding_window", None)
    if config["model_type"] == "minicpm":  # what Granite computes, by other names
        d, depth = config["hidden_size"], config["num_hidden_layers"]
        known |= {
            "model_type": "granite",
            "architectures": ["GraniteForCausalLM"],
            "embedding_multiplier": config["scale_emb"],
            "residual_multiplier": config["scale_depth"] / depth**0.5,
            "logits_scaling": d / config["dim_model_base"],
            "attention_multiplier": (d / config["num_attention_heads"]) ** -0.5,
        }
    if config["model_type"] == "smallthinker":  # Mixtral's layers; see early_routing()
        known |= {
            "model_type": "mixtral",
            "architectures": ["MixtralForCausalLM"],
            "hidden_act": "relu",
            "num_local_experts": config["moe_num_primary_experts"],
            "num_experts_per_tok": config["moe_num_active_primary_experts"],
            "intermediate_size": config["moe_ffn_hidden_size"],
            "sliding_window": None,
        }
    if config["model_type"] == "turbosparsemixtral":  # Mixtral's layers; see double_relu()
        known |= {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "sliding_window": None}
    if config["model_type"] in ("internlm2", "baichuan"):  # Llama's layers; see stored()
        known |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    known = transformers.AutoConfig.for_model(**known)
    model = transformers.AutoModelForCausalLM.from_config(
        known, dtype=torch.float32, attn_implementation="eager"
    )
    if config["model_type"] == "bamboo":
        for layer in model.model.layers:
            layer.mlp.forward = lambda x, m=layer.mlp: m.down_proj(
                torch.relu(m.gate_proj(x)) * torch.relu(m.up_proj(x))
            )
    if config["model_type"] == "smallthinker":
        early_routing(config, model)
    if config["model_type"] == "turbosparsemixtral":
        double_relu(model)
    return model.eval()


def double_relu(model: torch.nn.Module) -> None:
    """Experts with relu(gate) * relu(up)."""
    for layer in model.model.layers:

        def forward(x, chosen, weights, own=layer.mlp.experts):
            out = torch.zeros_like(x)
            for expert in range(own.num_experts):
                token, place = torch.where(chosen == expert)
                gate, up = torch.nn.functional.linear(x[token], own.gate_up_proj[expert]).chunk(2, -1)
                hidden = torch.relu(gate) * torch.relu(up)
                result = torch.nn.functional.linear(hidden, own.down_proj[expert])
                out.index_add_(0, token, result * weights[token, place, None])
            return out

        layer.mlp.experts.forward = forward


def early_routing(config: dict, model: torch.nn.Module) -> None:
    """Routers see the residual stream before their layer, and some layers do not rotate."""
    for layer, rotates in zip(model.model.layers, config["rope_layout"], strict=True):
        gate = layer.mlp.gate
        rest = gate.forward

        def before(layer, args, kwargs, gate=gate, rotates=rotates):
            gate.before = args[0] if args else kwargs["hidden_states"]
            if not rotates:
                cos, sin = kwargs["position_embeddings"]
                kwargs["position_embeddings"] = torch.ones_like(cos), torch.zeros_like(sin)
            return args, kwargs

        def route(_, gate=gate, rest=rest):
            if config["moe_primary_router_apply_softmax"]:
                return rest(gate.before)
            logits = torch.nn.functional.linear(gate.before.reshape(-1, gate.hidden_dim), gate.weight)
            scores, chosen = torch.sigmoid(logits).topk(gate.top_k, dim=-1)
            return logits, scores / scores.sum(-1, keepdim=True), chosen

        layer.register_forward_pre_hook(before, with_kwargs=True)
        gate.forward = route


def stored(config: dict, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights under the names and in the form of the checkpoint."""
    kind = config["model_type"]
    weights = with_experts_apart(kind, weights)
    if kind == "turbosparsemixtral":  # which nobody reads
        fc1, fc2 = (16, config["hidden_size"]), (config["intermediate_size"], 16)
        gates = [name for name in weights if name.endswith(".w1.weight")]
        for part, shape in (("fc1", fc1), ("fc2", fc2)):
            names = [name.replace("w1", f"predictor.{part}") for name in gates]
            weights |= {name: torch.ones(shape, dtype=torch.bfloat16) for name in names}
    if kind not in ("internlm2", "baichuan"):
        return weights
    renamed, fused = dict(weights), {}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        qkv = [renamed.pop(f"{prefix}self_attn.{x}_proj.weight") for x in "qkv"]
        if kind == "baichuan":
            fused[f"{prefix}self_attn.W_pack.weight"] = torch.cat(qkv)
            continue
        heads = config["num_key_value_heads"]  # each with its queries, its key and its value
        by_head = [m.view(heads, -1, m.shape[1]) for m in qkv]
        fused[f"{prefix}attention.wqkv.weight"] = torch.cat(by_head, 1).flatten(0, 1)
    names = {
        "embed_tokens": "tok_embeddings",
        "lm_head": "output",
        "self_attn.o_proj": "attention.wo",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    }
    for old, new in names.items() if kind == "internlm2" else ():
        renamed = {name.replace(old, new): tensor for name, tensor in renamed.items()}
    return renamed | fused


def with_experts_apart(kind: str, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts as checkpoints have them; transformers has those of a layer in two tensors."""
    own = {}
    for name, tensor in weights.items():
        layer, _, part = name.partition(".mlp.experts.")
        if kind == "granitemoe":
            name = name.replace("router.weight", "router.layer.weight")
            name = name.replace("experts.gate_up_proj", "input_linear.weight")
            own[name.replace("experts.down_proj", "output_linear.weight")] = tensor
        elif kind in MIXTRALS and ".mlp.gate." in name:
            own[name.replace("mlp", "block_sparse_moe")] = tensor
        elif kind == "smallthinker" and ".mlp.gate." in name:
            own[name.replace("mlp.gate", "block_sparse_moe.primary_router")] = tensor
        elif not part or kind in ("gpt_oss", "qwen3_5_moe_text"):
            own[name] = tensor
        else:
            for expert, matrix in enumerate(tensor):
                parts = matrix.chunk(2) if part == "gate_up_proj" else (matrix,)
                names = ("gate_proj", "up_proj") if len(parts) == 2 else ("down_proj",)
                prefix = f"{layer}.mlp.experts.{expert}."
                if kind == "smallthinker":
                    prefix = prefix.replace("mlp", "block_sparse_moe")
                    names = [n.removesuffix("_proj") for n in names]
                if kind in MIXTRALS:
                    prefix = prefix.replace("mlp", "block_sparse_moe")
                    names = [{"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}[n] for n in names]
                for n, matrix in zip(names, parts, strict=True):
                    own[f"{prefix}{n}.weight"] = matrix.contiguous()
    return own


def random_weights(model: torch.nn.Module, seed: int, tied: bool) -> dict[str, torch.Tensor]:
    """HF names to f32 tensors, without the head where it is tied."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("norm.weight") or name.endswith("weight") and tensor.dim() == 1:
            # Scores of normalised queries and keys are as large as these two norms make them.
            scores = ("q_norm.", "k_norm.", "query_layernorm.", "key_layernorm.", "q_layernorm.", "k_layernorm.")
            unscaled = model.config.model_type == "gemma4_text"
            mean = (0.6 if unscaled else 1.6) if any(norm in name for norm in scores) else 1
            minus_one = ("gemma2", "gemma3_text", "nemotron", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
            as_is = name.endswith("linear_attn.norm.weight")
            stored_minus_one = model.config.model_type in minus_one and not as_is
            weights[name] = mean - stored_minus_one + 0.2 * noise
        elif name.endswith(("bias", "A_log", "sinks")):
            weights[name] = 0.5 * noise
        elif name.endswith("layer_scalar"):
            weights[name] = 0.8 + 0.1 * noise
        elif name.endswith(EMBEDDINGS):
            weights[name] = 0.25 * noise
        else:
            # GPT-2 stores its matrices transposed; the first dimension of experts' is their number.
            transposed = ".c_" in name and model.config.model_type == "gpt2"
            transposed |= tensor.dim() == 3 and model.config.model_type == "gpt_oss"
            inputs = tensor.shape[-2 if transposed else -1]
            weights[name] = 1.5 * noise / inputs**0.5
    return weights


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor], tied: bool) -> None:
    weights = {name: tensor.float() for name, tensor in weights.items()}
    if tied:
        embedding = model.get_input_embeddings().weight
        name = next(name for name, tensor in model.named_parameters() if tensor is embedding)
        weights["lm_head.weight"] = weights[name]
    model.load_state_dict(weights, strict=True)


def check_long_factors(model: torch.nn.Module, prompt_len: int) -> str:
    """What golden.json says of longrope: transformers chooses the factors for all positions of a
    call by the number of positions, and every call here was longer than the original context."""
    rope = getattr(getattr(model, "model", None), "rotary_emb", None)
    if getattr(rope, "rope_type", None) != "longrope":
        return ""
    parameters = model.config.rope_parameters
    assert prompt_len > parameters["original_max_position_embeddings"]
    n = len(parameters["long_factor"])
    plain = parameters["rope_theta"] ** -(torch.arange(n) / n)
    torch.testing.assert_close(rope.inv_freq, plain / torch.tensor(parameters["long_factor"]))
    return "; the long rope factors at every position"


@torch.no_grad()
def golden(model: torch.nn.Module) -> dict | None:
    """Logits and greedy ids; None where greedy ids are no test: two logits too close, or an echo."""
    prompt_ids = tokenizer().encode(PROMPT).ids
    ids, margin = list(prompt_ids), float("inf")
    for _ in range(NEW_TOKENS):
        top = model(torch.tensor([ids])).logits[0, -1].topk(2)
        margin = min(margin, float(top.values[0] - top.values[1]))
        ids.append(int(top.indices[0]))
    greedy_ids = ids[len(prompt_ids) :]
    if margin < MARGIN or len(set(greedy_ids)) < DISTINCT:
        return None
    logits = model(torch.tensor([ids[:-1]])).logits[0]
    note = check_long_factors(model, len(prompt_ids))
    fed = [p % len(prompt_ids) for p in LOGIT_POSITIONS] + [len(ids) - 2]
    return {
        "source": f"transformers {transformers.__version__}, torch {torch.__version__}, f32" + note,
        "prompt": PROMPT,
        "prompt_ids": prompt_ids,
        "greedy_ids": greedy_ids,
        "min_top2_margin": round(margin, 4),
        "logits": [
            {"position": p, "values": [float(f"{v:.6g}") for v in logits[p].tolist()]} for p in fed
        ],
    }


def write_json(path: Path, value: dict) -> None:
    """JSON with one top-level key per line, so that a change shows as one."""
    lines = (f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
