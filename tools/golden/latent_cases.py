"""Checkpoints of families whose attention keeps one short row of each token. Standard library only."""

from cases import BASE, Case

LATENT = {
    **{key: value for key, value in BASE.items() if key not in ("head_dim", "num_key_value_heads", "rope_parameters")},
    "kv_lora_rank": 52,
    "q_lora_rank": 44,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 12,
    "v_head_dim": 28,
}
YARN = {
    "rope_theta": 10007.3,
    "rope_type": "yarn",
    "factor": 7.3,
    "original_max_position_embeddings": 64,
    "beta_fast": 15.3,
    "beta_slow": 2.1,
    "mscale": 0.707,
    "mscale_all_dim": 1.13,
}
DEFAULT = {"rope_theta": 10007.3, "rope_type": "default"}
MIXTURE = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 40,
    "routed_scaling_factor": 1.37,
}
GROUPS = {"n_group": 4, "topk_group": 2}
ABLATE = {
    "queries": {"rope_parameters": DEFAULT},
    "factor": {"routed_scaling_factor": 1.0},
    "chosen": {"num_experts_per_tok": 2},
}
INDEXER = {"index_topk": 176, "index_n_heads": 2, "index_head_dim": 12}
GLM5_NEXT = {
    **{key: value for key, value in LATENT.items() if key != "qk_rope_head_dim"},
    **MIXTURE,
    **GROUPS,
    "num_key_value_heads": 4,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "linear_head_dim": 20,
    "linear_num_heads": 4,
    "linear_conv_kernel_dim": 3,
    "linear_lower_bound": -4.83,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 5,
    "hc_eps": 0.0023,
    **INDEXER,
    "index_kpool": 4,
}
NO_VISION = {"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 80, "intermediate_size": 16, "projection_intermediate_size": 16}
ONES = {"latent_norm": "kv_a_layernorm.weight"}

LATENTS = [
    Case(  # queries of the input; the first layer is dense; softmaxes
        "deepseek-v2-lite",
        "deepseek_v2",
        {**LATENT, **MIXTURE, "q_lora_rank": None, "first_k_dense_replace": 1, "rope_parameters": YARN},
        dtype="float32",
        prompt_len=48,
        ablate=ABLATE,
        ones=ONES,
    ),
    Case(  # sigmoids, a correction, groups; biases
        "deepseek-v3",
        "deepseek_v3",
        {
            **LATENT,
            **MIXTURE,
            **GROUPS,
            "num_key_value_heads": 4,
            "first_k_dense_replace": 1,
            "attention_bias": True,
            "rope_parameters": YARN,
        },
        dtype="float32",
        prompt_len=48,
        ablate={**ABLATE, "groups": {"n_group": 1, "topk_group": 1}, "renormalised": {"norm_topk_prob": False}},
        ones=ONES,
    ),
    Case(  # halves turn
        "deepseek-v3-halves",
        "deepseek_v3",
        {
            **LATENT,
            **MIXTURE,
            **GROUPS,
            "num_key_value_heads": 4,
            "q_lora_rank": None,
            "first_k_dense_replace": 2,
            "rope_interleave": False,
            "rope_parameters": DEFAULT,
        },
        dtype="float32",
        prompt_len=48,
        ablate={"neighbours": {"rope_interleave": True}},
        ones=ONES,
    ),
    Case(
        "glm4-moe-lite",
        "glm4_moe_lite",
        {
            **LATENT,
            **MIXTURE,
            "num_key_value_heads": 4,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "rope_parameters": DEFAULT,
        },
        dtype="float32",
        prompt_len=48,
        ablate={"renormalised": {"norm_topk_prob": False}},
        ones=ONES,
    ),
    Case(  # queries grow with their position; softmaxes in groups
        "mistral4",
        "mistral4",
        {
            **LATENT,
            **MIXTURE,
            **GROUPS,
            "num_key_value_heads": 4,
            "first_k_dense_replace": 1,
            "rope_parameters": {**YARN, "original_max_position_embeddings": 23, "llama_4_scaling_beta": 0.213},
        },
        dtype="float32",
        prompt_len=48,
        ablate={"groups": {"n_group": 1, "topk_group": 1}},
        ones=ONES,
    ),
    Case(  # nothing turns; two layers have a delta rule whose decays are those of channels
        "kimi-linear",
        "kimi_linear",
        {
            **LATENT,
            **{key: value for key, value in MIXTURE.items() if key != "n_routed_experts"},
            **GROUPS,
            "q_lora_rank": None,
            "num_local_experts": 8,
            "num_key_value_heads": 4,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "linear_head_dim": 20,
            "linear_num_heads": 4,
            "linear_conv_kernel_dim": 3,
        },
        dtype="float32",
        prompt_len=48,
        ablate={"chosen": {"num_experts_per_tok": 2}},
        ones=ONES,
    ),
    Case(  # streams that are not mixed; sinks; gates of what is read; halves turn; experts clamp their gates
        "hy-v4",
        "hy_v4",
        {
            **LATENT,
            **MIXTURE,
            **GROUPS,
            **INDEXER,
            "num_key_value_heads": 4,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "indexer_types": ["full", "shared", "full"],
            "rope_parameters": DEFAULT,
            "hc_mult": 3,
            "hc_magnitude": 1.73,
            "hc_eps": 0.0023,
        },
        dtype="float32",
        prompt_len=48,
    ),
    Case(  # streams; nothing turns; two layers have a delta rule whose decays have a floor; clamped gates
        "glm5-next",
        "glm5_next",
        {"text_config": {**GLM5_NEXT, "layer_types": ["linear_attention", "deepseek_sparse_attention", "linear_attention"]},
         "vision_config": NO_VISION, "tie_word_embeddings": False},
        dtype="float32",
        prompt_len=48,
    ),
]
