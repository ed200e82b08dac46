#!/usr/bin/env python3
"""Makes a tiny MTP head of random weights for a golden model and writes what it guesses, in formulas of PyTorch in float32.

    tools/golden/mtp.py tests/golden/qwen3-5 tests/draft_heads/qwen3-5-mtp

OUT gets the model's config.json, `model.safetensors` with the head's tensors alone, as published checkpoints name them
beside the model's, and cases.json. transformers passes such tensors over: the model and the decoder layer are its own,
what joins and reads rows is written here. The layer runs over the whole sequence for every guess, without a cache. A case
is behind `ids`: the model's next token, the guesses, and of each guess its own logit and those of TOLD. Cases in which two
tokens are nearly as likely are left out.
"""

import argparse
import copy
import hashlib
import json
import math
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer

import language
from make_golden import versions

GUESSES = 4
TOLD = [50, 100, 200]
MIN_MARGIN = 0.05
LAYERS = {"qwen3_5_text": Qwen3_5DecoderLayer, "qwen3_next": Qwen3NextDecoderLayer, "glm4_moe": Glm4MoeDecoderLayer}


class Form:
    """Names of the head's modules, and what differs: 1 + w in norms, which row the next guess goes on from."""

    def __init__(self, config):
        self.beside = config.model_type != "glm4_moe"  # the model's layers, else behind the last one
        prefix = "mtp." if self.beside else f"model.layers.{config.num_hidden_layers}."
        self.layer = "mtp.layers.0." if self.beside else prefix
        names = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        self.fc, self.embedding, self.hidden, self.last = (
            f"{prefix}{name}.weight" for name in (names if self.beside else ("eh_proj", "enorm", "hnorm", "shared_head.norm"))
        )
        self.one = 1.0 if self.beside else 0.0
        self.copies = () if self.beside else (prefix + "embed_tokens.weight", prefix + "shared_head.head.weight")


def make_layer(config):
    """An attention layer with the MLP that the model's last layer has."""
    own = copy.deepcopy(config)
    index = config.num_hidden_layers - 1
    if getattr(own, "layer_types", None):
        own.layer_types = [*config.layer_types[:index], "full_attention"]
    own._attn_implementation = "eager"
    return LAYERS[config.model_type](own, index).float().eval()


@torch.no_grad()
def initialise(layer, form, seed):
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(layer.named_parameters()):
        if p.ndim == 1 and "norm" in name:
            p.copy_(torch.rand(p.shape, generator=g) * 1.2 + 0.6 - form.one)
        elif p.ndim == 1:
            p.copy_(torch.randn(p.shape, generator=g) * 0.4)
        else:
            p.copy_(torch.randn(p.shape, generator=g) * 1.7 / math.sqrt(p.shape[-1]))
    for name, p in sorted(layer.named_buffers()):
        if "correction_bias" in name:
            p.copy_(torch.randn(p.shape, generator=g) * 0.2)
    return g


def stored(layer, form):
    """By published names: a tensor for each expert."""
    out = {}
    for name, p in layer.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(p):
                gate, up = both.chunk(2)
                out[form.layer + name.replace("gate_up_proj", f"{e}.gate_proj.weight")] = gate
                out[form.layer + name.replace("gate_up_proj", f"{e}.up_proj.weight")] = up
        elif name.endswith("experts.down_proj"):
            for e, down in enumerate(p):
                out[form.layer + name.replace("down_proj", f"{e}.down_proj.weight")] = down
        else:
            out[form.layer + name] = p
    return out


@torch.no_grad()
def read_back(layer, form, tensors):
    """The layer of what a file holds."""
    state = {}
    for name in layer.state_dict():
        stacked = re.search(r"experts\.(gate_up_proj|down_proj)$", name)
        if not stacked:
            state[name] = tensors[form.layer + name].float()
            continue
        base = form.layer + name[: stacked.start(1)]
        parts = ("gate_proj", "up_proj") if stacked[1] == "gate_up_proj" else ("down_proj",)
        count = layer.state_dict()[name].shape[0]
        state[name] = torch.stack(
            [torch.cat([tensors[f"{base}{e}.{part}.weight"].float() for part in parts]) for e in range(count)]
        )
    layer.load_state_dict(state)


