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
]
