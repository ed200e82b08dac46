#!/usr/bin/env python3
"""Trains a draft model for the demo model on its corpus, for a fixed time on one CPU core, and saves its weights.

It learns what the demo model answers: the corpus has those answers, which the demo model gives all but always. Its
embedding begins as the main components of the demo model's."""

import argparse
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from batches import blocks, join
from model import Config, Llama
from learning_rate import rate
from muon import Muon
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

DRAFT = Config(hidden_size=128, intermediate_size=320, num_hidden_layers=3, num_attention_heads=2,
    num_key_value_heads=1, head_dim=64)
OTHER_TOKENS = 0.1  # the share of the tokens that are not answers which it learns too


def main_components(embedding, width):
    """The rows of `embedding` along its `width` main directions, with the spread that Llama begins with."""
    _, _, directions = torch.linalg.svd(embedding, full_matrices=False)
    rows = embedding @ directions[:width].T
    return rows * (0.02 / rows.std())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the demo model's folder")
    parser.add_argument("checkpoint", type=Path, help="the fp32 weights to write")
    parser.add_argument("--minutes", type=float, default=22)
    parser.add_argument("--plateau", type=float, default=0.5, help="share of the time before the rate decays")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=4e-3)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = Llama(DRAFT)
    with torch.no_grad():
        embedding = load_file(str(args.model / "model.safetensors"))["model.embed_tokens.weight"].float()
        model.model.embed_tokens.weight.copy_(main_components(embedding, DRAFT.hidden_size))
    layers = list(model.model.layers.parameters())
    rest = [model.model.embed_tokens.weight, *model.model.norm.parameters()] + [p for p in layers if p.ndim == 1]
    muon = Muon([p for p in layers if p.ndim == 2], lr=args.lr)
    adam = torch.optim.AdamW(rest, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)

    def save():
        save_file({name: p.detach().contiguous() for name, p in model.named_parameters()}, str(args.checkpoint))

    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    packed = blocks(tokenizer, random.Random(f"draft {args.seed}"), args.batch_tokens)
    start, step, total = time.time(), 0, 0.0
    while (elapsed := (time.time() - start) / (60 * args.minutes)) < 1:
        share = rate(step, elapsed, args.plateau)
        for group in muon.param_groups + adam.param_groups:
            group["lr"] = args.lr * share
        batch = join([next(packed)], args.batch_tokens)
        learnt = (batch.weights > 0) | (torch.rand(batch.weights.shape) < OTHER_TOKENS)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.hidden(batch.ids, batch.positions, batch.offsets)[learnt]
            logits = F.linear(hidden, model.model.embed_tokens.weight)
        loss = F.cross_entropy(logits.float(), batch.targets[learnt])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        adam.step()
        model.zero_grad(set_to_none=True)
        step += 1
        total += loss.item()
        if step % 50 == 0:
            print(f"step {step}  {elapsed:4.0%}  loss {total / 50:.4f}", flush=True)
            total = 0.0
            save()
    save()
    print(f"trained {step} steps of {args.batch_tokens} tokens in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
