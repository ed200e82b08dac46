"""The golden checkpoints with mixtures of experts (cases.py has the others, and says what a case is)."""

EXPERTS = {"num_experts": 9, "num_experts_per_tok": 3}


def make(case, base, default_rope):
    gpt_oss = {
        **base,
        "hidden_size": 96,  # and the width of an expert: of groups of 32, for a checkpoint of MXFP4
        "num_hidden_layers": 4,
        "intermediate_size": 64,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "sliding_window": 16,
        "rope_parameters": {
            "rope_theta": 10007.3,
            "rope_type": "yarn",
            "factor": 7.3,
            "original_max_position_embeddings": 64,
            "beta_fast": 15.3,
            "beta_slow": 2.1,
            "truncate": False,
        },
    }
    return [
        case(  # the first layer is dense
            "qwen3-moe",
            "qwen3_moe",
            {**base, **EXPERTS, "moe_intermediate_size": 40, "norm_topk_prob": True, "mlp_only_layers": [0]},
            ablate={"renormalised": {"norm_topk_prob": False}, "chosen": {"num_experts_per_tok": 2}},
        ),
        case(
            "mixtral",
            "mixtral",
            {**base, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 24},
            dtype="float16",
            ablate={"window": {"sliding_window": None}, "chosen": {"num_experts_per_tok": 1}},
        ),
        case(
            "olmoe",
            "olmoe",
            {**base, **EXPERTS, "head_dim": 20, "num_hidden_layers": 2, "intermediate_size": 56},
            dtype="float32",
            ablate={"renormalised": {"norm_topk_prob": True}, "chosen": {"num_experts_per_tok": 2}},
        ),
        case(  # every other layer has a window
            "gpt-oss",
            "gpt_oss",
            gpt_oss,
            ablate={
                "window": {"sliding_window": 512},
                "window_by_one": {"sliding_window": 17},
                "chosen": {"num_experts_per_tok": 2},
                "yarn_rope": {"rope_parameters": default_rope},
                "truncated": {"rope_parameters": {**gpt_oss["rope_parameters"], "truncate": True}},
            },
            ones={"sinks": "sinks", "router_bias": "router.bias", "expert_bias": "down_proj_bias"},
        ),
        case(  # the first layer is dense; half of a head is rotated
            "glm4-moe",
            "glm4_moe",
            {
                **base,
                "attention_bias": True,
                "use_qk_norm": True,
                "partial_rotary_factor": 0.5,
                "rope_parameters": {**default_rope, "partial_rotary_factor": 0.5},
                "moe_intermediate_size": 40,
                "n_routed_experts": 8,
                "num_experts_per_tok": 3,
                "n_shared_experts": 2,
                "n_group": 4,
                "topk_group": 2,
                "routed_scaling_factor": 1.37,
            },
            ablate={
                "groups": {"n_group": 1, "topk_group": 1},
                "renormalised": {"norm_topk_prob": False},
                "scale": {"routed_scaling_factor": 1.0},
                "rope_part": {"rope_parameters": {**default_rope, "partial_rotary_factor": 1.0}},
            },
            ones={"correction": "e_score_correction_bias", "key_norm": "k_norm.weight"},
        ),
    ]
