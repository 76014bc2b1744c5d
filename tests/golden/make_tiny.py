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
GEMMA3 = ("gemma3_text", "Gemma3ForCausalLM")
PHI3 = ("phi3", "Phi3ForCausalLM")
GEMMA4 = ("gemma4_text", "Gemma4ForCausalLM")
EXAONE4 = ("exaone4", "Exaone4ForCausalLM")
FALCON = ("falcon", "FalconForCausalLM")
STARCODER2 = ("starcoder2", "Starcoder2ForCausalLM")
# Fields that architectures with names of their own do not have.
NOT_LLAMA = {
    "hidden_act": None,
    "intermediate_size": None,
    "num_key_value_heads": None,
    "rms_norm_eps": None,
}
FULL, SLIDING = "full_attention", "sliding_attention"
# Six sliding layers and a full one, the sixth.
GEMMA3_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 7,
    "head_dim": 16,
    "hidden_act": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-06,
    "attention_bias": False,
    "sliding_window": 8,
    "tie_word_embeddings": True,
}
# Full layers have heads of another width, of which 8 dimensions rotate, with a base of their own.
GEMMA4_SHAPE = {
    "pad_token_id": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 7,
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_act": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-06,
    "attention_bias": False,
    "sliding_window": 8,
    "final_logit_softcapping": 20.0,
    "rope_theta": None,
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
            "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "enable_moe_block": False,
    "tie_word_embeddings": True,
    "torch_dtype": None,
    "dtype": "bfloat16",
}
# Value heads share key heads, and a quarter of each head rotates.
QWEN35_SHAPE = {
    "pad_token_id": 1,
    "head_dim": 24,
    "rms_norm_eps": 1e-06,
    "rope_theta": None,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [1, 1, 1],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000.0,
        "rope_type": "default",
    },
    "attention_bias": False,
    "attn_output_gate": True,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "mtp_num_hidden_layers": 1,
    "torch_dtype": None,
    "dtype": "bfloat16",
}
LINEAR = "linear_attention"
# Heads of 16 plain and 8 rotated elements over latents of 40; positions are beyond the original context.
DEEPSEEK_SHAPE = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "attention_bias": False,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}
DEEPSEEK_ROPE = {
    "type": "yarn",
    "factor": 4.0,
    "beta_fast": 2.0,
    "beta_slow": 0.05,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 16,
}
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
    # Weights of the chosen experts are divided by their sum; the second layer is dense.
    "qwen3_moe_bf16": (
        BF16,
        1,
        tiny_model.config(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            num_hidden_layers=3,
            head_dim=24,
            rms_norm_eps=1e-06,
            rope_theta=1000000.0,
            attention_bias=False,
            use_sliding_window=False,
            sliding_window=None,
            num_experts=12,
            num_experts_per_tok=3,
            moe_intermediate_size=48,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[1],
            tie_word_embeddings=True,
        ),
    ),
    "qwen3_moe_all_bf16": (
        BF16,
        1,
        tiny_model.config(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            num_hidden_layers=2,
            head_dim=16,
            attention_bias=False,
            num_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
    ),
    # Weights are not divided, and there is an expert for all tokens, behind a gate.
    "qwen2_moe_bf16": (
        BF16,
        1,
        tiny_model.config(
            "qwen2_moe",
            "Qwen2MoeForCausalLM",
            num_hidden_layers=2,
            use_sliding_window=False,
            num_experts=9,
            num_experts_per_tok=4,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=80,
            norm_topk_prob=False,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            tie_word_embeddings=True,
        ),
    ),
    "olmoe_bf16": (
        BF16,
        1,
        tiny_model.config(
            "olmoe",
            "OlmoeForCausalLM",
            pad_token_id=1,
            intermediate_size=32,
            attention_bias=False,
            clip_qkv=None,
            num_experts=16,
            num_experts_per_tok=5,
            norm_topk_prob=False,
            tie_word_embeddings=True,
        ),
    ),
    "mixtral_f16": (
        F16,
        1,
        tiny_model.config(
            "mixtral",
            "MixtralForCausalLM",
            sliding_window=None,
            num_local_experts=4,
            num_experts_per_tok=2,
            tie_word_embeddings=True,
        ),
    ),
    # Both Gate and Up are cut off at 0, and each expert has a predictor.
    "turbosparse_mixtral_bf16": (
        BF16,
        1,
        tiny_model.config(
            "turbosparsemixtral",
            "TurboSparseMixtralForCausalLM",
            hidden_act="relu",
            num_local_experts=5,
            num_experts_per_tok=2,
        ),
    ),
    # The first layer is dense; biases change the choice, and the weights' sum and factor are not 1.
    "glm4_moe_bf16": (
        BF16,
        1,
        tiny_model.config(
            "glm4_moe",
            "Glm4MoeForCausalLM",
            pad_token_id=1,
            num_hidden_layers=3,
            num_nextn_predict_layers=0,
            head_dim=24,
            attention_bias=True,
            partial_rotary_factor=0.5,
            use_qk_norm=True,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            n_shared_experts=2,
            first_k_dense_replace=1,
            routed_scaling_factor=1.5,
            norm_topk_prob=True,
            n_group=1,
            topk_group=1,
        ),
    ),
    # Recurrent layers with experts, and one with attention.
    "qwen3_5_moe_bf16": (
        BF16,
        1,
        tiny_model.config(
            "qwen3_5_moe_text",
            "Qwen3_5MoeForCausalLM",
            **QWEN35_SHAPE,
            num_hidden_layers=3,
            intermediate_size=None,
            full_attention_interval=2,
            layer_types=[LINEAR, FULL, LINEAR],
            num_experts=10,
            num_experts_per_tok=4,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=48,
            tie_word_embeddings=True,
        ),
    ),
    # The same; a delta net's matrices are in two tensors, key head by key head.
    "qwen3_next_bf16": (
        BF16,
        1,
        tiny_model.config(
            "qwen3_next",
            "Qwen3NextForCausalLM",
            **QWEN35_SHAPE | {"rope_parameters": None, "rope_theta": 10000000.0, "attn_output_gate": None},
            partial_rotary_factor=0.25,
            num_hidden_layers=3,
            full_attention_interval=2,
            layer_types=[LINEAR, FULL, LINEAR],
            num_experts=10,
            num_experts_per_tok=4,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=48,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            tie_word_embeddings=True,
        ),
    ),
    # Queries are not compressed, and experts have no groups.
    "deepseek_v2_lite_bf16": (
        BF16,
        1,
        tiny_model.config(
            "deepseek_v2",
            "DeepseekV2ForCausalLM",
            **DEEPSEEK_SHAPE,
            rope_scaling=DEEPSEEK_ROPE,
            n_shared_experts=2,
            scoring_func="softmax",
            topk_method="greedy",
            n_group=1,
            topk_group=1,
            routed_scaling_factor=1.0,
            norm_topk_prob=False,
        )
        | {"q_lora_rank": None},
    ),
    # Groups of experts are as good as their best one.
    "deepseek_v2_bf16": (
        BF16,
        1,
        tiny_model.config(
            "deepseek_v2",
            "DeepseekV2ForCausalLM",
            **DEEPSEEK_SHAPE,
            rope_scaling=DEEPSEEK_ROPE,
            q_lora_rank=24,
            n_shared_experts=1,
            scoring_func="softmax",
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            routed_scaling_factor=2.0,
            norm_topk_prob=False,
        ),
    ),
    # Groups are as good as their best two with biases, and a layer that predicts a further token follows.
    "deepseek_v3_bf16": (
        BF16,
        1,
        tiny_model.config(
            "deepseek_v3",
            "DeepseekV3ForCausalLM",
            **DEEPSEEK_SHAPE | {"n_routed_experts": 12},
            rope_scaling=DEEPSEEK_ROPE | {"mscale": 1.0, "mscale_all_dim": 1.0},
            q_lora_rank=24,
            n_shared_experts=1,
            scoring_func="sigmoid",
            topk_method="noaux_tc",
            n_group=4,
            topk_group=2,
            routed_scaling_factor=1.5,
            norm_topk_prob=True,
            num_nextn_predict_layers=1,
            tie_word_embeddings=True,
        ),
    ),
    # Whole blocks of 32 everywhere. Only a GGUF of it stays, in eight bits.
    "deepseek_dense_bf16": (
        BF16,
        1,
        tiny_model.config(
            "deepseek_v3",
            "DeepseekV3ForCausalLM",
            **DEEPSEEK_SHAPE
            | {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
            | {"num_hidden_layers": 2, "first_k_dense_replace": 2},
            rope_scaling=DEEPSEEK_ROPE,
            q_lora_rank=64,
        ),
    ),
    # Latents without YaRN.
    "glm4_moe_lite_bf16": (
        BF16,
        1,
        tiny_model.config(
            "glm4_moe_lite",
            "Glm4MoeLiteForCausalLM",
            **DEEPSEEK_SHAPE | {"rms_norm_eps": 1e-05, "moe_layer_freq": None, "num_hidden_layers": 2},
            pad_token_id=1,
            q_lora_rank=32,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            routed_scaling_factor=1.8,
            norm_topk_prob=True,
            num_nextn_predict_layers=0,
        ),
    ),
    # Layers 0 and 4 do not rotate; the window is never full.
    "smallthinker_bf16": (
        BF16,
        1,
        tiny_model.config(
            "smallthinker",
            "SmallThinkerForCausalLM",
            num_hidden_layers=5,
            head_dim=24,
            hidden_act=None,
            intermediate_size=None,
            rope_theta=1500000.0,
            rope_scaling=None,
            sliding_window_size=4096,
            sliding_window_layout=[0, 1, 1, 1, 0],
            rope_layout=[0, 1, 1, 1, 0],
            moe_num_primary_experts=8,
            moe_num_active_primary_experts=3,
            moe_ffn_hidden_size=48,
            moe_primary_router_apply_softmax=False,
            tie_word_embeddings=True,
        ),
    ),
    "smallthinker_plain_bf16": (
        BF16,
        1,
        tiny_model.config(
            "smallthinker",
            "SmallThinkerForCausalLM",
            num_hidden_layers=2,
            head_dim=16,
            hidden_act=None,
            intermediate_size=None,
            rope_scaling=None,
            sliding_window_size=4096,
            sliding_window_layout=[0, 0],
            rope_layout=[1, 1],
            moe_num_primary_experts=6,
            moe_num_active_primary_experts=2,
            moe_ffn_hidden_size=64,
            moe_primary_router_apply_softmax=True,
        ),
    ),
    # Windows in layers 0 and 2. Only the GGUF of it stays: checkpoints have a form of their own.
    "gpt_oss_bf16": (
        BF16,
        1,
        tiny_model.config(
            "gpt_oss",
            "GptOssForCausalLM",
            pad_token_id=1,
            num_hidden_layers=3,
            head_dim=16,
            intermediate_size=32,
            attention_bias=True,
            sliding_window=8,
            layer_types=[SLIDING, FULL, SLIDING],
            rope_theta=None,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 4.0,
                "beta_fast": 2.0,
                "beta_slow": 0.05,
                "original_max_position_embeddings": 16,
                "truncate": True,
            },
            swiglu_alpha=1.702,
            swiglu_limit=7.0,
            num_local_experts=6,
            num_experts_per_tok=3,
        ),
    ),
    "granite_moe_bf16": (
        BF16,
        1,
        tiny_model.config(
            "granitemoe",
            "GraniteMoeForCausalLM",
            pad_token_id=1,
            intermediate_size=32,
            attention_bias=False,
            attention_multiplier=0.2,
            embedding_multiplier=2.5,
            residual_multiplier=0.6,
            logits_scaling=1.25,
            num_local_experts=8,
            num_experts_per_tok=3,
            tie_word_embeddings=True,
        ),
    ),
    # Short convolutions around two layers with attention, whose heads are wider than their share of the model's width.
    "lfm2_bf16": (
        BF16,
        1,
        tiny_model.config(
            "lfm2",
            "Lfm2ForCausalLM",
            pad_token_id=1,
            num_hidden_layers=5,
            head_dim=24,
            intermediate_size=90,
            block_auto_adjust_ff_dim=True,
            block_ffn_dim_multiplier=1.5,
            block_multiple_of=16,
            hidden_act=None,
            rms_norm_eps=None,
            norm_eps=1e-05,
            rope_theta=1000000.0,
            conv_L_cache=4,
            conv_bias=False,
            layer_types=["conv", FULL, "conv", FULL, "conv"],
            tie_word_embeddings=True,
        ),
    ),
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
    # head_dim is not hidden_size / heads, and Q and K are normalised per head.
    "qwen3_bf16": (
        BF16,
        1,
        tiny_model.config(
            "qwen3",
            "Qwen3ForCausalLM",
            num_hidden_layers=3,
            head_dim=24,
            intermediate_size=64,
            rms_norm_eps=1e-06,
            rope_theta=1000000.0,
            attention_bias=False,
            use_sliding_window=False,
            sliding_window=4,
            max_window_layers=2,
            tie_word_embeddings=True,
        ),
    ),
    # Layer 3 has attention, the others a gated delta net.
    "qwen3_5_bf16": (
        BF16,
        1,
        tiny_model.config(
            "qwen3_5_text",
            "Qwen3_5ForCausalLM",
            **QWEN35_SHAPE,
            num_hidden_layers=5,
            intermediate_size=64,
            full_attention_interval=4,
            layer_types=[LINEAR] * 3 + [FULL, LINEAR],
            tie_word_embeddings=True,
        ),
    ),
    # As the text part of a checkpoint that has others, with a separate head.
    "qwen3_5_parts_bf16": (
        BF16,
        1,
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": tiny_model.config(
                "qwen3_5_text",
                "Qwen3_5ForCausalLM",
                **QWEN35_SHAPE,
                num_hidden_layers=3,
                full_attention_interval=2,
            ),
            "tie_word_embeddings": False,
            "vision_config": {"depth": 1, "model_type": "qwen3_5_vision"},
        },
    ),
    # Scores and logits reach the caps, and layers 0, 2 and 4 slide.
    "gemma2_bf16": (
        BF16,
        1,
        tiny_model.config(
            "gemma2",
            "Gemma2ForCausalLM",
            pad_token_id=1,
            hidden_size=32,
            num_hidden_layers=5,
            intermediate_size=64,
            head_dim=24,
            hidden_act=None,
            hidden_activation="gelu_pytorch_tanh",
            rms_norm_eps=1e-06,
            attention_bias=False,
            query_pre_attn_scalar=24,
            sliding_window=8,
            attn_logit_softcapping=3.0,
            final_logit_softcapping=20.0,
            tie_word_embeddings=True,
        ),
    ),
    # The spelling of transformers 4; scores are not scaled by head_dim.
    "gemma3_bf16": (
        BF16,
        1,
        tiny_model.config(
            *GEMMA3,
            **GEMMA3_SHAPE,
            query_pre_attn_scalar=10,
            rope_theta=1000000.0,
            rope_local_base_freq=10000.0,
            sliding_window_pattern=6,
            final_logit_softcapping=None,
            attn_logit_softcapping=None,
        ),
    ),
    # The spelling of transformers 5; only the full layer's positions are divided.
    "gemma3_linear_bf16": (
        BF16,
        1,
        tiny_model.config(
            *GEMMA3,
            **GEMMA3_SHAPE,
            query_pre_attn_scalar=16,
            rope_theta=None,
            rope_parameters={
                "full_attention": {"factor": 8.0, "rope_theta": 1000000.0, "rope_type": "linear"},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
            layer_types=[SLIDING] * 5 + [FULL, SLIDING],
            torch_dtype=None,
            dtype="bfloat16",
        ),
    ),
    # The 31B form: full layers have one key/value head instead of two, and their values are their keys.
    "gemma4_bf16": (
        BF16,
        1,
        tiny_model.config(
            *GEMMA4,
            **GEMMA4_SHAPE,
            layer_types=[SLIDING] * 2 + [FULL] + [SLIDING] * 3 + [FULL],
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
            num_kv_shared_layers=0,
            hidden_size_per_layer_input=0,
            use_double_wide_mlp=False,
        ),
    ),
    # The E2B form: tokens have inputs of their own, and layers 4 and 5 attend over keys and values of layer 2, layer 6
    # over those of layer 3. Their own are in the checkpoint nevertheless.
    "gemma4_inputs_bf16": (
        BF16,
        1,
        tiny_model.config(
            *GEMMA4,
            **GEMMA4_SHAPE,
            layer_types=[SLIDING, FULL] * 2 + [SLIDING] * 2 + [FULL],
            attention_k_eq_v=False,
            num_kv_shared_layers=3,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=tiny_model.VOCAB,
            use_double_wide_mlp=True,
        ),
    ),
    # Phi-4-mini's form: 12 of 16 dimensions rotate, each pair with a factor of its own.
    "phi3_longrope_bf16": (
        BF16,
        1,
        tiny_model.config(
            *PHI3,
            pad_token_id=1,
            num_hidden_layers=3,
            intermediate_size=64,
            partial_rotary_factor=0.75,
            original_max_position_embeddings=24,
            rope_scaling={
                "type": "longrope",
                "short_factor": [1.0, 1.1, 1.25, 1.5, 1.75, 2.0],
                "long_factor": [1.0, 1.5, 2.25, 4.0, 7.5, 12.0],
            },
            tie_word_embeddings=True,
        ),
    ),
    "phi3_plain_f16": (
        F16,
        1,
        tiny_model.config(
            *PHI3,
            pad_token_id=1,
            num_hidden_layers=1,
            original_max_position_embeddings=256,
            rope_scaling=None,
        ),
    ),
    # The window counts in transformers; llama.cpp ignores it, so there is no GGUF of this one.
    "phi3_window_f16": (
        F16,
        1,
        tiny_model.config(
            *PHI3,
            pad_token_id=1,
            num_hidden_layers=1,
            original_max_position_embeddings=256,
            sliding_window=8,
            tie_word_embeddings=True,
        ),
    ),
    # Layer 3 has no positions.
    "smollm3_bf16": (
        BF16,
        1,
        tiny_model.config(
            "smollm3",
            "SmolLM3ForCausalLM",
            pad_token_id=1,
            num_hidden_layers=5,
            intermediate_size=64,
            rms_norm_eps=1e-06,
            rope_theta=5000000.0,
            no_rope_layers=[1, 1, 1, 0, 1],
            no_rope_layer_interval=4,
            attention_bias=False,
            mlp_bias=False,
            use_sliding_window=False,
            layer_types=[FULL] * 5,
            tie_word_embeddings=True,
        ),
    ),
    # Norms after each branch only, and over whole rows of Q and K.
    "olmo2_bf16": (
        BF16,
        1,
        tiny_model.config(
            "olmo2",
            "Olmo2ForCausalLM",
            pad_token_id=1,
            num_hidden_layers=3,
            rms_norm_eps=1e-06,
            rope_theta=500000.0,
            attention_bias=False,
        ),
    ),
    "minicpm_bf16": (
        BF16,
        1,
        tiny_model.config(
            "minicpm",
            "MiniCPMForCausalLM",
            num_hidden_layers=3,
            intermediate_size=64,
            scale_emb=3,
            scale_depth=1.4,
            dim_model_base=40,
            tie_word_embeddings=True,
        ),
    ),
    # LayerNorms that are stored minus one, with biases; 8 of 16 dimensions rotate.
    "nemotron_bf16": (
        BF16,
        1,
        tiny_model.config(
            "nemotron",
            "NemotronForCausalLM",
            num_hidden_layers=3,
            hidden_act="relu2",
            rms_norm_eps=None,
            norm_eps=1e-05,
            partial_rotary_factor=0.5,
            attention_bias=False,
            mlp_bias=False,
        ),
    ),
    # Only the full layer has YaRN. The betas are those of real models: llama.cpp reads no others here.
    "olmo3_bf16": (
        BF16,
        1,
        tiny_model.config(
            "olmo3",
            "Olmo3ForCausalLM",
            pad_token_id=1,
            num_hidden_layers=5,
            intermediate_size=64,
            rms_norm_eps=1e-06,
            max_position_embeddings=160,
            rope_theta=500000.0,
            rope_scaling={
                "attention_factor": 1.1386294361119891,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 4.0,
                "original_max_position_embeddings": 40,
                "rope_type": "yarn",
            },
            attention_bias=False,
            sliding_window=8,
            layer_types=[SLIDING] * 3 + [FULL, SLIDING],
        ),
    ),
    "granite_bf16": (
        BF16,
        1,
        tiny_model.config(
            "granite",
            "GraniteForCausalLM",
            num_hidden_layers=3,
            attention_bias=False,
            mlp_bias=False,
            rope_scaling=None,
            attention_multiplier=0.2,
            embedding_multiplier=2.5,
            residual_multiplier=0.6,
            logits_scaling=1.25,
            tie_word_embeddings=True,
        ),
    ),
    # Both blocks behind one LayerNorm; neighbours rotate, and logits are multiplied.
    "command_r_bf16": (
        BF16,
        1,
        tiny_model.config(
            "cohere",
            "CohereForCausalLM",
            pad_token_id=1,
            num_hidden_layers=3,
            head_dim=24,
            intermediate_size=64,
            rms_norm_eps=None,
            layer_norm_eps=1e-05,
            logit_scale=0.5,
            use_qk_norm=False,
            attention_bias=False,
            tie_word_embeddings=True,
        ),
    ),
    # Layer 3 sees everything and does not rotate.
    "cohere2_bf16": (
        BF16,
        1,
        tiny_model.config(
            "cohere2",
            "Cohere2ForCausalLM",
            pad_token_id=1,
            num_hidden_layers=5,
            intermediate_size=64,
            rms_norm_eps=None,
            layer_norm_eps=1e-05,
            logit_scale=0.5,
            rotary_pct=1.0,
            attention_bias=False,
            sliding_window=8,
            layer_types=[SLIDING] * 3 + [FULL, SLIDING],
            tie_word_embeddings=True,
        ),
    ),
    # The 32B form: layer 3 sees everything and does not rotate. The letters are as in its config.json.
    "exaone4_bf16": (
        BF16,
        1,
        tiny_model.config(
            *EXAONE4,
            num_hidden_layers=5,
            head_dim=24,
            intermediate_size=64,
            rope_theta=10000.0,
            rope_scaling=LLAMA3_ROPE,
            sliding_window=8,
            sliding_window_pattern="LLLG",
            layer_types=[SLIDING] * 3 + [FULL, SLIDING],
        ),
    ),
    # The 1.2B form: all layers see everything and rotate.
    "exaone4_full_bf16": (
        BF16,
        1,
        tiny_model.config(
            *EXAONE4,
            head_dim=24,
            intermediate_size=64,
            layer_types=[FULL] * 2,
            tie_word_embeddings=True,
        )
        | {"sliding_window": None, "sliding_window_pattern": None},
    ),
    # 12 of 24 dimensions rotate, neighbours together.
    "glm4_bf16": (
        BF16,
        1,
        tiny_model.config(
            "glm4",
            "Glm4ForCausalLM",
            pad_token_id=1,
            num_hidden_layers=3,
            head_dim=24,
            intermediate_size=64,
            rms_norm_eps=1e-06,
            partial_rotary_factor=0.5,
            attention_bias=True,
        ),
    ),
    "seed_oss_bf16": (
        BF16,
        1,
        tiny_model.config(
            "seed_oss",
            "SeedOssForCausalLM",
            pad_token_id=1,
            head_dim=24,
            intermediate_size=64,
            rope_theta=10000000.0,
            attention_bias=True,
            attention_out_bias=False,
            mlp_bias=False,
        ),
    ),
    "ernie4_5_bf16": (
        BF16,
        1,
        tiny_model.config(
            "ernie4_5",
            "Ernie4_5ForCausalLM",
            pad_token_id=1,
            head_dim=24,
            intermediate_size=64,
            rope_theta=500000.0,
            use_bias=False,
            tie_word_embeddings=True,
        ),
    ),
    # FFNs of two matrices, and YaRN with the betas that llama.cpp reads here.
    "arcee_bf16": (
        BF16,
        1,
        tiny_model.config(
            "arcee",
            "ArceeForCausalLM",
            num_hidden_layers=3,
            head_dim=24,
            hidden_act="relu2",
            max_position_embeddings=160,
            rope_scaling={
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 4.0,
                "original_max_position_embeddings": 40,
                "rope_type": "yarn",
            },
            attention_bias=False,
            mlp_bias=False,
        ),
    ),
    # Queries and keys are normalised after the rotation, whose base alpha changes. llama.cpp's converter asks for this
    # context.
    "hunyuan_bf16": (
        BF16,
        1,
        tiny_model.config(
            "hunyuan_v1_dense",
            "HunYuanDenseV1ForCausalLM",
            pad_token_id=1,
            num_hidden_layers=3,
            head_dim=24,
            intermediate_size=64,
            max_position_embeddings=32768,
            rope_scaling={
                "alpha": 50.0,
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "type": "dynamic",
            },
            attention_bias=False,
            use_cla=False,
            use_qk_norm=True,
            tie_word_embeddings=True,
        ),
    ),
    # Positions are learned, and their table ends soon after the run; 2 rows come before the first.
    "opt_bf16": (
        BF16,
        1,
        tiny_model.config(
            "opt",
            "OPTForCausalLM",
            **NOT_LLAMA,
            pad_token_id=1,
            num_hidden_layers=3,
            ffn_dim=96,
            word_embed_proj_dim=64,
            activation_function="relu",
            do_layer_norm_before=True,
            _remove_final_layer_norm=False,
            enable_bias=True,
            layer_norm_elementwise_affine=True,
            max_position_embeddings=72,
            rope_theta=None,
            tie_word_embeddings=True,
        ),
    ),
    # The 7B form: one LayerNorm, one key/value head. The activation and the FFN's width are not named.
    "falcon_bf16": (
        BF16,
        1,
        tiny_model.config(
            *FALCON,
            **NOT_LLAMA,
            num_hidden_layers=3,
            num_kv_heads=1,
            multi_query=True,
            new_decoder_architecture=False,
            parallel_attn=True,
            bias=False,
            alibi=False,
            tie_word_embeddings=True,
        ),
    ),
    # The 40B form: two LayerNorms.
    "falcon_two_norms_bf16": (
        BF16,
        1,
        tiny_model.config(
            *FALCON,
            **NOT_LLAMA,
            num_hidden_layers=3,
            num_kv_heads=2,
            multi_query=True,
            new_decoder_architecture=True,
            parallel_attn=True,
            bias=False,
            alibi=False,
            tie_word_embeddings=False,
        ),
    ),
    # The 11B form, one LayerNorm and several key/value heads, with the activation of Falcon-ReLU. GGUF cannot name it.
    "falcon_relu_f16": (
        F16,
        1,
        tiny_model.config(
            *FALCON,
            **NOT_LLAMA,
            ffn_hidden_size=128,
            num_kv_heads=2,
            num_ln_in_parallel_attn=1,
            multi_query=True,
            new_decoder_architecture=True,
            parallel_attn=True,
            activation="relu",
            bias=False,
            alibi=False,
            tie_word_embeddings=True,
        ),
    ),
    "starcoder2_bf16": (
        BF16,
        1,
        tiny_model.config(
            *STARCODER2,
            num_hidden_layers=3,
            hidden_act="gelu_pytorch_tanh",
            rms_norm_eps=None,
            norm_epsilon=1e-05,
            use_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    # llama.cpp knows no window here.
    "starcoder2_window_f16": (
        F16,
        1,
        tiny_model.config(
            *STARCODER2,
            num_hidden_layers=1,
            hidden_act="gelu_pytorch_tanh",
            rms_norm_eps=None,
            norm_epsilon=1e-05,
            use_bias=True,
            sliding_window=8,
            tie_word_embeddings=True,
        ),
    ),
    # 8 of 16 dimensions rotate; logits have biases, too.
    "phi2_bf16": (
        BF16,
        1,
        tiny_model.config(
            "phi",
            "PhiForCausalLM",
            num_hidden_layers=3,
            num_key_value_heads=4,
            intermediate_size=256,
            hidden_act="gelu_new",
            rms_norm_eps=None,
            layer_norm_eps=1e-05,
            partial_rotary_factor=0.5,
            qk_layernorm=False,
        ),
    ),
    # The names of fields are as in its config.json.
    "gpt2_bf16": (
        BF16,
        1,
        tiny_model.config(
            "gpt2",
            "GPT2LMHeadModel",
            **NOT_LLAMA,
            hidden_size=None,
            num_hidden_layers=None,
            num_attention_heads=None,
            max_position_embeddings=None,
            n_embd=64,
            n_layer=3,
            n_head=4,
            n_positions=72,
            n_ctx=72,
            layer_norm_epsilon=1e-05,
            activation_function="gelu_new",
            rope_theta=None,
            tie_word_embeddings=True,
        ),
    ),
    "internlm2_bf16": (
        BF16,
        1,
        tiny_model.config(
            "internlm2",
            "InternLM2ForCausalLM",
            num_hidden_layers=3,
            intermediate_size=64,
            bias=False,
            rope_scaling={"type": "dynamic", "factor": 2.0},
        ),
    ),
    "baichuan_bf16": (
        BF16,
        1,
        tiny_model.config(
            "baichuan",
            "BaichuanForCausalLM",
            num_hidden_layers=3,
            num_key_value_heads=None,
            intermediate_size=64,
            rope_theta=None,
        ),
    ),
    # Both blocks behind one LayerNorm, and each head's queries and keys behind their own.
    "command_r_plus_bf16": (
        BF16,
        1,
        tiny_model.config(
            "cohere",
            "CohereForCausalLM",
            pad_token_id=1,
            num_hidden_layers=3,
            head_dim=24,
            intermediate_size=64,
            rms_norm_eps=None,
            layer_norm_eps=1e-05,
            logit_scale=0.5,
            use_qk_norm=True,
            attention_bias=False,
            tie_word_embeddings=True,
        ),
    ),
    # The 12B form, likewise; 4 of 16 dimensions rotate.
    "stablelm_12b_bf16": (
        BF16,
        1,
        tiny_model.config(
            "stablelm",
            "StableLmForCausalLM",
            num_hidden_layers=3,
            intermediate_size=64,
            rms_norm_eps=None,
            layer_norm_eps=1e-05,
            partial_rotary_factor=0.25,
            use_qkv_bias=False,
            qk_layernorm=True,
            use_parallel_residual=True,
        ),
    ),
    # 4 of 16 dimensions rotate.
    "stablelm_bf16": (
        BF16,
        1,
        tiny_model.config(
            "stablelm",
            "StableLmForCausalLM",
            intermediate_size=64,
            rms_norm_eps=None,
            layer_norm_eps=1e-05,
            partial_rotary_factor=0.25,
            use_qkv_bias=True,
            qk_layernorm=False,
            use_parallel_residual=False,
        ),
    ),
    # The text part of Mistral 3: YaRN whose cosines are not scaled, and queries that grow with the
    # position (every 16 positions here).
    "mistral3_yarn_bf16": (
        BF16,
        1,
        tiny_model.config(
            "ministral3",
            "Ministral3ForCausalLM",
            pad_token_id=1,
            num_hidden_layers=3,
            head_dim=24,
            intermediate_size=64,
            rope_theta=None,
            rope_parameters={
                "beta_fast": 1.0,
                "beta_slow": 0.25,
                "factor": 16.0,
                "llama_4_scaling_beta": 0.3,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 16,
                "rope_theta": 10000.0,
                "rope_type": "yarn",
                "type": "yarn",
            },
            sliding_window=None,
            tie_word_embeddings=True,
            torch_dtype=None,
            dtype="bfloat16",
        ),
    ),
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


def superfluous(config: dict, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Keys and values of layers that use those of others, as published checkpoints have them."""
    shared, kinds = config.get("num_kv_shared_layers", 0), config.get("layer_types", [])
    own = kinds[: len(kinds) - shared]
    name = "model.layers.{}.self_attn.{}".format
    return {
        name(layer, part): 3 * weights[name(own.index(kinds[layer]), part)]
        for layer in range(len(own), len(kinds))
        for part in ("k_proj.weight", "v_proj.weight", "k_norm.weight")
    }


def with_other_parts(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The names of a text model among other parts, which have tensors of their own."""
    of_text = {name.replace("model.", "model.language_model.", 1): w for name, w in weights.items()}
    return of_text | {"model.visual.merger.norm.weight": torch.ones(2, dtype=BF16)}


def with_further_layer(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Adds a layer that predicts a further token: a copy of the first one with attention."""
    layer = next(name.split(".")[2] for name in weights if "self_attn" in name)
    prefix = f"model.layers.{layer}."
    own = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
    further = {f"mtp.layers.0.{name}": w.clone() for name, w in own.items()}
    norm = own["input_layernorm.weight"]
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        further[f"mtp.{name}.weight"] = norm.clone()
    further["mtp.fc.weight"] = torch.ones(len(norm), 2 * len(norm), dtype=norm.dtype)
    return weights | further


def with_layer_behind(weights: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """The same for checkpoints that count it after their own layers."""
    of_first = {name: w.clone() for name, w in weights.items() if name.startswith("model.layers.0.")}
    behind = {name.replace(".0.", f".{layers}.", 1): w for name, w in of_first.items()}
    return weights | behind | {f"model.layers.{layers}.enorm.weight": torch.ones(2, dtype=BF16)}


def make(folder: Path, dtype: torch.dtype, shards: int, config: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if "torch_dtype" in config:
        config = config | {"torch_dtype": DTYPE_NAMES[dtype]}
    text = config.get("text_config", config)
    tied = text["tie_word_embeddings"]
    model = tiny_model.hf_model(text)
    for seed in range(100):
        weights = tiny_model.random_weights(model, seed, tied)
        weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
        tiny_model.load_weights(model, weights, tied)
        if golden := tiny_model.golden(model):
            break
    else:
        raise SystemExit(f"{folder.name}: no seed has greedy steps that are a test")
    weights = weights | superfluous(config, weights)
    if "mtp_num_hidden_layers" in text:
        weights = with_further_layer(weights)
    if config.get("num_nextn_predict_layers"):
        weights = with_layer_behind(weights, config["num_hidden_layers"])
    if text is not config:
        weights = with_other_parts(weights)
    save_weights(folder, tiny_model.stored(config, weights), shards)
    tiny_model.write_json(folder / "config.json", config)
    tiny_model.write_tokenizer(folder)
    tiny_model.write_json(folder / "golden.json", {"seed": seed} | golden)
    print(f"{folder.name}: seed {seed}, margin {golden['min_top2_margin']}, {golden['greedy_ids']}")


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        make(Path(__file__).parent / "tiny" / name, *MODELS[name])
