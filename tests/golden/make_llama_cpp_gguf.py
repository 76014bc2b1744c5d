"""Writes tiny/<name>_gguf/: models of make_tiny.py as GGUF by llama.cpp's own converter.

    python make_llama_cpp_gguf.py CONVERTER [NAME...]

CONVERTER is the folder with convert_hf_to_gguf.py (llama.cpp's root; the source package of
llama-cpp-python carries it). Needs what that script needs, and make_tiny.py's folders. Matrices
keep their 16-bit type, so the weights are the same and the Hugging Face folder's golden.json
holds unchanged. Names, metadata, the order of rotary rows and added ones are llama.cpp's.
"""

import json
import shutil
import sys
from pathlib import Path

import transformers

TINY = Path(__file__).parent / "tiny"
# Not gemma3_bf16, whose query_pre_attn_scalar GGUF cannot say, nor falcon_relu_f16, whose activation it cannot, nor
# windows that llama.cpp ignores, nor OPT, which it does not know.
MODELS = (
    "arcee_bf16",
    "baichuan_bf16",
    "cohere2_bf16",
    "command_r_bf16",
    "command_r_plus_bf16",
    "deepseek_v2_bf16",
    "deepseek_v2_lite_bf16",
    "deepseek_v3_bf16",
    "ernie4_5_bf16",
    "exaone4_bf16",
    "exaone4_full_bf16",
    "falcon_bf16",
    "falcon_two_norms_bf16",
    "gemma2_bf16",
    "gemma3_linear_bf16",
    "gemma4_bf16",
    "gemma4_inputs_bf16",
    "glm4_bf16",
    "glm4_moe_bf16",
    "gpt2_bf16",
    "gpt_oss_bf16",
    "granite_bf16",
    "hunyuan_bf16",
    "internlm2_bf16",
    "lfm2_bf16",
    "minicpm_bf16",
    "mistral3_yarn_bf16",
    "nemotron_bf16",
    "olmo2_bf16",
    "olmo3_bf16",
    "phi2_bf16",
    "phi3_longrope_bf16",
    "phi3_plain_f16",
    "qwen3_5_bf16",
    "qwen3_5_moe_bf16",
    "granite_moe_bf16",
    "mixtral_f16",
    "olmoe_bf16",
    "qwen2_moe_bf16",
    "qwen3_bf16",
    "qwen3_moe_all_bf16",
    "qwen3_next_bf16",
    "seed_oss_bf16",
    "smallthinker_bf16",
    "smallthinker_plain_bf16",
    "smollm3_bf16",
    "stablelm_12b_bf16",
    "stablelm_bf16",
    "starcoder2_bf16",
)
# As the converter wrote them until 2025, when files had the heads' own widths and one tensor for their keys and values.
OLDER = {"deepseek_v2_lite_older_bf16": "deepseek_v2_lite_bf16"}
# Their folders are not read: they are made for this script, and go with it.
GGUF_ONLY = ("gpt_oss_bf16", "deepseek_dense_bf16")
# Quantised by the converter: the golden is of what its blocks stand for.
QUANTISED = {"deepseek_dense_q8_0": "deepseek_dense_bf16"}
# Names of DeepSeek's tensors in GGUF, and in a checkpoint.
DEEPSEEK = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load_converter(folder: Path):
    """convert_hf_to_gguf, made to take the tiny tokenizer, which it knows nothing of."""
    sys.path.insert(0, str(folder))
    import convert_hf_to_gguf
    from conversion.baichuan import BaichuanModel
    from conversion.base import TextModel
    from conversion.deepseek import DeepseekV2Model
    from conversion.ernie import Ernie4_5Model
    from conversion.gemma import Gemma2Model, Gemma4Model
    from conversion.glm import Glm4Model, Glm4MoeModel
    from conversion.hunyuan import HunYuanModel
    from conversion.internlm import InternLM2Model
    from conversion.llama import LlamaModel
    from conversion.minicpm import MiniCPMModel
    from conversion.nemotron import NemotronModel
    from conversion.phi import Phi3MiniModel
    from conversion.stablelm import StableLMModel

    # For some models, transformers would add tokens of its own.
    transformers.AutoTokenizer.from_pretrained = transformers.PreTrainedTokenizerFast.from_pretrained
    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    own = (BaichuanModel, DeepseekV2Model, Ernie4_5Model, Gemma2Model, Gemma4Model, Glm4Model, HunYuanModel, InternLM2Model)
    own += (Glm4MoeModel, LlamaModel, MiniCPMModel, NemotronModel, Phi3MiniModel)
    for model in (TextModel, *own):
        model.set_vocab = TextModel._set_vocab_gpt2
    mend(TextModel, BaichuanModel, StableLMModel)
    return convert_hf_to_gguf


