#!/usr/bin/env python3
"""Makes fp8 checkpoints from golden ones, each in a format that is in use (torch and transformers are needed).

    quantise_golden.py GOLDEN_DIR [CASE ...]

GOLDEN_DIR/<source> becomes GOLDEN_DIR/<name>: weights as F8_E4M3 with scales, config.json as the tool that writes the
format writes it. Logits are those of transformers with the weights multiplied out in float32; activations and the KV
cache stay exact there, so what is stored is the meaning of the file, not one way to compute with it.
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors

from make_golden import forward, gaps_of, greedy, load, store, versions
from quantised_cases import QUANTISED, Fused, digest

MAX_FP8 = 448.0
LINEAR = ("_proj.weight", "lm_head.weight")


def largest_inputs(model, prompt):
    """The largest absolute input of each linear module over the prompt."""
    found, hooks = {}, []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            hook = lambda _, args, name=name: found.__setitem__(name, args[0].abs().max())
            hooks.append(module.register_forward_pre_hook(hook))
    with torch.no_grad():
        forward(model, prompt)
    for hook in hooks:
        hook.remove()
    return found


def kv_scales(model, prompt, case):
    """(k, v) of each layer: what the largest cached value is stored as 448 by."""
    with torch.no_grad():
        cache = model(torch.tensor([prompt]), use_cache=True).past_key_values
    out = []
    for layer in cache.layers:
        pair = []
        for values in (layer.keys, layer.values):  # [1, heads, tokens, head_dim]
            largest = values.abs().amax(dim=(0, 2, 3)) / MAX_FP8
            pair.append(largest[:, None, None] if case.kv_per_head else largest.max().reshape(case.scale_shape))
        out.append(pair)
    return out


def quantise(weight, case):
    """The stored weight and its scale; the same as float32."""
    wide = weight.float()
    largest = wide.abs().amax(dim=1, keepdim=True) if case.channel else wide.abs().max().reshape(case.scale_shape)
    scale = (largest / MAX_FP8).to(getattr(torch, case.scale_dtype))
    stored = (wide / scale.float()).clamp(-MAX_FP8, MAX_FP8).to(torch.float8_e4m3fn)
    return stored, scale, stored.float() * scale.float()


def pack_mxfp4(weight):
    """[experts, in, rows] as E2M1 of which 32 inputs share a power of two, and as float32 what transformers reads of it."""
    experts, inputs, rows = weight.shape
    groups = weight.float().transpose(1, 2).reshape(experts, rows, inputs // 32, 32)
    exponent = (groups.abs().amax(-1).clamp(min=2.0**-100).log2().floor() - 2).clamp(-127, 127)
    scaled = groups / exponent.exp2()[..., None]
    table = torch.tensor(FP4_VALUES)
    codes = (scaled[..., None] - table).abs().argmin(-1).to(torch.uint8)
    blocks = codes[..., ::2] | codes[..., 1::2] << 4
    scales = (exponent + 127).to(torch.uint8)
    return blocks, scales, convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)


def write_config(case, source, folder):
    config = json.loads((source / "config.json").read_text())
    if case.beside is None:
        config["quantization_config"] = case.config
    else:
        (folder / case.beside).write_text(json.dumps(case.config, indent=2) + "\n")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def quantise_blocks(weight, block):
    """[..., rows, inputs] as E4M3, a scale for each block of the last two; the same as float32."""
    rows, inputs = weight.shape[-2:]
    wide = torch.nn.functional.pad(weight.float(), (0, -inputs % block[1], 0, -rows % block[0]))
    blocks = wide.unflatten(-1, (-1, block[1])).unflatten(-3, (-1, block[0]))  # [..., r, block, c, block]
    scale = blocks.abs().amax((-3, -1)).clamp(min=1e-12) / MAX_FP8
    each = scale[..., :, None, :, None]
    stored = (blocks / each).to(torch.float8_e4m3fn)
    flat = lambda values: values.flatten(-2).flatten(-3, -2)[..., :rows, :inputs].contiguous()
    return flat(stored), scale, flat(stored.float() * each)


def make_fused(case, source, folder):
    """Written by transformers, and read by it; with scales of blocks where the case has some."""
    dtype = getattr(torch, json.loads((source / "config.json").read_text())["dtype"])
    AutoModelForCausalLM.from_pretrained(source, dtype=dtype).save_pretrained(folder, save_original_format=False)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = load(folder)
    if case.block is None:
        return model
    tensors, exact = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module in case.excluded or not name.endswith(("_proj.weight", "_proj", "in_proj_qkv.weight", "in_proj_z.weight")):
            tensors[name] = weight
            continue
        scale_name = f"{name}_scale_inv" if weight.ndim == 3 else f"{module}.weight_scale_inv"
        tensors[name], tensors[scale_name], exact[name] = quantise_blocks(weight, case.block)
    assert not model.load_state_dict(exact, strict=False).unexpected_keys
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    write_config(case, source, folder)
    return model


def make(case, out):
    source, folder = out / case.source, out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    prompt = load_file(source / "golden.safetensors")["prompt_ids"].tolist()
    if isinstance(case, Fused):
        return finish(case, source, folder, make_fused(case, source, folder), prompt)
    model = load(source)
    inputs = largest_inputs(model, prompt)
    tensors, exact = {}, {}
    for name, weight in load_file(source / "model.safetensors").items():
        if case.config.get("quant_method") == "mxfp4" and name.endswith((".gate_up_proj", ".down_proj")):
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"], exact[name] = pack_mxfp4(weight)
            continue
        module = name.removesuffix(".weight")
        if case.config.get("quant_method") == "mxfp4" or not name.endswith(LINEAR) or module.startswith(case.excluded or ("-",)):
            tensors[name] = weight
            continue
        tensors[name], tensors[f"{module}.weight_scale"], exact[name] = quantise(weight, case)
        if case.static:
            tensors[f"{module}.input_scale"] = (inputs[module] / MAX_FP8).reshape(case.scale_shape)
    missing = model.load_state_dict(exact, strict=False)
    assert exact and not missing.unexpected_keys, missing
    if case.kv is not None:
        for i, pair in enumerate(kv_scales(model, prompt, case)):
            for name, scale in zip(case.kv, pair):
                tensors[f"model.layers.{i}.{name}"] = scale.contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    write_config(case, source, folder)
    return finish(case, source, folder, model, prompt)


def finish(case, source, folder, model, prompt):
    logits = forward(model, prompt)
    ids, rows = greedy(model, prompt)
    store(folder, prompt, logits, ids, rows)
    meta = {
        **versions(),
        "case": digest(case),
        "source": case.source,
        "max_len": json.loads((source / "meta.json").read_text())["max_len"],
        "min_prompt_gap": gaps_of(logits).min().item(),
        "min_gap": gaps_of(rows).min().item(),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    return meta


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    out = pathlib.Path(sys.argv[1])
    for case in QUANTISED:
        if not sys.argv[2:] or case.name in sys.argv[2:]:
            print(case.name, json.dumps(make(case, out)), flush=True)


if __name__ == "__main__":
    main()
