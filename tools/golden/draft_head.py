#!/usr/bin/env python3
"""Writes tests/draft_heads/demo.json: what the demo's EAGLE-3 head guesses behind texts of the demo's tasks, in float32 with
PyTorch (tools/demo_model/eagle.py) and transformers.

    tools/golden/draft_head.py models/demo models/demo-eagle tests/draft_heads/demo.json"""

import argparse
import json
import random
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "demo_model"))
from corpus import encoded  # noqa: E402
from eagle import Eagle3, HeadConfig  # noqa: E402

DOCUMENTS, LONGEST, STRIDE, GUESSES = 10, 120, 9, 4
LEAST_MARGIN = 1e-3  # between the logits of the guess and of the next best: other arithmetic finds the same


@torch.no_grad()
def guesses_behind(model, head, chosen, layers, ids):
    """The model's next token behind `ids`, the head's guesses behind it, and the least margin of all these choices."""
    out = model(torch.tensor([ids]), output_hidden_states=True)
    features = torch.cat([out.hidden_states[i] for i in layers], dim=-1)
    margins = []

    def best(logits):
        top = logits.topk(2)
        margins.append((top.values[0] - top.values[1]).item())
        return top.indices[0].item()

    tokens = [*ids[1:], best(out.logits[0, -1])]
    for i in range(GUESSES):
        embedded = model.model.embed_tokens(torch.tensor([tokens]))
        *_, logits = head.guesses(features, embedded, i + 1)
        tokens.append(chosen[best(logits[0, -1])].item())
    return tokens[len(ids) - 1], tokens[len(ids):], min(margins)


def write_cases(args, behind):
    """behind(ids): as guesses_behind(). Writes args.out, of texts of the corpus in tokens of args.model."""
    cases = []
    documents = encoded(Tokenizer.from_file(str(args.model / "tokenizer.json")), random.Random("draft head"))
    for _ in range(DOCUMENTS):
        ids = next(documents)[0][:LONGEST]
        for length in range(2, len(ids), STRIDE):
            token, guess, margin = behind(ids[:length])
            if margin > LEAST_MARGIN:
                cases.append({"ids": ids[:length], "next": token, "guess": guess})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    args.out.write_text(f"[\n{lines}\n]\n")
    print(f"{len(cases)} cases")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    config = json.loads((args.head / "config.json").read_text())
    stored = load_file(str(args.head / "model.safetensors"))
    d2t = stored.pop("d2t")
    stored.pop("t2d")
    head = Eagle3(HeadConfig(**{name: config[name] for name in vars(HeadConfig())})).eval()
    head.load_state_dict({name: weight.float() for name, weight in stored.items()})
    chosen = torch.arange(d2t.numel()) + d2t
    layers = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]

    write_cases(args, lambda ids: guesses_behind(model, head, chosen, layers, ids))


if __name__ == "__main__":
    main()