def mend(text, baichuan, stablelm) -> None:
    """Mends what llama-cpp-python 0.3.36 has."""
    unpack, stack = baichuan.modify_tensors, stablelm.modify_tensors

    def unpacked(self, tensor, name, layer):  # calls itself without end for whatever is not Q, K and V
        modify = unpack if "W_pack" in name else text.modify_tensors
        yield from modify(self, tensor, name, layer)

    def stacked(self, tensor, name, layer):  # returns the stacked norms where it should yield them
        rest = yield from stack(self, tensor, name, layer)
        yield from rest or ()

    baichuan.modify_tensors, stablelm.modify_tensors = unpacked, stacked


def as_before(deepseek, text) -> None:
    """Makes the converter write latent attention as it did at first."""
    describe, modify = deepseek.set_gguf_parameters, deepseek.modify_tensors

    def described(self):
        heads = self.hparams["num_key_value_heads"]
        describe(self)
        rest = self.hparams["qk_nope_head_dim"]
        self.gguf_writer.add_head_count_kv(heads)
        self.gguf_writer.add_key_length(rest + self.hparams["qk_rope_head_dim"])
        self.gguf_writer.add_value_length(self.hparams["v_head_dim"])
        for key in ("key_length_mla", "value_length_mla"):
            del self.gguf_writer.kv_data[0][f"deepseek2.attention.{key}"]

    def modified(self, tensor, name, layer):
        write = text.modify_tensors if "kv_b_proj" in name else modify
        yield from write(self, tensor, name, layer)

    deepseek.set_gguf_parameters, deepseek.modify_tensors = described, modified


def golden_of(path: Path, config: dict) -> dict:
    """What transformers makes of the values of a DeepSeek without experts."""
    import gguf
    import torch

    import tiny_model

    values = {}
    for tensor in gguf.GGUFReader(path).tensors:
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values[tensor.name.removesuffix(".weight")] = torch.tensor(data.copy()).float()
    weights = {}
    for name, value in values.items():
        *prefix, part = name.split(".")
        prefix = f"model.layers.{prefix[1]}." if prefix else ""
        if part == "attn_k_b":  # head by head, transposed keys and then values
            keys, of_values = value.transpose(1, 2), values[name.replace("k_b", "v_b")]
            weights[f"{prefix}self_attn.kv_b_proj.weight"] = torch.cat((keys, of_values), 1).flatten(0, 1)
        elif part != "attn_v_b":
            weights[f"{prefix}{DEEPSEEK[part]}.weight"] = value
    model = tiny_model.hf_model(config)
    model.load_state_dict(weights, strict=True)
    golden = tiny_model.golden(model)
    return golden or sys.exit(f"{path}: greedy steps that are no test")


def make(converter, name: str) -> None:
    source = OLDER.get(name, QUANTISED.get(name, name))
    if name in OLDER:
        from conversion.base import TextModel
        from conversion.deepseek import DeepseekV2Model

        as_before(DeepseekV2Model, TextModel)
    out = TINY / f"{name}_gguf"
    out.mkdir(exist_ok=True)
    outtype = "q8_0" if name in QUANTISED else name.rsplit("_", 1)[1]
    # A name with "phi3" in it makes llama.cpp look for tokens that the tiny vocabulary lacks.
    options = {"outfile": out / "model.gguf", "outtype": outtype, "model-name": "tiny"}
    options = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    sys.argv = ["convert_hf_to_gguf.py", str(TINY / source), *options]
    converter.main()
    if name in QUANTISED:
        import tiny_model

        config = json.loads((TINY / source / "config.json").read_text())
        tiny_model.write_json(out / "golden.json", golden_of(out / "model.gguf", config))
    else:
        shutil.copyfile(TINY / source / "golden.json", out / "golden.json")
    if source in GGUF_ONLY:
        shutil.rmtree(TINY / source)


if __name__ == "__main__":
    converter = load_converter(Path(sys.argv[1]).resolve())
    for name in sys.argv[2:] or (*MODELS, *OLDER, *QUANTISED):
        make(converter, name)
