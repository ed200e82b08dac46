#!/usr/bin/env python3
"""How sparse an AsyncT model is on held-out prompts: sparsity.py MODEL SUITES [--cases N].

For every layer and head the share of attention weights that are zero; for every KV head the share of tokens that no
query of its group weighs, whose values a decode need not read; for every layer the share of zeros in its MLP."""

import argparse
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
import asynct  # noqa: E402,F401  registers the architecture


class Counts:
    """Zeros and all, by name."""

    def __init__(self):
        self.zeros, self.all = {}, {}

    def add(self, name, zeros, count):
        self.zeros[name] = self.zeros.get(name, 0) + zeros
        self.all[name] = self.all.get(name, 0) + count

    def shares(self):
        return {name: (self.zeros[name] / self.all[name]).tolist() for name in self.zeros}


def watch(model, counts):
    """Counts in every later pass."""
    for index, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        config = attention.config

        def weights(scores, original=attention.weights, index=index, config=config):
            found = original(scores)
            zero = found == 0
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            counts.add(f"weights of layer {index}", (zero & seen).sum((0, 2, 3)).double(), float(seen.sum()))
            groups = zero.unflatten(1, (config.num_key_value_heads, -1)).all(2)
            counts.add(f"unread tokens of layer {index}", (groups & seen).sum((0, 2, 3)).double(), float(seen.sum()))
            return found

        def gate(_module, _inputs, output, index=index):
            counts.add(f"MLP of layer {index}", (output <= 0).sum().double(), float(output.numel()))

        attention.weights = weights
        layer.mlp.gate_proj.register_forward_hook(gate)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("suites", type=Path)
    parser.add_argument("--cases", type=int, default=20, help="of each suite")
    parser.add_argument("--out", type=Path, help="a JSON file for the shares")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(device).eval()
    counts = Counts()
    watch(model, counts)
    for suite in sorted(args.suites.glob("*.jsonl")):
        cases = [json.loads(line) for line in suite.read_text().splitlines()[:args.cases]]
        for case in (c for c in cases if "messages" in c):
            text = tokenizer.apply_chat_template(case["messages"], add_generation_prompt=True, tokenize=False)
            ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"].to(device)
            with torch.inference_mode():
                model(ids)
    shares = counts.shares()
    for name, share in shares.items():
        print(name, [round(s, 3) for s in share] if isinstance(share, list) else round(share, 3))
    for kind in ("weights", "unread tokens", "MLP"):
        found = [torch.tensor(s).mean().item() for name, s in shares.items() if name.startswith(kind)]
        print(f"{kind}: {sum(found) / len(found):.3f} on average")
    if args.out:
        args.out.write_text(json.dumps(shares, indent=1) + "\n")


if __name__ == "__main__":
    main()
