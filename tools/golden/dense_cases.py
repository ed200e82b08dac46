"""Golden checkpoints of dense families that are a few flags away from the others (cases.py), and of the text halves of
checkpoints that come with an image encoder. Standard library only."""

from cases import BASE, Case, DEFAULT_ROPE, WIDE_HEADS

BIG_ROPE = {"rope_theta": 500009.7, "rope_type": "default"}
PARTIAL_ROPE = {**DEFAULT_ROPE, "partial_rotary_factor": 0.5}
GROWTH_ROPE = {  # positions of a golden go far beyond the original length
    "rope_theta": 1000003.9,
    "rope_type": "yarn",
    "factor": 7.3,
    "original_max_position_embeddings": 24,
    "beta_fast": 15.3,
    "beta_slow": 2.1,
    "mscale": 0.93,
    "mscale_all_dim": 0.93,
    "llama_4_scaling_beta": 0.37,
}
STEADY_ROPE = {**GROWTH_ROPE, "llama_4_scaling_beta": 0.0}
# The multipliers of Granite, none of which a short format holds. Weights are small: they make up for it.
MULTIPLIERS = {
    "embedding_multiplier": 1.37,
    "attention_multiplier": 0.173,
    "residual_multiplier": 0.83,
    "logits_scaling": 0.87,
}
WITHOUT = {
    "embeddings": {"embedding_multiplier": 1.0},
    "scores": {"attention_multiplier": 0.2041},
    "branches": {"residual_multiplier": 1.0},
    "logits": {"logits_scaling": 1.0},
}
PIXTRAL = {
    "model_type": "pixtral",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
QWEN_VISION = {
    "depth": 1,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 80,
}
QWEN_TOKENS = {"image_token_id": 255, "video_token_id": 254, "vision_start_token_id": 253, "vision_end_token_id": 252}


def sliding(pattern):
    return [{"s": "sliding_attention", "f": "full_attention"}[kind] for kind in pattern]


DENSE = [
    Case(
        "gemma",
        "gemma",
        {**BASE, **WIDE_HEADS, "num_hidden_layers": 2, "tie_word_embeddings": True},
        ablate={"rope_base": {"rope_parameters": BIG_ROPE}},
    ),
    Case(  # queries grow with the position
        "ministral3",
        "ministral3",
        {**BASE, **WIDE_HEADS, "num_hidden_layers": 2, "rope_parameters": GROWTH_ROPE},
        ablate={
            "growth": {"rope_parameters": STEADY_ROPE},
            "yarn_rope": {"rope_parameters": {**GROWTH_ROPE, "factor": 3.1}},
        },
    ),
    Case(
        "ministral",
        "ministral",
        {**BASE, "num_hidden_layers": 3, "sliding_window": 20, "layer_types": sliding("sfs")},
        dtype="float16",
        ablate={"window": {"sliding_window": 64}},
    ),
    Case(  # the text half of a checkpoint with an image encoder
        "mistral3",
        "mistral3",
        {
            "tie_word_embeddings": False,
            "text_config": {
                **BASE,
                "model_type": "ministral3",
                "num_hidden_layers": 2,
                "rope_parameters": GROWTH_ROPE,
            },
            "vision_config": PIXTRAL,
            "image_token_index": 255,
            "spatial_merge_size": 2,
        },
        ablate={"growth": {"rope_parameters": STEADY_ROPE}},
    ),
    Case(
        "mistral3-small",
        "mistral3",
        {
            "tie_word_embeddings": False,
            "text_config": {**BASE, "model_type": "mistral", "num_hidden_layers": 2, "sliding_window": None},
            "vision_config": PIXTRAL,
            "image_token_index": 255,
            "spatial_merge_size": 2,
        },
        dtype="float16",
    ),
    Case(  # the second of three layers turns nothing
        "smollm3",
        "smollm3",
        {
            **BASE,
            "head_dim": 20, "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "no_rope_layers": [1, 0, 1],
            "rope_parameters": {"rope_theta": 2000003.3, "rope_type": "default"},
        },
        noise=0.1,
        ablate={"layers_without_rope": {"no_rope_layers": [1, 1, 1]}},
    ),
    Case(
        "smollm3-window",
        "smollm3",
        {
            **BASE,
            "head_dim": 20, "num_key_value_heads": 4,
            "num_hidden_layers": 4,
            "use_sliding_window": True,
            "sliding_window": 20,
            "attention_bias": True,
            "mlp_bias": True,
        },
        dtype="float16",
        ablate={"window": {"sliding_window": 64}},
    ),
    Case(  # a rope of their own for layers without a window
        "olmo3",
        "olmo3",
        {
            **BASE,
            **WIDE_HEADS,
            "num_hidden_layers": 4,
            "sliding_window": 20,
            "rope_parameters": {
                "full_attention": {
                    "rope_theta": 500009.7,
                    "rope_type": "yarn",
                    "factor": 7.3,
                    "original_max_position_embeddings": 64,
                    "attention_factor": 1.19,
                    "beta_fast": 31.0,
                    "beta_slow": 1.1,
                },
                "sliding_attention": BIG_ROPE,
            },
        },
        dtype="float32",
        ablate={
            "window": {"sliding_window": 512},
            "yarn_rope": {"rope_parameters": {"full_attention": BIG_ROPE, "sliding_attention": BIG_ROPE}},
        },
    ),
    Case(  # layers without a window turn nothing
        "exaone4",
        "exaone4",
        {**BASE, "num_hidden_layers": 4, "sliding_window": 20, "rope_parameters": BIG_ROPE},
        ablate={"window": {"sliding_window": 64}, "all_full": {"layer_types": sliding("ffff")}},
    ),
    Case(  # without windows all layers turn
        "exaone4-full",
        "exaone4",
        {**BASE, "num_hidden_layers": 2, "sliding_window": None, "layer_types": sliding("ff"), "tie_word_embeddings": True},
        dtype="float16",
        noise=0.1,
        ablate={"rope_base": {"rope_parameters": BIG_ROPE}},
    ),
    Case(
        "granite",
        "granite",
        {**BASE, **MULTIPLIERS, "head_dim": 24, "num_hidden_layers": 2, "attention_bias": True},
        ablate=WITHOUT,
    ),
    Case(  # sinks, windows, a layer that turns nothing
        "granite-swa",
        "granite_swa",
        {
            **BASE,
            **MULTIPLIERS,
            "tie_word_embeddings": True,
            "sliding_window": 20,
            "layer_types": sliding("fss"),
            "layer_rope_theta": [0, 10007.3, 500009.7],
        },
        noise=0.1,
        ablate={
            **WITHOUT,
            "window": {"sliding_window": 64},
            "thetas": {"layer_rope_theta": [0, 500009.7, 10007.3]},
            "layer_without_rope": {"layer_rope_theta": [10007.3, 10007.3, 500009.7]},
        },
        ones={"sinks": "sinks"},
    ),
    Case(  # norms around each branch, neighbours of the first half of a head turn
        "glm4",
        "glm4",
        {**BASE, "num_hidden_layers": 2, "attention_bias": True, "rope_parameters": PARTIAL_ROPE},
        ablate={"rope_part": {"rope_parameters": {**DEFAULT_ROPE, "partial_rotary_factor": 0.25}}},
    ),
    Case(
        "glm",
        "glm",
        {**BASE, **WIDE_HEADS, "num_hidden_layers": 2, "attention_bias": False, "rope_parameters": PARTIAL_ROPE},
        dtype="float16",
        ablate={"rope_part": {"rope_parameters": {**DEFAULT_ROPE, "partial_rotary_factor": 0.25}}},
    ),
    Case(  # biases of q, k and v alone
        "seed-oss",
        "seed_oss",
        {**BASE, "num_attention_heads": 8, "num_hidden_layers": 2, "attention_bias": True, "attention_out_bias": False},
        ablate={"rope_base": {"rope_parameters": BIG_ROPE}},
    ),
    Case(  # neighbours turn
        "ernie4-5",
        "ernie4_5",
        {**BASE, **WIDE_HEADS, "num_hidden_layers": 2, "tie_word_embeddings": True, "use_bias": False,
         "rope_parameters": BIG_ROPE},
        noise=0.1,
        ablate={"rope_base": {"rope_parameters": DEFAULT_ROPE}},
    ),
    Case(
        "helium",
        "helium",
        {**BASE, "head_dim": 20, "num_key_value_heads": 4, "num_hidden_layers": 2},
        dtype="float16",
        ablate={"rope_base": {"rope_parameters": BIG_ROPE}},
    ),
    Case(  # heads are normed behind their rotation; a base that a number widens
        "hunyuan",
        "hunyuan_v1_dense",
        {
            **BASE,
            "num_hidden_layers": 2,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": 10007.3, "rope_type": "dynamic", "alpha": 37.3, "factor": 1.3},
        },
        noise=0.1,
        ablate={"alpha": {"rope_parameters": {"rope_theta": 10007.3, "rope_type": "dynamic", "alpha": 1.3, "factor": 1.3}}},
        ones={"key_norm": "key_layernorm.weight"},
    ),
    Case(
        "cwm",
        "cwm",
        {
            **BASE,
            "sliding_window": 20,
            "layer_types": sliding("fss"),
            "rope_parameters": {
                "rope_theta": 500009.7,
                "rope_type": "llama3",
                "factor": 7.3,
                "low_freq_factor": 1.1,
                "high_freq_factor": 3.9,
                "original_max_position_embeddings": 64,
            },
        },
        dtype="float16",
        ablate={"window": {"sliding_window": 64}, "llama3_rope": {"rope_parameters": BIG_ROPE}},
    ),
    Case(  # the text half; positions of text are one number, whatever the sections are
        "qwen2-5-vl",
        "qwen2_5_vl",
        {
            "tie_word_embeddings": False,
            "text_config": {
                **BASE,
                "head_dim": 20, "num_key_value_heads": 4,
                "num_hidden_layers": 2,
                "tie_word_embeddings": False,
                "rope_parameters": {"rope_theta": 1000003.9, "rope_type": "default", "mrope_section": [4, 3, 3]},
            },
            "vision_config": {**QWEN_VISION, "fullatt_block_indexes": [0], "window_size": 8},
            **QWEN_TOKENS,
        },
        ablate={"rope_base": {"rope_parameters": {**DEFAULT_ROPE, "mrope_section": [4, 3, 3]}}},
    ),
    Case(
        "qwen3-vl",
        "qwen3_vl",
        {
            "tie_word_embeddings": True,
            "text_config": {
                **BASE,
                "num_hidden_layers": 2,
                "tie_word_embeddings": True,
                "rope_parameters": {
                    "rope_theta": 1000003.9,
                    "rope_type": "default",
                    "mrope_section": [5, 4, 3],
                    "mrope_interleaved": True,
                },
            },
            "vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
            **QWEN_TOKENS,
        },
        dtype="float16",
        noise=0.14,
        ablate={"rope_base": {"rope_parameters": {**DEFAULT_ROPE, "mrope_section": [5, 4, 3], "mrope_interleaved": True}}},
    ),
]
