#!/usr/bin/env python3
"""The training corpus: an endless, reproducible stream of documents in fixed shares of tokens per task.

Run by itself it prints sample documents."""

import argparse
import random

from chat_format import Encoder, messages_of, render
from tasks import addition, chat, json_edit, recall, story

CONTEXT = 2048


def _several(rng, exchange, most):
    return [exchange(rng) for _ in range(rng.randint(1, most))]


# task: (share of the tokens, maker of (system prompt, exchanges))
TASKS = {
    "addition": (0.30, lambda rng: (None, _several(rng, addition.exchange, 8))),
    "recall": (0.25, lambda rng: (None, recall.conversation(rng))),
    "json": (0.12, lambda rng: (None, _several(rng, json_edit.exchange, 3))),
    "story": (0.10, lambda rng: (None, _several(rng, story.exchange, 2))),
    "chat": (0.20, chat.conversation),
    "plain": (0.03, None),
}


def document(task, rng):
    """('text', str) for running text, or ('chat', messages)."""
    if task == "plain":
        return "text", story.plain(rng)
    system, exchanges = TASKS[task][1](rng)
    return "chat", messages_of(system, exchanges)


def documents(rng):
    """Documents with all tasks equally often: what the tokenizer is trained on."""
    while True:
        for task in TASKS:
            kind, content = document(task, rng)
            yield content if kind == "text" else render(content)


def encoded(tokenizer, rng):
    """(ids, mask) of documents that fit the context; the task that lags its share most comes next."""
    encoder = Encoder(tokenizer)
    spent = dict.fromkeys(TASKS, 0.0)
    while True:
        task = min(TASKS, key=lambda name: spent[name] / TASKS[name][0])
        kind, content = document(task, rng)
        ids, mask = encoder.text(content) if kind == "text" else encoder.chat(content)
        if len(ids) <= CONTEXT:
            spent[task] += len(ids)
            yield ids, mask


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=12)
    args = parser.parse_args()
    for _, text in zip(range(args.count), documents(random.Random(args.seed))):
        print(text, end="\n---\n")


if __name__ == "__main__":
    main()
