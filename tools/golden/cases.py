"""The golden checkpoints: one entry per architecture or rope variant.

Each case is plain data: the Hugging Face configuration of a tiny model, how its weights are stored, and the `ablate`
overrides, each of which must move the logits (otherwise the golden could not see that mechanism missing). What is made
of a case keeps the case's digest in its meta.json; tools/test_goldens.py compares them. Standard library only.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field

import expert_cases


@dataclass
class Case:
    name: str
    family: str  # model_type of transformers
    config: dict
    dtype: str = "bfloat16"  # of the stored weights
    prompt_len: int = 56
    num_greedy: int | None = None  # NUM_GREEDY
    shards: int = 1
    old_style: bool = False  # write config.json with the key layout of transformers 4.x
    # Longest sequence that the rope tables are for: only 'dynamic' and 'longrope' depend on it.
    max_len: int | None = None
    # Forces the rope of a sequence of `max_len` tokens from the first forward on (see README.md).
    rope_of_max_len: bool = False
    noise: float = 0.06  # of each weight, in each step of training; more where an error of a tied head weighs more
    ablate: dict = field(default_factory=dict)  # name -> config overrides that must change the logits
    ones: dict = field(default_factory=dict)  # name -> end of names of tensors whose values, all one, must change them


NUM_GREEDY = 64
STEPS, BATCH, LEARNING_RATE = 600, 16, 3e-3  # of training

DEFAULT_ROPE = {"rope_theta": 10007.3, "rope_type": "default"}
# No number of a model is one that a short format holds, and no root of a width is: what rounds one is seen. Heads of 24
# are of no kernel that works by sixteen; cases with WIDE_HEADS are of those.
BASE = dict(
    vocab_size=256,
    hidden_size=80,
    head_dim=24,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    rms_norm_eps=0.0137,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=False,
    rope_parameters=DEFAULT_ROPE,
)
WIDE_HEADS = {"head_dim": 48}
EVERY_NORM = {"eps": {"rms_norm_eps": 1e-6}}  # `ablate` of each family whose norms have one
LLAMA3_ROPE = {
    "rope_theta": 500009.7,
    "rope_type": "llama3",
    "factor": 7.3,
    "low_freq_factor": 1.1,
    "high_freq_factor": 3.9,
    "original_max_position_embeddings": 64,
}
SHORT_FACTOR = [1.0, 1.03, 1.07, 1.11, 1.17, 1.25, 1.37, 1.53, 1.7, 1.93, 2.1, 2.6]
LONG_FACTOR = [1.1, 1.27, 1.4, 1.7, 2.03, 2.6, 3.1, 4.5, 5.3, 6.2, 7.7, 9.3]


def longrope(n, theta=10007.3):
    return {
        "rope_theta": theta,
        "rope_type": "longrope",
        "short_factor": SHORT_FACTOR[:n],
        "long_factor": LONG_FACTOR[:n],
    }


def gemma3_rope(full):
    local = {"rope_theta": 10007.3, "rope_type": "default"}
    return {"full_attention": {"rope_theta": 1000003.9, **full}, "sliding_attention": local}


def gemma4_rope(full):
    local = {"rope_theta": 10007.3, "rope_type": "default"}
    return {"full_attention": {"rope_theta": 1000003.9, **full}, "sliding_attention": local}


GEMMA4 = {
    **BASE,
    "num_hidden_layers": 4,
    "head_dim": 24,
    "global_head_dim": 48,
    "tie_word_embeddings": True,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "sliding_window": 16,
    "final_logit_softcapping": 7.9,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": gemma4_rope({"rope_type": "proportional", "partial_rotary_factor": 0.25}),
}

CASES = [
    Case(
        "llama2",
        "llama",
        {**BASE, "num_key_value_heads": 4, "num_hidden_layers": 2},
        dtype="float32",
        ablate={"rope_base": {"rope_parameters": {"rope_theta": 5003.3, "rope_type": "default"}}},
    ),
    Case(
        "llama3",
        "llama",
        {
            **BASE,
            **WIDE_HEADS,
            "tie_word_embeddings": True,
            "vocab_size": 320,
            "rope_parameters": LLAMA3_ROPE,
        },
        noise=0.1,
        old_style=True,
        ablate={"llama3_rope": {"rope_parameters": {"rope_theta": 500009.7, "rope_type": "default"}}},
    ),
    Case("llama-sharded", "llama", {**BASE, **WIDE_HEADS, "num_key_value_heads": 1}, dtype="float16", shards=3),
    Case(
        "llama-bias",
        "llama",
        {**BASE, "num_hidden_layers": 2, "attention_bias": True, "mlp_bias": True},
    ),
    Case(
        "llama-linear",
        "llama",
        {
            **BASE,
            "num_hidden_layers": 2,
            "rope_parameters": {"rope_theta": 10007.3, "rope_type": "linear", "factor": 3.7},
        },
        dtype="float16",
        ablate={"linear_rope": {"rope_parameters": DEFAULT_ROPE}},
    ),
    Case(
        "llama-dynamic",
        "llama",
        {
            **BASE,
            **WIDE_HEADS,
            "num_hidden_layers": 2,
            "max_position_embeddings": 48,
            "rope_parameters": {"rope_theta": 10007.3, "rope_type": "dynamic", "factor": 2.3},
        },
        max_len=120,
        rope_of_max_len=True,
        ablate={"dynamic_rope": {"rope_parameters": DEFAULT_ROPE}},
    ),
    Case(
        "llama-yarn",
        "llama",
        {
            **BASE,
            "num_hidden_layers": 2,
            "rope_parameters": {
                "rope_theta": 10007.3,
                "rope_type": "yarn",
                "factor": 7.3,
                "original_max_position_embeddings": 64,
                "beta_fast": 15.3,
                "beta_slow": 2.1,
                "mscale": 0.93,
                "mscale_all_dim": 0.47,
            },
        },
        ablate={
            "yarn_rope": {"rope_parameters": DEFAULT_ROPE},
            "yarn_mscale": {
                "rope_parameters": {
                    "rope_theta": 10007.3,
                    "rope_type": "yarn",
                    "factor": 7.3,
                    "original_max_position_embeddings": 64,
                    "beta_fast": 15.3,
                    "beta_slow": 2.1,
                }
            },
        },
    ),
    Case(
        "mistral",
        "mistral",
        {**BASE, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128,
         "num_hidden_layers": 2, "sliding_window": 24},
        dtype="float16",
        ablate={"window": {"sliding_window": None}, "window_by_one": {"sliding_window": 25}},
    ),
    Case(
        "qwen2",
        "qwen2",
        {**BASE, "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1000003.9, "rope_type": "default"}},
        noise=0.1,
        ablate={"rope_base": {"rope_parameters": DEFAULT_ROPE}},
    ),
    Case(
        "qwen2-window",
        "qwen2",
        {**BASE, "head_dim": 80, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
        dtype="float16",
        ablate={"window": {"use_sliding_window": False, "layer_types": ["full_attention"] * 3}},
    ),
    Case(
        "qwen2-yarn",
        "qwen2",
        {
            **BASE,
            "num_hidden_layers": 2,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_theta": 1000003.9,
                "rope_type": "yarn",
                "factor": 3.7,
                "original_max_position_embeddings": 128,
            },
        },
        noise=0.1,
        ablate={"yarn_rope": {"rope_parameters": {"rope_theta": 1000003.9, "rope_type": "default"}}},
    ),
    Case(
        "qwen3",
        "qwen3",
        {
            **BASE,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 96,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": 1000003.9, "rope_type": "default"},
        },
        noise=0.14,
    ),
    Case(
        "gemma2",
        "gemma2",
        {
            **BASE,
            **WIDE_HEADS,
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 27,
            "sliding_window": 20,
            "attn_logit_softcapping": 5.3,
            "final_logit_softcapping": 7.9,
        },
        ablate={
            "attn_softcap": {"attn_logit_softcapping": None},
            "final_softcap": {"final_logit_softcapping": None},
            "window": {"sliding_window": 512},
            "query_scale": {"query_pre_attn_scalar": 16},
        },
    ),
    Case(
        "gemma3",
        "gemma3_text",
        {
            **BASE,
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 21,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": gemma3_rope({"rope_type": "default"}),
        },
        ablate={
            "window": {"sliding_window": 512},
            "query_scale": {"query_pre_attn_scalar": 16},
            "global_base": {"rope_parameters": gemma3_rope({"rope_type": "default", "rope_theta": 10007.3})},
        },
    ),
    Case(
        "gemma3-linear",
        "gemma3_text",
        {
            **BASE,
            "head_dim": 80,
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 19,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": gemma3_rope({"rope_type": "linear", "factor": 7.3}),
        },
        dtype="float16",
        old_style=True,
        ablate={"linear_rope": {"rope_parameters": gemma3_rope({"rope_type": "default"})}},
    ),
    Case(  # the text half of a checkpoint that also holds an image encoder
        "gemma3-multimodal",
        "gemma3",
        {
            "tie_word_embeddings": True,
            "text_config": {
                **BASE,
                **WIDE_HEADS,
                "num_hidden_layers": 3,
                "tie_word_embeddings": True,
                "query_pre_attn_scalar": 23,
                "sliding_window": 16,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "rope_parameters": gemma3_rope({"rope_type": "linear", "factor": 7.3}),
            },
            "vision_config": {
                "hidden_size": 8,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 8,
                "patch_size": 4,
                "vision_use_head": False,
            },
            "mm_tokens_per_image": 4,
            "image_token_index": 255,
            "boi_token_index": 253,
            "eoi_token_index": 254,
        },
    ),
    Case(  # layers without a window: wider heads, fewer of keys, values that are the raw keys
        "gemma4",
        "gemma4_text",
        {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        ablate={
            "window": {"sliding_window": 512},
            "window_by_one": {"sliding_window": 17},
            "final_softcap": {"final_logit_softcapping": None},
            "rope_part": {
                "rope_parameters": gemma4_rope({"rope_type": "proportional", "partial_rotary_factor": 0.5})
            },
            "global_base": {
                "rope_parameters": gemma4_rope(
                    {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10007.3}
                )
            },
        },
        ones={"layer_scale": "layer_scalar", "key_norm": "k_norm.weight"},
    ),
    Case(  # an MLP and a mixture of experts in every layer, with norms of their own
        "gemma4-moe",
        "gemma4_text",
        {**GEMMA4, "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "full_attention"],
         "attention_k_eq_v": True, "num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 9,
         "top_k_experts": 3, "moe_intermediate_size": 40},
        ablate={"chosen": {"top_k_experts": 2}},
        ones={"router_scale": "router.scale", "expert_scale": "per_expert_scale", "expert_norm": "pre_feedforward_layernorm_2.weight",
              "expert_post_norm": "post_feedforward_layernorm_2.weight",
              "mlp_post_norm": "post_feedforward_layernorm_1.weight"},
    ),
    Case(  # embeddings by layer; the last three layers read the KV of the last ones of their kinds before them
        "gemma4-small",
        "gemma4_text",
        {**GEMMA4, "num_hidden_layers": 6, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
         "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 256, "intermediate_size": 56,
         "layer_types": 2 * ["sliding_attention", "sliding_attention", "full_attention"]},
        ablate={"window": {"sliding_window": 512}, "window_by_one": {"sliding_window": 17}},
        ones={"layer_norm": "per_layer_projection_norm.weight", "layer_post_norm": "post_per_layer_input_norm.weight"},
    ),
    Case(  # the text half of a checkpoint with an image encoder; values of their own, config keys as published
        "gemma4-multimodal",
        "gemma4",
        {
            "tie_word_embeddings": True,
            "text_config": {**GEMMA4, "num_hidden_layers": 3, "layer_types": None},
            "vision_config": {
                "hidden_size": 8,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 4,
                "patch_size": 4,
                "position_embedding_size": 16,
            },
            "image_token_id": 255,
            "video_token_id": 254,
            "audio_token_id": 253,
            "boi_token_id": 252,
            "eoi_token_id": 251,
            "boa_token_id": 250,
            "eoa_token_index": 249,
        },
        old_style=True,
        ablate={"window": {"sliding_window": 512}},
        ones={"layer_scale": "layer_scalar"},
    ),
    Case(
        "phi3",
        "phi3",
        {
            **BASE,
            "head_dim": 80,
            "num_key_value_heads": 4,
            "sliding_window": 40,
            "original_max_position_embeddings": 512,
            "rope_parameters": {"rope_theta": 10007.3, "rope_type": "default", "partial_rotary_factor": 1.0},
        },
        ablate={"window": {"sliding_window": None}},
    ),
    Case(
        "phi3-longrope-short",
        "phi3",
        {
            **BASE,
            "hidden_size": 96,  # times the share of a head that is rotated: transformers asks no head_dim here
            "num_hidden_layers": 2,
            "original_max_position_embeddings": 128,
            "rope_parameters": {**longrope(9), "partial_rotary_factor": 0.75},
        },
        max_len=128,
        ablate={
            "short_factor": {
                "rope_parameters": {
                    **longrope(9), "short_factor": [1.0] * 9, "partial_rotary_factor": 0.75
                }
            }
        },
    ),
    Case(
        "phi3-longrope-long",
        "phi3",
        {
            **BASE,
            "hidden_size": 96,  # times the share of a head that is rotated: transformers asks no head_dim here
            "num_hidden_layers": 2,
            "original_max_position_embeddings": 40,
            "rope_parameters": {**longrope(12), "partial_rotary_factor": 1.0},
        },
        dtype="float16",
        old_style=True,
        max_len=120,
        ablate={
            "long_factor": {
                "rope_parameters": {
                    **longrope(12), "long_factor": SHORT_FACTOR, "partial_rotary_factor": 1.0
                }
            }
        },
    ),
    Case(
        "olmo2",
        "olmo2",
        {
            **BASE,
            **WIDE_HEADS,
            "num_hidden_layers": 2,
            "rope_parameters": {"rope_theta": 500009.7, "rope_type": "default"},
        },
        dtype="float32",
    ),
    Case(
        "asynct",
        "asynct",
        {**BASE, **WIDE_HEADS},
        ablate={
            "filter": {"fir_k": 2},
            "relu_pre": {"fir_relu_pre": True},
            "lower_clip": {"fir_clip": [-1.0, 0.93]},
            "upper_clip": {"fir_clip": [0.0, 0.47]},
        },
    ),
    Case(
        "asynct-window",
        "asynct",
        {
            **BASE,
            "fir_k": 5,
            "fir_relu_pre": True,
            "fir_clip": [-0.27, 1.37],
            "norm_alpha": "channel",
            "qk_norm_alpha": "scalar",
            "qk_norm_gamma": "channel",
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 1,
        },
        dtype="float32",
        ablate={
            "window": {"sliding_window": 64},
            "relu_pre": {"fir_relu_pre": False},
            "lower_clip": {"fir_clip": [0.0, 1.37]},
        },
    ),
]
CASES += expert_cases.make(Case, BASE, DEFAULT_ROPE)


def digest_of(told):
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def digest(case):
    """What is made of the case changes with it. Comments, and how the code that makes it is written, are not in it."""
    told = asdict(case)
    greedy = told.pop("num_greedy") or NUM_GREEDY
    return digest_of({**told, "greedy": greedy, "training": [STEPS, BATCH, LEARNING_RATE]})
