#!/usr/bin/env python3
"""Draws decoders and normalisers one behind the other, in any order that the `tokenizers` package takes, and compares: what
lists of ids decode to, at once and token by token, and what texts encode to. Exits 1 with the first mismatches.

  chains.py --tool build/release/src/rudder/text/tokenizer_tool [--chains N] [--seed N] [--work DIR]
"""
import argparse
import json
import os
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["RUST_BACKTRACE"] = "0"  # the package panics on some chains
sys.path.insert(0, str(Path(__file__).parent))
from random_text import TextSource  # noqa: E402
from tokenizer_diff import Comparison, check_decodings, run_tool  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

# Of every exporter's kind: byte fallback, GPT-2's alphabet, marks of words, suffixes, CTC's blanks.
PIECES = ["▁", "▁the", "the", "▁▁", "a▁b", "Ġ", "Ġworld", "wor", "ld", "##ing", "ing</w>", "</w>", "é", "Ã©", "Ã", "©", "ł",
          "Ċ", "中", "😀", " ", "  ", " .", ".", " do not", " n't", "x", "xx", "<pad>", "|", "'", " '", "0x41>", "<0x", "b"]
BYTES = [f"<0x{byte:02X}>" for byte in (0x41, 0x20, 0x0A, 0xC3, 0xA9, 0xE4, 0xB8, 0xAD, 0xF0, 0xFF, 0xBF)]
ALPHABET = [p for p in PIECES if all(ord(c) > 0x20 and c not in "中😀▁" for c in p)]


def tokenizer_file(vocab, decoder=None, normalizer=None):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer,
            "pre_tokenizer": None, "post_processor": None, "decoder": decoder,
            "model": {"type": "BPE", "dropout": None, "unk_token": vocab[0], "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": {token: i for i, token in enumerate(vocab)}, "merges": []}}


def nested(rng, kind, items):
    """A sequence of `items`, of which some stand in a sequence of their own."""
    if len(items) > 2 and rng.random() < 0.3:
        cut = rng.randrange(1, len(items))
        items = [{"type": "Sequence", kind: items[:cut]}, *items[cut:]]
    return items[0] if len(items) == 1 and rng.random() < 0.5 else {"type": "Sequence", kind: items}


def draw_decoder(rng):
    word = rng.choice(["▁", "Ġ", "x", "the", "<0x", " ", "é"])
    return rng.choice([
        lambda: {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        lambda: {"type": "ByteFallback"},
        lambda: {"type": "Fuse"},
        lambda: {"type": "Replace", "pattern": {"String": word}, "content": rng.choice([" ", "", "x", "▁▁", "é"])},
        lambda: {"type": "Replace", "pattern": {"Regex": rng.choice(["[xé]+", "▁+", "(?<=t)h", r"\s"])}, "content": "_"},
        lambda: {"type": "Strip", "content": rng.choice([" ", "x", "▁"]), "start": rng.randrange(3), "stop": rng.randrange(2)},
        lambda: {"type": "Metaspace", "replacement": rng.choice(["▁", "x"]),
                 "prepend_scheme": rng.choice(["always", "never", "first"]), "split": rng.random() < 0.5},
        lambda: {"type": "WordPiece", "prefix": "##", "cleanup": rng.random() < 0.5},
        lambda: {"type": "BPEDecoder", "suffix": "</w>"},
        lambda: {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": rng.random() < 0.5},
    ])()


def draw_normalizer(rng):
    return rng.choice([
        lambda: {"type": rng.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "ByteLevel"])},
        lambda: {"type": "Strip", "strip_left": rng.random() < 0.5, "strip_right": rng.random() < 0.5},
        lambda: {"type": "Prepend", "prepend": rng.choice(["▁", " ", "é"])},
        lambda: {"type": "Replace", "pattern": {"String": rng.choice([" ", "a", "e\u0301"])}, "content": rng.choice(["▁", "", "É "])},
        lambda: {"type": "Replace", "pattern": {"Regex": rng.choice([r"\s+", "[A-Z]", r"\p{M}"])}, "content": rng.choice([" ", ""])},
    ])()


def check_chain(tool, work, index, seed, texts):
    """One drawn file, as (its text, Comparison)."""
    rng = random.Random(seed * 1_000_003 + index)
    path = work / f"{index}.json"
    is_decoder = index % 2 == 0
    count = rng.randint(1, 5)
    if is_decoder:
        vocab = rng.choice([PIECES + BYTES, PIECES, ALPHABET, ALPHABET + BYTES])
        file = tokenizer_file(vocab, decoder=nested(rng, "decoders", [draw_decoder(rng) for _ in range(count)]))
    else:
        chars = sorted({c for text in texts for c in text} | set("▁éÉ_ ") | {chr(c) for c in range(0x21, 0x180)})
        file = tokenizer_file(["<unk>", *chars], normalizer=nested(rng, "normalizers", [draw_normalizer(rng) for _ in range(count)]))
    path.write_text(json.dumps(file, ensure_ascii=False))
    reference = Tokenizer.from_file(str(path))
    result = Comparison(json.dumps(file["decoder"] or file["normalizer"], ensure_ascii=False))
    if is_decoder:
        lists = []
        wholes = []
        for _ in range(40):
            ids = [rng.randrange(len(vocab)) for _ in range(rng.randint(1, 9))]
            try:
                wholes.append(reference.decode(ids, skip_special_tokens=False))
                lists.append(ids)
            except BaseException:  # the package panics on some (a strip of an empty token)
                continue
        for ids, whole, ours in zip(lists, wholes, run_tool(tool, "decode", path, lists)):
            check_decodings(result, ids, ours, whole, whole)
    else:
        for text, ours in zip(texts, run_tool(tool, "encode", path, texts)):
            result.same("encode", text, ours["ids"], reference.encode(text).ids)
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--chains", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path)
    args = parser.parse_args()
    work = args.work or Path(tempfile.mkdtemp(prefix="chains_"))
    work.mkdir(parents=True, exist_ok=True)
    source = TextSource(args.seed)
    texts = [source.text() for _ in range(25)] + ["", " ", "e\u0301 É a", "  A a ", "▁ ▁"]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda i: check_chain(args.tool, work, i, args.seed, texts), range(args.chains)))
    checks = sum(result.checks for result in results)
    failed = sum(result.mismatches > 0 for result in results)
    print(f"{args.chains} chains, {checks} checks, {failed} chains with mismatches")
    return 1 if failed or checks < args.chains * 10 else 0


if __name__ == "__main__":
    sys.exit(main())
