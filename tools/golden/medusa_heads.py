#!/usr/bin/env python3
"""Writes tests/draft_heads/medusa.json: what the demo's Medusa heads guess behind texts of the demo's tasks, in float32 with
PyTorch (tools/demo_model/medusa.py) and transformers.

    tools/golden/medusa_heads.py models/demo models/demo-medusa tests/draft_heads/medusa.json"""

import argparse
import json
from pathlib import Path

import torch
from draft_head import write_cases
from medusa import Medusa, MedusaConfig  # found by draft_head's path
from safetensors.torch import load_file
from transformers import LlamaForCausalLM


@torch.no_grad()
def guesses_behind(model, heads, count, ids):
    """The model's next token behind `ids`, the heads' guesses behind it, and the least margin of all these choices."""
    row = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
    tops = [logits.topk(2) for logits in (model.lm_head(row), *(heads.logits(i, row) for i in range(count)))]
    tokens = [top.indices[0].item() for top in tops]
    return tokens[0], tokens[1:], min((top.values[0] - top.values[1]).item() for top in tops)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("heads", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    config = json.loads((args.heads / "config.json").read_text())
    heads = Medusa(MedusaConfig(**{name: config[name] for name in vars(MedusaConfig())})).eval()
    heads.load_state_dict({name: weight.float() for name, weight in load_file(str(args.heads / "model.safetensors")).items()})
    write_cases(args, lambda ids: guesses_behind(model, heads, config["num_heads"], ids))


if __name__ == "__main__":
    main()
