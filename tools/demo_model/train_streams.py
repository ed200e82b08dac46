#!/usr/bin/env python3
"""Trains the demo model with several streams (streams_model.py) on the corpus's stories, for a fixed time: on a GPU where
one is, else on one CPU core."""

import argparse
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from chat_format import Encoder, messages_of
from learning_rate import rate
from muon import Muon
from safetensors.torch import load_file, save_file
from streams_model import CHUNK, Streams, StreamsConfig
from tasks import story
from tokenizers import Tokenizer

PLAIN = 0.15  # the share of stories without a chat around them
OTHER_TOKENS = 0.1  # the share of the tokens that are not answers which it learns too


def documents(tokenizer, rng):
    """(ids, mask) of stories, asked for or plain."""
    encoder = Encoder(tokenizer)
    while True:
        if rng.random() < PLAIN:
            yield encoder.text(story.plain(rng))
        else:
            yield encoder.chat(messages_of(None, [story.exchange(rng) for _ in range(rng.randint(1, 2))]))


def batches(tokenizer, rng, tokens):
    """(ids, targets, learnt), each [documents, length]: documents of like length beside each other, padded with 0."""
    source = documents(tokenizer, rng)
    while True:
        drawn = sorted((next(source) for _ in range(tokens // 16)), key=lambda d: len(d[0]))
        ready, taken = [], []
        for document in drawn:
            length = -(-len(document[0]) // CHUNK) * CHUNK
            if taken and length * (len(taken) + 1) > tokens:
                ready.append(taken)
                taken = []
            taken.append(document)
        rng.shuffle(ready)
        for some in ready:
            length = -(-len(some[-1][0]) // CHUNK) * CHUNK
            rows = torch.zeros(2, len(some), length + 1, dtype=torch.long)
            for row, (ids, mask) in enumerate(some):
                rows[0, row, : len(ids)] = torch.tensor(ids)
                rows[1, row, : len(ids)] = 1 + torch.tensor(mask)
            others = torch.rand(rows[1].shape) < OTHER_TOKENS
            learnt = (rows[1] == 2) | ((rows[1] == 1) & others)
            yield rows[0, :, :-1], rows[0, :, 1:], learnt[:, 1:]


class Batches(torch.utils.data.IterableDataset):
    """What batches() yields, each process with stories of its own."""

    def __init__(self, tokenizer, seed, tokens):
        self.tokenizer, self.seed, self.tokens = tokenizer, seed, tokens

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        rng = random.Random(f"streams {self.seed} {worker.id if worker else 0}")
        return batches(Tokenizer.from_file(str(self.tokenizer)), rng, self.tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path, help="folder with tokenizer.json")
    parser.add_argument("checkpoint", type=Path, help="the fp32 weights to write")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--plateau", type=float, default=0.5, help="share of the time before the rate decays")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--resume", type=Path, help="weights to start from")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw stories; 0: this one does")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=4e-3)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Streams(StreamsConfig())
    if args.resume:
        model.load_state_dict(load_file(str(args.resume)))
    model.to(device)
    matrices = [p for name, p in model.model.layers.named_parameters() if p.ndim == 2 and "hc_" not in name]
    chosen = {id(p) for p in matrices}
    muon = Muon(matrices, lr=args.lr)
    rest = [p for p in model.parameters() if id(p) not in chosen]
    adam = torch.optim.AdamW(rest, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)

    def save():
        save_file({name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}, str(args.checkpoint))

    data = Batches(args.tokenizer / "tokenizer.json", args.seed, args.batch_tokens)
    source = iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=args.workers))
    start, step, total, tokens = time.time(), 0, 0.0, 0
    while (elapsed := (time.time() - start) / (60 * args.minutes)) < 1:
        for group in muon.param_groups + adam.param_groups:
            group["lr"] = args.lr * rate(step, elapsed, args.plateau)
        ids, targets, learnt = (rows.to(device) for rows in next(source))
        with torch.autocast(device, torch.bfloat16):
            logits = F.linear(model.hidden(ids)[learnt], model.model.embed_tokens.weight)
        loss = F.cross_entropy(logits.float(), targets[learnt])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        adam.step()
        model.zero_grad(set_to_none=True)
        step, total, tokens = step + 1, total + loss.detach(), tokens + ids.numel()
        if step % 50 == 0:
            print(f"step {step}  {elapsed:4.0%}  loss {float(total) / 50:.4f}  {tokens} tokens", flush=True)
            total = 0.0
            save()
    save()
    print(f"trained {step} steps, {tokens} tokens, in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
