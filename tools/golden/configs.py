#!/usr/bin/env python3
"""Writes what Hugging Face transformers makes of configurations (torch and transformers are needed).

    configs.py tests/golden/configs.json

`ropes`: configurations with a rope in every spelling (transformers 4 and 5, both, none; lengths inside and outside; every
type; a part of a head), and the frequencies and the attention factor that the family's own rotary embedding computes from it
for a sequence of `length` tokens, and what scores are multiplied by (`scale`). `defaults`: of each family, every key that its
configuration class knows, with the default. `aliases`: other names that classes take for keys.
"""

import copy
import importlib
import json
import math
import random
import sys

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

ONE_ROPE = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "granite": "GraniteForCausalLM",
    "granite_swa": "GraniteSWAForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "helium": "HeliumForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "cwm": "CwmForCausalLM",
}
OF_EXPERTS = {"gpt_oss": "GptOssForCausalLM", "glm4_moe": "Glm4MoeForCausalLM"}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
DELTA = {"head_dim": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8}
DELTA |= {"linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}
CONV = {"layer_types": ["conv", "full_attention"], "norm_eps": 1e-5}
SPACE = {"mamba_n_heads": 4, "mamba_d_state": 8}
LATENT = {"n_routed_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "kv_lora_rank": 16}
LATENT |= {"q_lora_rank": None, "qk_rope_head_dim": 24, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 2}
GROUPS = {"n_group": 1, "topk_group": 1}
# Families whose layers are of other kinds: their architecture and what a small one of them has.
OTHER_LAYERS = {
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 1}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", MIXTURE),
    "olmoe": ("OlmoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 1}),
    "qwen3_next": ("Qwen3NextForCausalLM", MIXTURE | DELTA | {"shared_expert_intermediate_size": 16}),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", DELTA),
    "qwen3_5_moe_text": ("Qwen3_5MoeForCausalLM", MIXTURE | DELTA | {"shared_expert_intermediate_size": 16}),
    "lfm2": ("Lfm2ForCausalLM", CONV),
    "lfm2_moe": ("Lfm2MoeForCausalLM", MIXTURE | CONV | {"num_dense_layers": 1}),
    "granitemoehybrid": (
        "GraniteMoeHybridForCausalLM",
        SPACE
        | {"position_embedding_type": "rope", "num_local_experts": 4, "num_experts_per_tok": 1}
        | {"shared_intermediate_size": 16, "layer_types": ["mamba", "attention"]},
    ),
    "bamba": ("BambaForCausalLM", SPACE | {"attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1ForCausalLM", SPACE | {"mamba_d_ssm": 96}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", LATENT | {"first_k_dense_replace": 1}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT | GROUPS | {"first_k_dense_replace": 1}),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", LATENT | GROUPS),
}
KEYS = {
    **ONE_ROPE,
    "gpt_oss": "GptOssForCausalLM",  # the defaults of GLM 4.5 rotate half of a head of 42
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4": "Gemma4ForConditionalGeneration",
    "gemma4_unified": "Gemma4UnifiedForConditionalGeneration",
    "olmo3": "Olmo3ForCausalLM",
    "mistral3": "Mistral3ForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "glm4_moe": "Glm4MoeForCausalLM",
    **{family: architecture for family, (architecture, _) in OTHER_LAYERS.items()},
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "nemotron_h": "NemotronHForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "glm5_next": "Glm5NextForConditionalGeneration",
    "hy_v4": "HYV4ForCausalLM",
    "llava": "LlavaForConditionalGeneration",
    "internvl": "InternVLForConditionalGeneration",
}
# Families that keep the keys of the text beside the others, or in an object of them: which of the former count is the class's matter.
FLAT = ["qwen2_vl", "qwen2_5_vl"]
WRAPPED = {"mistral3": {"text_config": {"model_type": "mistral"}}}  # the text model's own defaults
# What a class leaves open or gives no sense to: GLM 4.5's default heads of 42 turn by half, and no layer of two hybrids attends.
OPEN = {
    "glm4_moe": {"head_dim": 128},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "granitemoehybrid": {"layer_types": ["mamba"] * 31 + ["attention"]},
    "bamba": {"attn_layer_indices": [3]},
}
# Names that classes take for keys of theirs: the other name, the key, and a value that is not its default.
ALIASES = {
    "gpt_oss": [["num_experts", "num_local_experts", 64]],
    "mixtral": [["num_experts", "num_local_experts", 4]],
    "qwen3_moe": [["num_experts", "num_local_experts", 64]],
    "olmoe": [["num_local_experts", "num_experts", 32]],
    "glm4_moe": [["num_local_experts", "n_routed_experts", 64]],
    "deepseek_v2": [["num_experts", "n_routed_experts", 32]],
    "deepseek_v3": [["num_local_experts", "n_routed_experts", 128]],
    "glm4_moe_lite": [["num_local_experts", "n_routed_experts", 32], ["head_dim", "qk_rope_head_dim", 32]],
    "hy_v4": [["num_local_experts", "n_routed_experts", 64]],
    "mistral4": [["num_local_experts", "n_routed_experts", 64]],
    "kimi_linear": [
        ["num_experts_per_token", "num_experts_per_tok", 4],
        ["num_shared_experts", "n_shared_experts", 2],
        ["num_expert_group", "n_group", 2],
        ["moe_renormalize", "norm_topk_prob", False],
        ["model_max_length", "max_position_embeddings", 4096],
        ["num_local_experts", "num_experts", 64],
    ],
    "lfm2": [["tie_embedding", "tie_word_embeddings", False], ["block_ff_dim", "intermediate_size", 4096]],
    "lfm2_moe": [["tie_embedding", "tie_word_embeddings", False]],
    "granitemoehybrid": [["layers_block_type", "layer_types", ["attention"] * 16 + ["mamba"] * 16]],
    "nemotron_h": [
        ["mamba_n_groups", "n_groups", 4],
        ["mamba_d_conv", "conv_kernel", 3],
        ["mamba_dt_min", "time_step_min", 0.01],
        ["mamba_conv_bias", "use_conv_bias", False],
        ["mamba_expand", "expand", 3],
        ["mamba_dt_max", "time_step_max", 0.3],
        ["mamba_dt_limit", "time_step_limit", [0.1, 3.0]],
        ["mamba_dt_init_floor", "time_step_floor", 0.01],
        ["mamba_chunk_size", "chunk_size", 64],
        ["num_local_experts", "n_routed_experts", 4],
        ["layer_types", "layers_block_type", ["linear_attention", "full_attention"]],
    ],
}
BASE = {
    "vocab_size": 32,
    "hidden_size": 48,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PAIRS = 12  # of a head of 24
LENGTHS = [40, 96, 300]
SHORT = [1 + 0.09 * i for i in range(PAIRS)]
LONG = [1.1 + 0.7 * i for i in range(PAIRS)]


def objects(rng):
    """Ropes of every type, with some of the keys that they may have."""

    def some(**keys):
        return {key: value for key, value in keys.items() if rng.random() < 0.5}

    name = rng.choice(["rope_type", "type"])
    kind = rng.choice(["default", "linear", "dynamic", "yarn", "llama3", "longrope"])
    rope = {name: kind, **some(rope_theta=rng.choice([5003.3, 1000003.9]))}
    if name == "rope_type" and rng.random() < 0.1:
        rope["type"] = rng.choice(["default", "linear", "yarn"])  # which does not count beside the other
    factor = rng.choice([1.7, 3.3, 8])
    original = some(original_max_position_embeddings=rng.choice([32, 48, 96]))
    if kind in ("linear", "dynamic"):
        rope |= {"factor": factor, **original}
    elif kind == "yarn":
        rope |= {"factor": factor, **original}
        rope |= some(beta_fast=11.5, beta_slow=1.3, truncate=False, mscale=0.9, mscale_all_dim=0.6, finetuned=True)
        rope |= some(attention_factor=1.23) if rng.random() < 0.4 else {}
    elif kind == "llama3":
        rope |= {"factor": factor, "low_freq_factor": 1.1, "high_freq_factor": 3.7, **original}
    elif kind == "longrope":
        rope |= {"short_factor": SHORT, "long_factor": LONG, **original, **some(factor=factor)}
        rope |= some(attention_factor=1.31) if rng.random() < 0.4 else {}
    return rope


def kinds_of_gemma4(rng):
    """Ropes of the two kinds of layers."""

    def one():
        rope = {"rope_type": rng.choice(["default", "proportional", "proportional", "linear"]), "rope_theta": 5003.3}
        if rope["rope_type"] == "linear" or rng.random() < 0.3:
            rope["factor"] = 3.3
        if rng.random() < 0.6:
            rope["partial_rotary_factor"] = rng.choice([0.25, 0.5, 1.0])
        return rope

    return {"full_attention": one(), "sliding_attention": one()}


def draw(rng, families):
    family = rng.choice(families)
    config = {**BASE, "architectures": [{**KEYS, **OF_EXPERTS}[family]], "model_type": family}
    if family in OTHER_LAYERS:
        config |= copy.deepcopy(OTHER_LAYERS[family][1])
    if family in OF_EXPERTS:
        config |= {"num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 24}
        config |= {"moe_intermediate_size": 16} if family == "glm4_moe" else {"sliding_window": 16}
    if family == "gemma4_text":
        config |= {"head_dim": 24, "global_head_dim": rng.choice([24, 48]), "sliding_window": 16}
        config |= {"hidden_size_per_layer_input": 0, "layer_types": ["sliding_attention", "full_attention"]}
        config["hidden_activation"] = "gelu_pytorch_tanh"
        del config["hidden_act"]
        if rng.random() < 0.8:
            config["rope_parameters"] = kinds_of_gemma4(rng)
        return config
    config = draw_ropes(rng, config)
    if rng.random() < 0.2:  # of a part of a head, where the family may or may not have it
        ropes = [config[key] for key in ("rope_parameters", "rope_scaling") if config.get(key)]
        holder = rng.choice([config, *ropes])
        holder["partial_rotary_factor"] = rng.choice([0.5, 1.0, 1.0])
    return config


def draw_ropes(rng, config):
    family = config["model_type"]
    if family.startswith(("gemma2", "gemma3")):
        config |= {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 16}
        config["hidden_activation"] = "gelu_pytorch_tanh"
        del config["hidden_act"]
    if rng.random() < 0.5:
        config["rope_theta"] = rng.choice([20011.7, 500009.3])
    if rng.random() < 0.25:
        config["original_max_position_embeddings"] = rng.choice([40, 64])
    spelling = rng.choice(["old", "new", "both", "empty", "none"])
    if family == "gemma3_text":
        config["layer_types"] = ["sliding_attention", "full_attention"]
        if rng.random() < 0.5:
            config["rope_local_base_freq"] = 7001.3
        if spelling in ("new", "both"):
            config["rope_parameters"] = {
                kind: objects(rng) if kind == "full_attention" else {"rope_type": "default", "rope_theta": 9001.7}
                for kind in ("full_attention", "sliding_attention")
                if rng.random() < 0.8
            }
        if spelling in ("old", "both"):
            config["rope_scaling"] = objects(rng)
        return config
    if spelling in ("new", "both"):
        config["rope_parameters"] = objects(rng)
    if spelling in ("old", "both"):
        config["rope_scaling"] = objects(rng)
    if spelling == "empty":
        config["rope_scaling"] = {}
        config["rope_parameters"] = objects(rng)
    return config


def draw_flat(rng, families):
    """A text model in front of which images are seen: its keys in one of the two layouts, some with other places of the same key."""
    family = rng.choice(families)
    text = draw_ropes(rng, {**BASE, "model_type": family})
    if rng.random() < 0.3:
        text["rope_scaling"] = {"type": "mrope"}
    ropes = [text[key] for key in ("rope_scaling", "rope_parameters") if text.get(key)] or [text.setdefault("rope_parameters", {})]
    for rope in ropes:
        rope["mrope_section"] = rng.choice([[4, 4, 4], [2, 5, 5]])
    whole = {"architectures": [KEYS[family]], "model_type": family, "vision_config": {"depth": 1}}
    if rng.random() < 0.4:
        return whole | {"text_config": text | {"model_type": f"{family}_text"}, "original_max_position_embeddings": 72}
    if rng.random() < 0.3:
        whole["partial_rotary_factor"] = 0.5
    return text | whole


def ropes_of_flat(config, length):
    """The model of images need not be made for the ropes of its text."""
    made = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config)).text_config
    module = importlib.import_module(f"transformers.models.{config['model_type']}.modeling_{config['model_type']}")
    kind = KEYS[config["model_type"]].removesuffix("ForConditionalGeneration")
    rotary = getattr(module, f"{kind}RotaryEmbedding")(config=made)
    rotary(torch.zeros(1), torch.arange(length)[None].expand(3, 1, length))
    made._attn_implementation = "eager"
    attention = getattr(module, f"{kind}Attention")(made, layer_idx=0)
    frequencies = [float(f"{x:.9g}") for x in rotary.inv_freq.tolist()]
    return [{"frequencies": frequencies, "attention_factor": rotary.attention_scaling}], attention.scaling


def ropes_of(config, length):
    """Of each kind of layers: frequencies and the attention factor."""
    if config["model_type"] in FLAT:
        return ropes_of_flat(config, length)
    made = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    model = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
    rotary = getattr(model.model, "rotary_emb", None) or model.model.pos_emb
    positions = torch.arange(length)[None]
    if config["model_type"].startswith("qwen3_5"):
        positions = positions.expand(3, 1, length)  # of time, height and width
    has_kinds = config["model_type"] in ("gemma3_text", "gemma4_text")
    kinds = ["full_attention", "sliding_attention"] if has_kinds else [None]
    out = []
    for kind in kinds:
        rotary(torch.zeros(1), positions, *([kind] if kind else []))
        prefix = f"{kind}_" if kind else ""
        frequencies = getattr(rotary, f"{prefix}inv_freq")
        scaling = getattr(rotary, f"{prefix}attention_scaling")
        out.append({"frequencies": [float(f"{x:.9g}") for x in frequencies.tolist()], "attention_factor": scaling})
    attention = next(layer.self_attn for layer in model.model.layers if getattr(layer, "self_attn", None))
    return out, attention.scaling


def make_ropes(seed, draws, families, draw=draw):
    rng = random.Random(seed)
    out, refused = [], 0
    for _ in range(draws):
        config = draw(rng, families)
        length = rng.choice(LENGTHS)
        try:
            ropes, scale = ropes_of(config, length)
        except Exception as error:  # transformers refuses it
            refused += 1
            print("refused:", repr(error)[:120])
            continue
        out.append({"config": config, "length": length, "ropes": ropes, "scale": scale})
    print(f"{len(out)} ropes, {refused} configurations that transformers refuses")
    return out


def make_defaults():
    out = {}
    for family, architecture in KEYS.items():
        made = CONFIG_MAPPING[family](**WRAPPED.get(family, {}))
        config = made.to_dict() | OPEN.get(family, {})
        for encoder in ("vision_config", "audio_config"):
            config.pop(encoder, None)
        config["architectures"] = [architecture]
        for part in (config, config.get("text_config", {})):
            if "hidden_size_per_layer_input" in part:
                part["hidden_size_per_layer_input"] = 0  # of other sizes
            for key, value in part.items():
                if isinstance(value, (list, tuple)):  # as transformers writes what JSON does not have
                    part[key] = [{"__float__": "Infinity"} if item == math.inf else item for item in value]
        out[family] = config
    return out


def main():
    torch.set_num_threads(1)
    ropes = make_ropes(49, 260, [*ONE_ROPE, "gemma3_text", "gemma4_text"]) + make_ropes(50, 60, [*OF_EXPERTS])
    ropes += make_ropes(51, 140, [*OTHER_LAYERS])
    ropes += make_ropes(52, 60, FLAT, draw_flat)
    answers = {"transformers": transformers.__version__, "defaults": make_defaults(), "ropes": ropes}
    answers["aliases"] = ALIASES
    with open(sys.argv[1], "w") as file:
        lines = [json.dumps({key: value}, sort_keys=True)[1:-1] for key, value in sorted(answers.pop("defaults").items())]
        ropes = [json.dumps(rope, sort_keys=True) for rope in answers.pop("ropes")]
        file.write(json.dumps(answers)[:-1] + ', "defaults": {\n' + ",\n".join(lines) + '\n}, "ropes": [\n')
        file.write(",\n".join(ropes) + "\n]}\n")


if __name__ == "__main__":
    main()
