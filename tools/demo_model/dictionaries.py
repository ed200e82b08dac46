#!/usr/bin/env python3
"""Trains the demo model's dictionaries: sparse autoencoders of resid_post, and a transcoder of an MLP, on the corpus that
the model was trained on. All are trained on the same forward passes.

    dictionaries.py models/demo WORK --minutes 2.5

WORK gets a folder for each; each has card.json beside what `rudder serve --dictionary` loads: the data, how many features
are active at a token, the explained variance, the share of features that never were active on held-out text, and what the
model's loss on it becomes when the dictionary's output takes the place of the rows ("spliced") or zeros do."""

import argparse
import json
import random
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from batches import BLOCK, Batches, blocks, join
from model import Config, Llama
from safetensors.torch import load_file
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "features"))
from trainer import Quality, Settings, Trainer  # noqa: E402

# What each reads, and what it gives.
TRAINED = {
    "resid_post.3": "resid_post.3", "resid_post.4": "resid_post.4", "resid_post.5": "resid_post.5",
    "mlp_in.5": "mlp_out.5"}
HELD_OUT_SEED = "dictionaries held out"


@dataclass
class Rows:
    """Rows of the points that are asked for, by name, as the last forward pass had them."""

    model: Llama
    points: tuple

    def __post_init__(self):
        self.values = {}
        for point in self.points:
            module_of(self.model, point).register_forward_hook(self._keep(point))

    def _keep(self, point):
        def hook(_module, _inputs, output):
            self.values[point] = output.detach()
        return hook


def module_of(model, point):
    """The module whose output is the row of that point."""
    site, layer = point.split(".")
    found = model.model.layers[int(layer)]
    return {"resid_post": found, "mlp_in": found.post_attention_layernorm, "mlp_out": found.mlp}[site]


@contextmanager
def replaced(model, point, function):
    """Inside, the output of that point is what `function()` gives for it."""
    handle = module_of(model, point).register_forward_hook(lambda _module, _inputs, output: function(output))
    try:
        yield
    finally:
        handle.remove()


def load_model(folder, device):
    model = Llama(Config()).to(device)
    weights = load_file(str(folder / "model.safetensors"))
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return model.eval()


def held_out_batches(folder, count, device):
    """Of another seed than any that trains."""
    source = blocks(Tokenizer.from_file(str(folder / "tokenizer.json")), random.Random(HELD_OUT_SEED))
    for _ in range(count):
        batch = join([next(source)], BLOCK // 32)
        yield type(batch)(**{name: tensor.to(device) for name, tensor in vars(batch).items()})


def loss_of(model, batch, device):
    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        return model(**vars(batch)).item()


def measure(model, rows, dictionaries, batches, device):
    """{read point: figures}"""
    qualities = {read: Quality(dictionary) for read, dictionary in dictionaries.items()}
    losses = {read: {"clean": 0.0, "spliced": 0.0, "zeroed": 0.0} for read in dictionaries}
    for batch in batches:
        clean = loss_of(model, batch, device)
        for read, write in TRAINED.items():
            dictionary, mine = dictionaries[read], losses[read]
            mine["clean"] += clean
            with replaced(model, write, lambda out, d=dictionary, r=read: d.decode(
                    d.encode(out if r == write else rows.values[r])).to(out.dtype)):
                mine["spliced"] += loss_of(model, batch, device)
            with replaced(model, write, torch.zeros_like):
                mine["zeroed"] += loss_of(model, batch, device)
        loss_of(model, batch, device)  # the rows of a pass in which nothing is replaced
        for read, write in TRAINED.items():
            qualities[read].add(rows.values[read].float(), rows.values[write].float())
    found = {}
    for read, mine in losses.items():
        recovered = (mine["zeroed"] - mine["spliced"]) / (mine["zeroed"] - mine["clean"])
        mean = {f"loss_{name}": round(value / len(batches), 4) for name, value in mine.items()}
        found[read] = {**qualities[read].figures(), **mean, "loss_recovered": round(recovered, 4)}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--minutes", type=float, default=2.5, help="of training")
    parser.add_argument("--steps", type=int, default=10**9, help="at most so many")
    parser.add_argument("--batch-rows", type=int, default=8192)
    parser.add_argument("--blocks", type=int, default=8, help=f"of {BLOCK} tokens that a forward pass takes")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--held-out", type=int, default=16, help="blocks that the figures are from")
    parser.add_argument("--features", type=int, default=Settings.features)
    parser.add_argument("--k", type=int, default=Settings.k)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed)

    model = load_model(args.model, device)
    rows = Rows(model, tuple({*TRAINED, *TRAINED.values()}))
    settings = Settings(features=args.features, k=args.k)
    source = iter(Batches(args.model / "tokenizer.json", f"dictionaries {args.seed}", args.workers, args.blocks * BLOCK))
    trainers, step, tokens, start = {}, 0, 0, None
    while True:
        done = max((time.time() - start) / (60 * args.minutes), step / args.steps) if start else 0.0
        if done >= 1:
            break
        batch = next(source)
        start = start or time.time()
        batch = type(batch)(**{name: tensor.to(device) for name, tensor in vars(batch).items()})
        loss_of(model, batch, device)
        tokens += len(batch.ids)
        order = torch.randperm(len(batch.ids), device=device)
        for begin in range(0, len(order), args.batch_rows):
            part = order[begin:begin + args.batch_rows]
            left = {}
            for read, write in TRAINED.items():
                inputs, outputs = rows.values[read], rows.values[write]
                if read not in trainers:
                    trainers[read] = Trainer(inputs, outputs, settings, args.seed)
                left[read] = trainers[read].step(inputs[part], outputs[part], done)
            step += 1
            if step % 100 == 0:
                explained = ", ".join(f"{read} {1 - value.item():.4f}" for read, value in left.items())
                print(f"step {step} {done:4.0%} {tokens / (time.time() - start) / 1e3:.0f} k tokens/s, explained: {explained}", flush=True)

    dictionaries = {read: trainer.dictionary() for read, trainer in trainers.items()}
    held_out = list(held_out_batches(args.model, args.held_out, device))
    figures = measure(model, rows, dictionaries, held_out, device)
    for read, dictionary in dictionaries.items():
        folder = args.work / read
        dictionary.write(folder, read, TRAINED[read], "rudder-demo")
        card = {"data": "the demo corpus, in the model's shares", "tokens": tokens, "steps": step,
                "training": asdict(settings), "held_out": figures[read]}
        (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")
        print(read, json.dumps(card), flush=True)


if __name__ == "__main__":
    main()
