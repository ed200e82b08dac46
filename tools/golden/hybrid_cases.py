"""Golden checkpoints of families some of whose layers keep a state of each sequence. Standard library only."""

from cases import BASE, Case
from expert_cases import EXPERTS

HYBRID = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_theta": 10007.3, "rope_type": "default", "partial_rotary_factor": 0.25},
}
SHARED_EXPERTS = {**EXPERTS, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 24}
HYBRID_ABLATE = {
    "rope_part": {
        "rope_parameters": {"rope_theta": 10007.3, "rope_type": "default", "partial_rotary_factor": 0.5}
    }
}
HYBRID_ONES = {"decay": "A_log", "step": "dt_bias", "head_norm": "linear_attn.norm.weight"}
LFM2 = {
    **{key: value for key, value in BASE.items() if key not in ("head_dim", "rms_norm_eps")},
    "tie_word_embeddings": True,
    "norm_eps": 0.0137,
    "layer_types": ["conv", "full_attention", "conv"],
    "conv_L_cache": 3,
    "block_multiple_of": 8,
    "block_ffn_dim_multiplier": 1.13,
}
LFM2_ABLATE = {"theta": {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}}
GRANITE = {
    "embedding_multiplier": 5.7,
    "residual_multiplier": 0.617,
    "attention_multiplier": 0.1721,
    "logits_scaling": 0.71,
    "mamba_n_heads": 10,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_expand": 2,
    "mamba_chunk_size": 40,
}
FALCON = {
    "embedding_multiplier": 1.37,
    "lm_head_multiplier": 0.71,
    "key_multiplier": 0.83,
    "attention_in_multiplier": 1.21,
    "attention_out_multiplier": 0.77,
    "ssm_in_multiplier": 1.17,
    "ssm_out_multiplier": 0.69,
    "ssm_multipliers": [1.31, 0.79, 1.23, 0.87, 1.11],
    "mlp_multipliers": [0.81, 1.19],
}
SPACE_ONES = {"decay": "A_log", "step": "dt_bias", "skip": ".D", "space_norm": "norm.weight"}

HYBRIDS = [
    Case(  # layers with a state of each sequence; the middle one is dense
        "qwen3-next",
        "qwen3_next",
        {**BASE, **HYBRID, **SHARED_EXPERTS, "norm_topk_prob": True, "mlp_only_layers": [1]},
        dtype="float32",
        prompt_len=48,
        num_greedy=104,
        ablate={**HYBRID_ABLATE, "renormalised": {"norm_topk_prob": False}, "chosen": {"num_experts_per_tok": 2}},
        ones={**HYBRID_ONES, "shared_gate": "shared_expert_gate.weight"},
    ),
    Case(
        "qwen3-5",
        "qwen3_5_text",
        {**BASE, **HYBRID, "linear_num_value_heads": 6, "linear_key_head_dim": 16},
        prompt_len=48,
        num_greedy=104,
        ablate=HYBRID_ABLATE,
        ones=HYBRID_ONES,
    ),
    Case(
        "qwen3-5-moe",
        "qwen3_5_moe_text",
        {**BASE, **HYBRID, **SHARED_EXPERTS},
        dtype="float16",
        prompt_len=48,
        num_greedy=104,
        ablate={**HYBRID_ABLATE, "chosen": {"num_experts_per_tok": 2}},
        ones={**HYBRID_ONES, "shared_gate": "shared_expert_gate.weight"},
    ),
    Case(  # a short convolution in front and behind; the width of the MLP is made of others
        "lfm2",
        "lfm2",
        {
            **{key: value for key, value in LFM2.items() if key != "intermediate_size"},
            "block_ff_dim": 147,
            "conv_bias": True,
        },
        prompt_len=48,
        num_greedy=104,
        ablate=LFM2_ABLATE,
    ),
    Case(  # the first layer is dense
        "lfm2-moe",
        "lfm2_moe",
        {
            **LFM2,
            **EXPERTS,
            "moe_intermediate_size": 40,
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.37,
            "layer_types": ["full_attention", "conv", "conv"],
        },
        dtype="float32",
        prompt_len=48,
        num_greedy=104,
        ablate={**LFM2_ABLATE, "renormalised": {"norm_topk_prob": False}, "chosen": {"num_experts_per_tok": 2}},
    ),
    Case(  # no rope; a mixture and an MLP of every token
        "granite-hybrid",
        "granitemoehybrid",
        {
            **{key: value for key, value in BASE.items() if key not in ("head_dim", "rope_parameters")},
            **GRANITE,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 56,
            "intermediate_size": 40,
            "position_embedding_type": None,
            "time_step_limit": [0.0137, 1.73],
        },
        prompt_len=48,
        num_greedy=104,
        ablate={
            "embeddings": {"embedding_multiplier": 1.0},
            "branches": {"residual_multiplier": 1.0},
            "scores": {"attention_multiplier": 1.0},
            "logits": {"logits_scaling": 1.0},
            "steps": {"time_step_limit": [0.0, 9.0]},
            "rope": {"position_embedding_type": "rope"},
            "chosen": {"num_experts_per_tok": 1},
        },
        ones=SPACE_ONES,
    ),
    Case(  # attention and a state space side by side, normed in groups behind its gate
        "falcon-h1",
        "falcon_h1",
        {
            **BASE,
            "num_hidden_layers": 2,
            "mamba_d_ssm": 96,
            "mamba_n_heads": 6,
            "mamba_d_head": 16,
            "mamba_n_groups": 2,
            "mamba_d_state": 20,
            "mamba_chunk_size": 40,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            **FALCON,
        },
        dtype="float16",
        prompt_len=48,
        num_greedy=104,
        ablate={
            name: {name: 1.0 if isinstance(value, float) else [1.0] * len(value)} for name, value in FALCON.items()
        }
        | {"gate": {"mamba_norm_before_gate": True}},
        ones=SPACE_ONES,
    ),
    Case(  # a block has a mixer or an MLP
        "nemotron-h",
        "nemotron_h",
        {
            **{key: value for key, value in BASE.items() if key not in ("num_hidden_layers", "rms_norm_eps", "rope_parameters")},
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention", "moe"],
            "layer_norm_epsilon": 0.0137,
            "mamba_num_heads": 6,
            "mamba_head_dim": 12,
            "n_groups": 2,
            "ssm_state_size": 20,
            "conv_kernel": 4,
            "chunk_size": 40,
            "time_step_min": 0.213,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 56,
            "routed_scaling_factor": 1.37,
        },
        dtype="float32",
        prompt_len=48,
        num_greedy=104,
        ablate={
            "steps": {"time_step_min": 0.0},
            "groups": {"topk_group": 2},
            "renormalised": {"norm_topk_prob": False},
            "chosen": {"num_experts_per_tok": 2},
            "factor": {"routed_scaling_factor": 1.0},
        },
        ones=SPACE_ONES,
    ),
    Case(
        "bamba",
        "bamba",
        {
            **{key: value for key, value in BASE.items() if key != "head_dim"},
            "rope_parameters": {"rope_theta": 10007.3, "rope_type": "default", "partial_rotary_factor": 0.5},
            "attn_layer_indices": [1],
            "mamba_chunk_size": 40,
            "mamba_n_heads": 10,
            "mamba_d_head": 16,
            "mamba_n_groups": 2,
            "mamba_d_state": 12,
        },
        prompt_len=48,
        num_greedy=104,
        ones=SPACE_ONES,
    ),
]
