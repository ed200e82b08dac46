#!/usr/bin/env python3
"""Writes tests/draft_heads/eagle.json: what an EAGLE head of the demo guesses behind the texts of another file of cases, in
float64 with numpy alone. Nobody trained the head: its weights are a formula, which draft_head_golden_test has too.

    tools/golden/eagle_head.py models/demo tests/draft_heads/demo.json tests/draft_heads/eagle.json"""

import argparse
import json
from pathlib import Path

import ml_dtypes  # noqa: F401  safetensors reads bfloat16 by it
import numpy as np
from safetensors.numpy import load_file

GUESSES = 4
LEAST_MARGIN = 1e-3  # between the logits of the guess and of the next best: other arithmetic finds the same
HEADS, KV_HEADS, HEAD_DIM, MLP = 4, 2, 32, 96
EPS, THETA = 1e-5, 10000.0


def made(seed, shape, scale, centre=0.0):
    """Values that float32 holds exactly: 24 bits of a hash of the index, around `centre`."""
    x = (np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(seed << 20)) & np.uint64(0xFFFFFFFF)
    for _ in range(2):
        x ^= x >> np.uint64(16)
        x = (x * np.uint64(0x45D9F3B)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(16)
    return ((x >> np.uint64(8)).astype(np.float64) / 2**24 - 0.5).reshape(shape) * scale + centre


def head_weights(hidden):
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    return {
        "fc.weight": made(1, (hidden, 2 * hidden), 0.25), "fc.bias": made(2, (hidden,), 0.5),
        "self_attn.q_proj.weight": made(3, (q, hidden), 0.25), "self_attn.k_proj.weight": made(4, (kv, hidden), 0.25),
        "self_attn.v_proj.weight": made(5, (kv, hidden), 0.25), "self_attn.o_proj.weight": made(6, (hidden, q), 0.25),
        "post_attention_layernorm.weight": made(7, (hidden,), 0.5, 1.0),
        "mlp.gate_proj.weight": made(8, (MLP, hidden), 0.25), "mlp.up_proj.weight": made(9, (MLP, hidden), 0.25),
        "mlp.down_proj.weight": made(10, (hidden, MLP), 0.25)}


def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def rotated(x, positions):
    """x [tokens, heads, dim], halves of a head turned against each other."""
    half = x.shape[-1] // 2
    angles = positions[:, None] / THETA ** (np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)


def attention(x, weights, heads, kv_heads, dim):
    tokens = len(x)
    positions = np.arange(tokens)
    q, k, v = (x @ weights[f"self_attn.{name}_proj.weight"].T for name in "qkv")
    q = rotated(q.reshape(tokens, heads, dim), positions)
    k = np.repeat(rotated(k.reshape(tokens, kv_heads, dim), positions), heads // kv_heads, axis=1)
    v = np.repeat(v.reshape(tokens, kv_heads, dim), heads // kv_heads, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", shares, v).reshape(tokens, -1) @ weights["self_attn.o_proj.weight"].T


def mlp(x, weights):
    gate = x @ weights["mlp.gate_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * (x @ weights["mlp.up_proj.weight"].T)) @ weights["mlp.down_proj.weight"].T


class Demo:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        stored = {name: value.astype(np.float64) for name, value in load_file(folder / "model.safetensors").items()}
        self.embedding = stored["model.embed_tokens.weight"]
        self.final_norm = stored["model.norm.weight"]
        self.layers = [{name.split(".", 3)[3]: value for name, value in stored.items() if name.startswith(f"model.layers.{i}.")}
                       for i in range(self.config["num_hidden_layers"])]

    def rows(self, ids):
        """Behind the final norm: what the head of the model reads."""
        x = self.embedding[ids]
        shape = (self.config["num_attention_heads"], self.config["num_key_value_heads"], self.config["head_dim"])
        for weights in self.layers:
            x = x + attention(norm(x, weights["input_layernorm.weight"]), weights, *shape)
            x = x + mlp(norm(x, weights["post_attention_layernorm.weight"]), weights)
        return norm(x, self.final_norm)


def guesses_behind(demo, head, ids):
    """The model's next token behind `ids`, the head's guesses behind it, and the least margin of all these choices."""
    margins = []

    def best(row):
        logits = demo.embedding @ row
        first, second = np.argsort(-logits)[:2]
        margins.append(logits[first] - logits[second])
        return int(first)

    rows = demo.rows(ids)
    tokens = [*ids[1:], best(rows[-1])]
    for _ in range(GUESSES):
        x = np.concatenate([demo.embedding[tokens], rows], -1) @ head["fc.weight"].T + head["fc.bias"]
        h = x + attention(x, head, HEADS, KV_HEADS, HEAD_DIM)
        h = h + mlp(norm(h, head["post_attention_layernorm.weight"]), head)
        tokens.append(best(h[-1]))
        rows = np.concatenate([rows, h[-1:]])
    return tokens[len(ids) - 1], tokens[len(ids):], min(margins)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    demo = Demo(args.model)
    head = head_weights(demo.config["hidden_size"])
    cases = []
    for text in json.loads(args.texts.read_text()):
        token, guess, margin = guesses_behind(demo, head, text["ids"])
        if margin > LEAST_MARGIN:
            cases.append({"ids": text["ids"], "next": token, "guess": guess})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    args.out.write_text(f"[\n{lines}\n]\n")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
