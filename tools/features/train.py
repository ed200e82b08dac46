#!/usr/bin/env python3
"""Trains a dictionary of features on captured rows: a folder that rudder-client's capture_dataset wrote.

    train.py DATASET FOLDER --read resid_post.5                      a sparse autoencoder
    train.py DATASET FOLDER --read mlp_in.4 --write mlp_out.4        a transcoder; the rows of both points were captured

FOLDER becomes a dictionary that `rudder serve --dictionary NAME=FOLDER` loads, with its figures in card.json. Every tenth
prompt is held out for them. It needs torch and safetensors, and runs where torch runs."""

import argparse
import json
import random
from pathlib import Path

import torch
from safetensors.torch import load_file
from trainer import Quality, Settings, Trainer

HELD_OUT_IN = 10
HOOKS = {
    "resid_pre": "hook_resid_pre", "attn_out": "hook_attn_out", "resid_mid": "hook_resid_mid", "mlp_in": "mlp.hook_in",
    "mlp_act": "mlp.hook_post", "mlp_out": "hook_mlp_out", "resid_post": "hook_resid_post"}


def tensor_name(shard, point):
    """The tensor of "resid_post.5" in a shard, which may have it by hook name."""
    site, _, layer = point.rpartition(".")
    names = [point, f"blocks.{layer}.{HOOKS.get(site, site)}"]
    found = [name for name in names if name in shard]
    if not found:
        raise SystemExit(f"the data set has no rows of {point}: it has {', '.join(sorted(shard))}")
    return found[0]


def read_shard(path, read, write, held_out):
    """(inputs, outputs) of the prompts that are held out, or of the others."""
    shard = load_file(path)
    mine = (shard["prompt"] % HELD_OUT_IN == 0) == held_out
    return shard[tensor_name(shard, read)][mine], shard[tensor_name(shard, write)][mine]


def batches(files, args, rng):
    """Endless: shards in random order, their rows in random order."""
    while True:
        for path in rng.sample(files, len(files)):
            inputs, outputs = read_shard(path, args.read, args.write, False)
            order = torch.randperm(len(inputs))
            for begin in range(0, len(order) - args.batch_rows + 1, args.batch_rows):
                part = order[begin:begin + args.batch_rows]
                yield inputs[part].to(args.device), outputs[part].to(args.device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--read", required=True)
    parser.add_argument("--write")
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--k", type=int, default=32, help="features that are active at a token, in the mean")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch-rows", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.write = args.write or args.read

    manifest = json.loads((args.dataset / "dataset.json").read_text())
    files = [str(args.dataset / shard["file"]) for shard in manifest["shards"]]
    if not all(file.endswith(".safetensors") for file in files):
        raise SystemExit("the data set is parquet: capture it as safetensors")
    settings = Settings(features=args.features, k=args.k, rate=args.rate)
    trainer = None
    for step, (inputs, outputs) in zip(range(args.steps), batches(files, args, random.Random(args.seed))):
        trainer = trainer or Trainer(inputs, outputs, settings, args.seed)
        left = trainer.step(inputs, outputs, step / args.steps)
        if step % 100 == 0:
            print(f"step {step}: explained {1 - left.item():.4f}", flush=True)

    dictionary = trainer.dictionary()
    quality = Quality(dictionary)
    for path in files:
        inputs, outputs = read_shard(path, args.read, args.write, True)
        quality.add(inputs.to(args.device), outputs.to(args.device))
    dictionary.write(args.folder, args.read, args.write, manifest["model"])
    card = {"dataset": args.dataset.name, "prompts": manifest["num_prompts"], **vars(settings), **quality.figures()}
    (args.folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    print(json.dumps(card))


if __name__ == "__main__":
    main()
