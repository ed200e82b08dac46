#!/usr/bin/env python3
"""Trains the demo model on the corpus for a fixed time on one GPU, and saves a checkpoint of its weights.

The learning rate follows the clock: a short warm-up, a plateau, and a linear decay that ends with the time."""

import argparse
import time
from pathlib import Path

import torch
from asynct_model import AsyncT, AsyncTConfig
from batches import Batches
from learning_rate import rate
from model import Config, Llama
from muon import Muon
from safetensors.torch import load_file, save_file

SAVE_STEPS = 500


def optimizers(model, lr):
    layers = list(model.model.layers.parameters())
    rest = [model.model.embed_tokens.weight, *model.model.norm.parameters()] + [p for p in layers if p.ndim == 1]
    adam = torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    return Muon([p for p in layers if p.ndim == 2], lr=lr), adam


def save(model, path):
    save_file({name: p.detach().float().cpu().contiguous() for name, p in model.named_parameters()}, str(path))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path, help="folder with tokenizer.json")
    parser.add_argument("checkpoint", type=Path, help="the fp32 weights to write")
    parser.add_argument("--minutes", type=float, default=7.0, help="training time, compilation not counted")
    parser.add_argument("--arch", choices=["llama", "asynct"], default="llama")
    parser.add_argument("--plateau", type=float, default=0.4, help="share of the time before the rate decays")
    parser.add_argument("--resume", type=Path, help="weights to start from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--batch-tokens", type=int, default=131072)
    parser.add_argument("--workers", type=int, default=12)
    args = parser.parse_args()

    batches = iter(Batches(args.tokenizer / "tokenizer.json", args.seed, args.workers, args.batch_tokens))
    torch.manual_seed(args.seed)
    model = (Llama(Config()) if args.arch == "llama" else AsyncT(AsyncTConfig())).cuda()
    if args.resume:
        model.load_state_dict(load_file(str(args.resume)))
    elif args.arch == "asynct":
        first = next(batches).to("cuda")
        with torch.autocast("cuda", torch.bfloat16):
            model.fit_norms(first.ids, first.positions, first.offsets)
    count = sum(p.numel() for p in model.parameters())
    print(f"{count} parameters on {torch.cuda.get_device_name()}", flush=True)

    muon, adam = optimizers(model, args.lr)
    loss_of = torch.compile(model)
    step, start, reported = 0, None, time.time()
    while True:
        elapsed = (time.time() - start) / (60 * args.minutes) if start else 0.0
        if elapsed >= 1:
            break
        share = rate(step, elapsed, args.plateau)
        for optimizer in (muon, adam):
            for group in optimizer.param_groups:
                group["lr"] = args.lr * share
        batch = next(batches).to("cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(**vars(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        adam.step()
        model.zero_grad(set_to_none=True)
        step += 1
        if step == 3:
            torch.cuda.synchronize()
            print(f"compiled in {time.time() - reported:.0f} s", flush=True)
            start = reported = time.time()
        if step % 100 == 0:
            value, now = loss.item(), time.time()
            speed = 100 * args.batch_tokens / (now - reported) / 1e6
            if step % SAVE_STEPS == 0:
                save(model, args.checkpoint)
            print(f"step {step}  {elapsed:4.0%}  loss {value:.5f}  {speed:.2f} M tokens/s", flush=True)
            reported = now
    torch.cuda.synchronize()
    save(model, args.checkpoint)
    print(f"trained {step} steps of {args.batch_tokens} tokens in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
