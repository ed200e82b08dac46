#!/usr/bin/env python3
"""Writes eval/greedy.jsonl: prompts and their greedy continuations by Hugging Face in float32, as token ids.

An engine must continue each prompt with the same tokens. Only cases are kept in which, at every step, the best
logit leads the second by more than GAP, so that rounding cannot decide."""

import argparse
import json
import random
from pathlib import Path

import score
import torch
from chat_format import END_OF_TEXT, render
from evaluate import SUITES
from tasks import story
from transformers import AutoModelForCausalLM, AutoTokenizer

GAP = 1e-3
LONGEST = 64
PER_SUITE = 6
PLAIN = 5


def prompts(folder, rng):
    """(id, text): some cases of every suite, and the beginnings of plain stories."""
    for task in SUITES:
        cases = score.read_jsonl(folder / "eval" / f"{task}.jsonl")
        for case in rng.sample(cases, 2 * PER_SUITE):
            yield task, case["id"], render(case["messages"], True)
    for index in range(2 * PLAIN):
        yield "plain", f"plain-{index:03}", END_OF_TEXT + " ".join(story.plain(rng).split(" ")[:12])


def continuation(model, ids):
    """The greedy continuation and the smallest lead of a chosen token over the runner-up."""
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([ids], device=model.device), do_sample=False, max_new_tokens=LONGEST,
            output_logits=True, return_dict_in_generate=True)
    best = torch.stack(out.logits).squeeze(1).topk(2).values
    return out.sequences[0, len(ids):].tolist(), (best[:, 0] - best[:, 1]).min().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(device).eval()
    kept = dict.fromkeys([*SUITES, "plain"], 0)
    with open(args.model / "eval" / "greedy.jsonl", "w", encoding="utf-8") as file:
        for task, name, text in prompts(args.model, random.Random(f"greedy {args.seed}")):
            if kept[task] == (PLAIN if task == "plain" else PER_SUITE):
                continue
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            tokens, gap = continuation(model, ids)
            if gap > GAP:
                kept[task] += 1
                line = {"id": name, "prompt": ids, "continuation": tokens, "min_gap": round(gap, 5)}
                file.write(json.dumps(line) + "\n")
    print(f"greedy continuations: {kept}")


if __name__ == "__main__":
    main()
