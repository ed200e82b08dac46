"""The golden checkpoints in fp8: one entry per format that is in use. Standard library only."""

from dataclasses import asdict, dataclass

import cases
import hybrid_cases


@dataclass
class Quantised:
    """Of the case `source`, in a format that is in use."""

    name: str
    source: str
    excluded: tuple  # prefixes of modules that stay as they are
    config: dict  # quantization_config
    channel: bool = False  # a scale for each row of a weight, else one
    scale_shape: tuple = (1,)  # of a single scale
    scale_dtype: str = "float32"
    static: bool = False  # input_scale beside each weight
    kv: tuple | None = None  # names of the scales of k and v in a layer
    kv_per_head: bool = False
    beside: str | None = None  # the file that holds the config instead of config.json


@dataclass
class Fused(Quantised):
    """As transformers has it in memory: one tensor of all experts of a layer."""

    block: tuple | None = None  # rows and inputs that share a scale; None: not quantised


def activations(strategy, dynamic):
    return {"num_bits": 8, "type": "float", "strategy": strategy, "dynamic": dynamic, "symmetric": True}


def compressed_tensors(form, strategy, inputs, ignore, kv=None):
    group = {
        "targets": ["Linear"],
        "weights": {**activations(strategy, False), "observer": "minmax", "group_size": None, "actorder": None},
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignore,
        "kv_cache_scheme": kv,
        "sparsity_config": {},
        "transform_config": {},
    }


UNQUANTISED = (
    "lm_head",
    *(
        f"model.layers.{layer}.{name}"
        for layer in range(3)
        for name in ("mlp.gate", "mlp.shared_expert_gate", "linear_attn.in_proj_a", "linear_attn.in_proj_b")
    ),
)

QUANTISED = [
    Quantised(
        "llama-fp8-channel",
        "llama-yarn",
        ("lm_head",),
        compressed_tensors("float-quantized", "channel", activations("token", True), ["lm_head"]),
        channel=True,
        scale_dtype="bfloat16",
    ),
    Quantised(
        "mistral-fp8-static",
        "mistral",
        ("lm_head", "model.layers.0.mlp.down_proj"),
        compressed_tensors(
            "naive-quantized",
            "tensor",
            activations("tensor", False),
            [r"re:.*lm_head$", r"re:model\.layers\.0\.mlp\.down"],
            kv=activations("tensor", False),
        ),
        static=True,
        kv=("self_attn.k_scale", "self_attn.v_scale"),
    ),
    Quantised(
        "qwen2-fp8-head",
        "qwen2-window",
        (),
        compressed_tensors(
            "float-quantized", "channel", activations("token", True), [], kv=activations("attn_head", False)
        ),
        channel=True,
        kv=("self_attn.k_scale", "self_attn.v_scale"),
        kv_per_head=True,
    ),
    Quantised(
        "qwen3-modelopt",
        "qwen3",
        ("lm_head", "model.layers.1.mlp"),
        {
            "producer": {"name": "modelopt", "version": "0.33.0"},
            "quantization": {
                "quant_algo": "FP8",
                "kv_cache_quant_algo": "FP8",
                "exclude_modules": ["lm_head", "model.layers.1.mlp*"],
            },
        },
        scale_shape=(),
        static=True,
        kv=("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
        beside="hf_quant_config.json",
    ),
    Quantised(
        "phi3-fp8",
        "phi3",
        ("lm_head",),
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        static=True,
    ),
    Quantised(  # the experts alone
        "gpt-oss-mxfp4",
        "gpt-oss",
        ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"),
        {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
    ),
    Fused("qwen3-5-moe-fused", "qwen3-5-moe", (), {}),
    Fused(
        "qwen3-5-moe-fused-fp8",
        "qwen3-5-moe",
        UNQUANTISED,
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [8, 16],
            "modules_to_not_convert": list(UNQUANTISED),
        },
        block=(8, 16),
    ),
]


def digest(case):
    """As of the other cases; what its source is made of is in it."""
    source = next(one for one in cases.CASES + hybrid_cases.HYBRIDS if one.name == case.source)
    return cases.digest_of({**asdict(case), "greedy": cases.NUM_GREEDY, "source": cases.digest(source)})
