#!/usr/bin/env python3
"""Trains Medusa heads for the demo model on its corpus, for a fixed time, on one CPU core or a GPU, and writes their folder.

They learn the model's own tokens, each head those of one distance. Started again with --resume it goes on from the folder's weights."""

import argparse
import json
import random
import time
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from medusa import Medusa, MedusaConfig
from muon import Muon
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from train_eagle import OTHER_TOKENS, batches
from transformers import LlamaForCausalLM


def config_of(heads):
    return {
        "architectures": ["MedusaModel"], "model_type": "medusa", **asdict(heads), "truncated_vocab_size": heads.vocab_size,
        "medusa_fc_bias": False, "original_lm_head": True, "torch_dtype": "bfloat16"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the demo model's folder")
    parser.add_argument("heads", type=Path, help="the folder to write")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--plateau", type=float, default=0.4, help="share of the time before the rate decays")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    target = LlamaForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(args.device).eval().requires_grad_(False)
    config = MedusaConfig()
    heads = Medusa(config).to(args.device)
    print(f"{sum(p.numel() for p in heads.parameters())} parameters", flush=True)
    args.heads.mkdir(parents=True, exist_ok=True)
    weights_file = args.heads / "model.safetensors"
    if args.resume:
        heads.load_state_dict({name: weight.float() for name, weight in load_file(str(weights_file)).items()})
    else:
        with torch.no_grad():
            # Surer of the next token than of any behind it: a row begins as that of the next token.
            heads.lm_heads[0].weight.copy_(0.2 * target.lm_head.weight)
            for block in heads.blocks:
                block.layers[-1].weight.mul_(0.1)

    def save():
        weights = {name: p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in heads.state_dict().items()}
        save_file(weights, str(weights_file), metadata={"format": "pt"})
        (args.heads / "config.json").write_text(json.dumps(config_of(config), indent=2) + "\n")

    matrices = list(heads.blocks.parameters())
    optimizers = Muon(matrices, lr=args.lr), torch.optim.AdamW(heads.lm_heads.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    rates = [(group, group["lr"] * scale) for optimizer, scale in zip(optimizers, (1, 0.1)) for group in optimizer.param_groups]
    count = config.num_heads
    start, step, learnt_tokens, total, right = time.time(), 0, 0, torch.zeros(count), torch.zeros(count)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    for ids, mask, real in batches(tokenizer, random.Random(f"medusa {args.seed} {args.resume}"), args.batch_tokens):
        elapsed = (time.time() - start) / (60 * args.minutes)
        if elapsed >= 1:
            break
        decay = 1.0 if elapsed < args.plateau else (1 - elapsed) / (1 - args.plateau)
        for group, rate in rates:
            group["lr"] = rate * min(1.0, (step + 1) / 30) * decay
        learnt = ((mask | (torch.rand(mask.shape) < OTHER_TOKENS)) & real).to(args.device)
        ids = ids.to(args.device)
        with torch.no_grad():
            rows = target.model(ids).last_hidden_state
            logits = target.lm_head(rows)
        tokens = ids.shape[1] - 1 - count
        loss = 0.0
        # The guess of head i at row t is of token t + 2 + i, which the model's row t + 1 + i says.
        for i in range(count):
            counted = learnt[:, 2 + i:2 + i + tokens]
            said = logits[:, 1 + i:1 + i + tokens][counted]
            guessed = heads.logits(i, rows[:, :tokens][counted])
            loss = loss + 0.8**i * F.cross_entropy(guessed, said.softmax(-1))
            total[i] += F.cross_entropy(guessed.detach(), said.argmax(-1)).item()
            right[i] += (guessed.argmax(-1) == said.argmax(-1)).float().mean().item()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        heads.zero_grad(set_to_none=True)
        step += 1
        learnt_tokens += ids.numel()
        if step % 20 == 0:
            print(f"step {step}  {elapsed:4.0%}  loss {(total / 20).tolist()}  right {(right / 20).tolist()}", flush=True)
            total.zero_()
            right.zero_()
            save()
    save()
    print(f"trained {step} steps, {learnt_tokens} tokens, in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
