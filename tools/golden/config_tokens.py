#!/usr/bin/env python3
"""Writes what Hugging Face transformers makes of tokens that tokenizer_config.json has (transformers is needed).

    config_tokens.py tests/golden/config_tokens.json
    config_tokens.py --side-files tests/golden/side_tokens.json

With --side-files most configs have no `added_tokens_decoder`, and special_tokens_map.json and added_tokens.json lie beside them.
Each case is a drawn pair of files, and texts with their ids and what is decoded from these, with special tokens and without. In
the cases without `ids` the config gives a token another id than transformers does: its key in `added_tokens_decoder` is wrong.
"""

import argparse
import json
import pathlib
import random
import tempfile

from transformers import AutoTokenizer

MARKS = ["<s>", "</s>", "<pad>", "<x>", "<y>", "<Z>", "[a b]"]
LETTERS = "abcdsxyzpSZ<>/[] "
NAMES = ["bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "image_token", "boi_token"]


def flags(rng, special):
    drawn = {"single_word": rng.random() < 0.2, "lstrip": rng.random() < 0.3, "rstrip": rng.random() < 0.3}
    return drawn | {"normalized": rng.random() < 0.4, "special": special}


def draw(rng):
    vocab = {letter: i for i, letter in enumerate(LETTERS)}
    for mark in rng.sample(MARKS, 3):
        vocab[mark] = len(vocab)
    added, next_id = [], len(vocab)
    for mark in rng.sample(MARKS, rng.randrange(4)):
        added.append({"id": vocab.get(mark, next_id), "content": mark, **flags(rng, rng.random() < 0.6)})
        next_id += mark not in vocab
    ids = vocab | {token["content"]: token["id"] for token in added}
    config = {}
    if rng.random() < 0.7:
        decoder = {}
        for mark in rng.sample(MARKS, rng.randrange(5)):
            token = {"content": mark, **flags(rng, rng.random() < 0.6)}
            if rng.random() < 0.2:
                del token["normalized"]
            if mark not in ids:
                ids[mark], next_id = next_id, next_id + 1
            key = ids[mark] + 1 if rng.random() < 0.05 else ids[mark]
            decoder[str(key)] = token
        config["added_tokens_decoder"] = decoder
    for name in rng.sample(NAMES, rng.randrange(4)):
        mark = rng.choice(MARKS)
        config[name] = rng.choice([mark, mark, None, {"__type": "AddedToken", "content": mark, **flags(rng, rng.random() < 0.5)}])
    if rng.random() < 0.5:
        more = rng.sample(MARKS, rng.randrange(3))
        listed = [m if rng.random() < 0.7 else {"__type": "AddedToken", "content": m, **flags(rng, rng.random() < 0.5)} for m in more]
        named = {f"own{i}_token": mark for i, mark in enumerate(more)}
        config |= rng.choice([{"additional_special_tokens": listed}, {"extra_special_tokens": listed}, {"extra_special_tokens": named}])
        if rng.random() < 0.1:
            config["additional_special_tokens"] = rng.sample(MARKS, 1)
    normalizer = {"type": "Lowercase"} if rng.random() < 0.4 else None
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer}
    tokenizer |= {"pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"}}
    tokenizer["model"] = {"type": "BPE", "vocab": vocab, "merges": []}
    return tokenizer, config


def draw_text(rng):
    parts = [rng.choice([rng.choice(MARKS), rng.choice(LETTERS), " ", "<S>", "<z>"]) for _ in range(rng.randrange(1, 9))]
    return "".join(parts)


def draw_side_files(rng, tokenizer, config):
    """Names in special_tokens_map.json, and texts with their ids in added_tokens.json; either may contradict the config."""
    if rng.random() < 0.85:
        config.pop("added_tokens_decoder", None)
    if "added_tokens_decoder" in config:
        tokenizer["normalizer"] = None  # tokenizers 0.23 decodes a token that becomes `normalized: false` as it was before
    ids = tokenizer["model"]["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    files = {}
    if rng.random() < 0.8:
        names = {}
        for name in rng.sample(NAMES, rng.randrange(1, 5)):
            mark = rng.choice(MARKS)
            plain = {key: value for key, value in flags(rng, False).items() if key != "special"}
            names[name] = rng.choice([mark, mark, mark, None, {"content": mark, **plain}, {"content": mark}])
        if rng.random() < 0.4:
            listed = rng.sample(MARKS, rng.randrange(3))
            names |= rng.choice([{"additional_special_tokens": listed}, {"extra_special_tokens": listed},
                                 {"extra_special_tokens": [{"content": mark} for mark in listed]},
                                 {"extra_special_tokens": {f"own{i}_token": mark for i, mark in enumerate(listed)}}])
        files["special_tokens_map.json"] = names
    if rng.random() < 0.6:
        added, next_id = {}, max(ids.values()) + 1
        for mark in rng.sample(MARKS, rng.randrange(5)):
            if mark not in ids:
                ids[mark], next_id = next_id, next_id + 1
            added[mark] = ids[mark] + 1 if rng.random() < 0.05 else ids[mark]
        files["added_tokens.json"] = added
    return files


def answer(tokenizer, config, side_files, rng):
    files = {"tokenizer.json": tokenizer, "tokenizer_config.json": config | {"tokenizer_class": "TokenizersBackend"}, **side_files}
    with tempfile.TemporaryDirectory() as folder:
        for name, value in files.items():
            (pathlib.Path(folder) / name).write_text(json.dumps(value))
        theirs = AutoTokenizer.from_pretrained(folder)
    known = theirs.added_tokens_decoder
    out = {"tokenizer": tokenizer, "config": config, **side_files}
    for key, token in config.get("added_tokens_decoder", {}).items():
        if int(key) not in known or known[int(key)].content != token["content"]:
            return out
    if "added_tokens_decoder" not in config:
        for content, i in side_files.get("added_tokens.json", {}).items():
            if i not in known or known[i].content != content:
                return out
    if side_files:
        out["names"] = theirs.special_tokens_map
    out |= {"ids": {token.content: i for i, token in known.items()}, "bos": theirs.bos_token_id, "eos": theirs.eos_token_id, "texts": []}
    for _ in range(8):
        text = draw_text(rng)
        ids = theirs.encode(text, add_special_tokens=False)
        whole, plain = (theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False) for skip in (False, True))
        out["texts"].append([text, ids, whole, plain])
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--side-files", action="store_true")
    flag = parser.parse_args()
    rng = random.Random(5 if flag.side_files else 4)
    cases = []
    for _ in range(110):
        tokenizer, config = draw(rng)
        side_files = draw_side_files(rng, tokenizer, config) if flag.side_files else {}
        cases.append(answer(tokenizer, config, side_files, rng))
    print(sum("ids" in case for case in cases), "of", len(cases), "have ids")
    flag.out.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