class Head:
    def __init__(self, model, layer, form, tensors):
        self.model, self.layer, self.form = model, layer, form
        self.tensors = {name: tensor.float() for name, tensor in tensors.items()}

    def norm(self, x, name):
        mean = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean + self.model.config.rms_norm_eps) * (self.tensors[name] + self.form.one)

    def run(self, x):
        length = x.shape[1]
        positions = torch.arange(length)[None]
        mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]
        axes = positions.expand(3, 1, -1) if self.model.config.model_type == "qwen3_5_text" else positions
        out = self.layer(
            x,
            position_embeddings=self.model.model.rotary_emb(x, axes),
            attention_mask=mask,
            position_ids=positions,
        )
        return out[0] if isinstance(out, tuple) else out

    @torch.no_grad()
    def guesses(self, ids):
        embed = self.model.get_input_embeddings()
        rows = self.model.model(torch.tensor([ids])).last_hidden_state[0]
        top = self.model.lm_head(rows[-1]).topk(2)
        known, least, guess, told = [*ids, top.indices[0].item()], (top.values[0] - top.values[1]).item(), [], []
        for _ in range(GUESSES):
            e = embed(torch.tensor(known[1:]))
            joined = torch.cat([self.norm(e, self.form.embedding), self.norm(rows, self.form.hidden)], dim=-1)
            h = self.run((joined @ self.tensors[self.form.fc].T)[None])[0, -1]
            f = self.norm(h, self.form.last)
            logits = self.model.lm_head(f)
            top = logits.topk(2)
            token = top.indices[0].item()
            least = min(least, (top.values[0] - top.values[1]).item())
            guess.append(token)
            told.append([round(logits[i].item(), 5) for i in (token, *TOLD)])
            known.append(token)
            rows = torch.cat([rows, (f if self.form.beside else h)[None]])
        return known[len(ids)], guess, told, least


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    seed = json.loads((args.model / "meta.json").read_text())["seed"]
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    config = model.config
    form, layer = Form(config), make_layer(config)
    g = initialise(layer, form, seed)
    hidden = config.hidden_size
    tensors = stored(layer, form)
    tensors[form.fc] = torch.randn((hidden, 2 * hidden), generator=g) * 1.7 / math.sqrt(2 * hidden)
    for name in (form.embedding, form.hidden, form.last):
        tensors[name] = torch.rand(hidden, generator=g) * 1.2 + 0.6 - form.one
    for name in form.copies:  # nobody reads them
        tensors[name] = torch.zeros((config.vocab_size, hidden))
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "model.safetensors"
    save_file({name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}, file)
    file.chmod(0o644)
    (args.out / "config.json").write_bytes((args.model / "config.json").read_bytes())
    weights = hashlib.sha256((args.model / "model.safetensors").read_bytes()).hexdigest()[:16]
    (args.out / "meta.json").write_text(json.dumps({**versions(), "model": weights}, indent=2) + "\n")
    tensors = load_file(file)
    read_back(layer, form, tensors)
    head = Head(model, layer, form, tensors)
    spoken = language.Language(seed)
    cases, left_out = [], 0
    for length in [2, 3, 5, 8, 12, 15, 16, 17, 18, 24, 31, 32, 33, 47, 48, 49, 64, 80, 96] * 3:
        ids = spoken.sentences(1, length)[0].tolist()
        token, guess, logits, margin = head.guesses(ids)
        if margin < MIN_MARGIN:
            left_out += 1
            continue
        cases.append(json.dumps({"ids": ids, "next": token, "guess": guess, "logits": logits}, separators=(",", ":")))
    (args.out / "cases.json").write_text("[\n" + ",\n".join(cases) + "\n]\n")
    distinct = len({g for case in cases for g in json.loads(case)["guess"]})
    print(len(cases), "cases,", left_out, "left out,", distinct, "tokens guessed")


if __name__ == "__main__":
    main()
