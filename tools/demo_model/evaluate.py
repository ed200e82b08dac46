#!/usr/bin/env python3
"""Answers the held-out suites with Hugging Face transformers, greedily, and scores the answers.

The scores of each precision are kept in scores.json beside the suites."""

import argparse
import json
import time
from pathlib import Path

import score
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

SUITES = ["addition", "recall", "json", "story", "chat", "long"]
LONGEST = {"addition": 48, "recall": 48, "json": 400, "story": 300, "chat": 400, "long": 48}


def answer(model, tokenizer, cases, longest, batch_size):
    """{"id", "text", "finish_reason"} of each case."""
    ends = set(model.generation_config.eos_token_id)
    for first in range(0, len(cases), batch_size):
        part = cases[first:first + batch_size]
        prompts = [tokenizer.apply_chat_template(c["messages"], add_generation_prompt=True, tokenize=False) for c in part]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        inputs = {name: inputs[name].to(model.device) for name in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            output = model.generate(**inputs, do_sample=False, max_new_tokens=longest)
        for case, ids in zip(part, output[:, inputs["input_ids"].shape[1]:].tolist()):
            stop = next((i for i, token in enumerate(ids) if token in ends), None)
            text = tokenizer.decode(ids[:stop], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            yield {"id": case["id"], "text": text, "finish_reason": "length" if stop is None else "stop"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--suites", type=Path, help="folder of the suites, by default eval/ of the model")
    parser.add_argument("--answers", type=Path, help="folder to keep the answers in")
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--batch-size", type=int, default=250)
    args = parser.parse_args()
    suites = args.suites or args.model / "eval"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    scores = {}
    for precision in args.precision:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, precision)).to(device).eval()
        scores[precision], answers = {}, []
        for task in SUITES:
            began = time.time()
            cases = score.read_jsonl(suites / f"{task}.jsonl")
            given = list(answer(model, tokenizer, cases, LONGEST[task], args.batch_size))
            answers += given
            found, wrong = score.score(cases, given)
            scores[precision].update(found)
            print(f"{precision} {json.dumps(found)} in {time.time() - began:.0f} s; wrong: {wrong[:8]}", flush=True)
        if args.answers:
            args.answers.mkdir(parents=True, exist_ok=True)
            with open(args.answers / f"answers-{precision}.jsonl", "w", encoding="utf-8") as file:
                file.writelines(json.dumps(item, ensure_ascii=False) + "\n" for item in answers)
        (suites / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")


if __name__ == "__main__":
    main()
