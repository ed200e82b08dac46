#!/usr/bin/env python3
"""Writes the held-out suites: one JSON case a line, {"id", "task", "messages", "expect"}."""

import argparse
import json
import random
from pathlib import Path

from chat_format import messages_of, render
from tasks import addition, chat, json_edit, recall, story
from tokenizers import Tokenizer

BEFORE = 150
LONGEST_TOKEN = 8
SIZES = {"addition": 500, "recall": 500, "json": 500, "story": 200, "chat": 200, "long": 40}


def case(task, index, system, exchanges):
    messages = messages_of(system, exchanges)[:-1]
    return {"id": f"{task}-{index:03}", "task": task, "messages": messages, "expect": exchanges[-1].expect}


def single(make):
    """A maker of cases of one exchange, each with another user's turn."""
    def cases(rng, task, count, _tokenizer):
        seen = set()
        while len(seen) < count:
            exchange = make(rng, held_out=True)
            if exchange.user not in seen:
                seen.add(exchange.user)
                yield case(task, len(seen) - 1, None, [exchange])
    return cases


def tokens_back(tokenizer, prompt, value):
    """How many tokens before the end of the prompt the value stands."""
    return len(tokenizer.encode(prompt[prompt.index(value):]).ids)


def recall_cases(nearest, farthest):
    """A maker of cases whose values lie between `nearest` and `farthest` tokens back, spread evenly, with up to
    BEFORE tokens before them."""
    def cases(rng, task, count, tokenizer):
        index = 0
        while index < count:
            low = nearest + (farthest - nearest) * index // count
            exchange = recall.conversation(rng, True, count=rng.randint(4 + low // 12, 30 + low // 6), questions=1)[0]
            found = case(task, index, None, [exchange])
            name, value = exchange.expect["name"], exchange.expect["value"]
            rows = [line for line in exchange.user.split("\n") if name in line and value in line]
            if len(rows) != 1 or exchange.user.count("\n" + rows[0]) != 1 or exchange.user.count(name) != 2:
                continue
            if exchange.user.index(rows[0]) > LONGEST_TOKEN * BEFORE:
                continue
            prompt = render(found["messages"], True)
            back = tokens_back(tokenizer, prompt, rows[0])
            if low < back <= min(farthest, low + 60) and len(tokenizer.encode(prompt).ids) <= back + BEFORE:
                yield {**found, "tokens_back": back}
                index += 1
    return cases


def chat_cases(rng, task, count, _tokenizer):
    for index in range(count):
        yield case(task, index, *chat.conversation(rng, held_out=True))


MAKERS = {
    "addition": single(addition.exchange), "recall": recall_cases(0, 900), "json": single(json_edit.exchange),
    "story": single(story.exchange), "chat": chat_cases, "long": recall_cases(900, 1800),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder with tokenizer.json")
    parser.add_argument("--out", type=Path, help="folder for the suites, by default eval/ of the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--times", type=int, default=1, help="makes every suite this many times as large")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    out = args.out or args.model / "eval"
    out.mkdir(parents=True, exist_ok=True)
    for task, make in MAKERS.items():
        rng = random.Random(f"suite {task} {args.seed}")
        with open(out / f"{task}.jsonl", "w", encoding="utf-8") as file:
            for item in make(rng, task, args.times * SIZES[task], tokenizer):
                file.write(json.dumps(item, ensure_ascii=False) + "\n")
        print(f"suite {task}: {args.times * SIZES[task]} cases")


if __name__ == "__main__":
    main()
