"""Packs the corpus into batches of one flat run of tokens each, made by worker processes ahead of the trainer.

Worker w fills blocks from its own seed, and the trainer takes the workers in turn, so the order of the data
depends on the seed and the number of workers alone."""

import os
import random
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
import torch.multiprocessing as mp
from corpus import encoded
from tokenizers import Tokenizer

BLOCK = 16384


@dataclass
class Batch:
    """`ids` is the input, `targets` the token that follows each, `weights` which of those are learnt.

    `positions` start at 0 in every document; document i spans offsets[i]:offsets[i+1]. The offsets are padded
    to a fixed length with empty documents."""

    ids: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    positions: torch.Tensor
    offsets: torch.Tensor

    def to(self, device):
        return Batch(*(t.pin_memory().to(device, non_blocking=True) for t in vars(self).values()))


def blocks(tokenizer, rng, size=BLOCK):
    """(ids, mask, document lengths) of `size` tokens: whole documents, then one document of padding."""
    ids, mask, lengths = [], [], []
    for more, learnt in encoded(tokenizer, rng):
        if len(ids) + len(more) > size:
            rest = size - len(ids)
            lengths += [rest] if rest else []
            yield (
                np.pad(np.array(ids, np.int32), (0, rest)), np.pad(np.array(mask, np.uint8), (0, rest)),
                np.array(lengths, np.int32))
            ids, mask, lengths = [], [], []
        ids += more
        mask += learnt
        lengths.append(len(more))


def _work(tokenizer_file, seed, queue):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for block in blocks(Tokenizer.from_file(tokenizer_file), random.Random(seed)):
        queue.put(block)


def join(parts, documents):
    """One batch of several blocks, with room for `documents` documents."""
    ids = np.concatenate([p[0] for p in parts])
    mask = np.concatenate([p[1] for p in parts])
    lengths = np.concatenate([p[2] for p in parts])
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    offsets = np.full(documents + 1, len(ids), np.int32)
    offsets[:len(lengths) + 1] = [0, *accumulate(lengths)]
    return Batch(
        torch.from_numpy(ids).long(), torch.from_numpy(np.append(ids[1:], 0)).long(),
        torch.from_numpy(np.append(mask[1:], 0)).float(), torch.from_numpy(positions), torch.from_numpy(offsets))


class Batches:
    """An endless iterator over batches of `tokens` tokens."""

    def __init__(self, tokenizer_file, seed, workers, tokens):
        context = mp.get_context("spawn")
        self.count = tokens // BLOCK
        self.documents = tokens // 32
        self.queues = [context.Queue(maxsize=6) for _ in range(workers)]
        for worker, queue in enumerate(self.queues):
            arguments = (str(tokenizer_file), f"train {seed} {worker}", queue)
            context.Process(target=_work, args=arguments, daemon=True).start()

    def __iter__(self):
        turn = 0
        while True:
            parts = []
            for _ in range(self.count):
                parts.append(self.queues[turn % len(self.queues)].get())
                turn += 1
            yield join(parts, self.documents)
