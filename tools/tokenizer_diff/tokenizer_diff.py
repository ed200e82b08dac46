#!/usr/bin/env python3
"""Compares our tokenizer with the `tokenizers` package: encode, decode and streaming decode of random
strings, every code point, and random ids, over tokenizers of all kinds. Prints one line a tokenizer;
exits 1 on the first mismatch of each kind, with the text that shows it.

  tokenizer_diff.py --tool build/release/src/rudder/text/tokenizer_tool [--strings N] [FILE ...]

Without FILEs it makes its own tokenizers (make_tokenizers.py) in --work; --demo adds the demo model's.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
sys.path.insert(0, str(Path(__file__).parent))
import make_tokenizers  # noqa: E402
from random_text import TextSource  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402


def run_tool(tool, mode, path, values):
    """One JSON value a line in, one JSON object a line out."""
    process = subprocess.Popen([tool, mode, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, encoding="utf-8")
    lines = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    feeder = threading.Thread(target=lambda: (process.stdin.write(lines), process.stdin.close()))
    feeder.start()
    out = [json.loads(line) for line in process.stdout]
    feeder.join()
    if process.wait() != 0 or len(out) != len(values):
        sys.exit(f"{mode} {path}: the tool failed after {len(out)} of {len(values)} lines")
    return out


def every_code_point():
    """Each code point of the planes that have assigned characters, alone and beside others."""
    chars = [chr(c) for c in (*range(0xD800), *range(0xE000, 0x33500), *range(0xE0000, 0xE0200))]
    return ["a" + "a".join(chars[i:i + 64]) + " " + "".join(chars[i:i + 64])
            for i in range(0, len(chars), 64)]


class Comparison:
    def __init__(self, name):
        self.name = name
        self.checks = 0
        self.mismatches = 0

    def same(self, what, subject, ours, theirs):
        self.checks += 1
        if ours == theirs:
            return
        self.mismatches += 1
        if self.mismatches <= 3:
            print(f"{self.name}: {what} differs on {subject!r}\n  ours   {ours!r}\n  theirs {theirs!r}")


def compare(tool, path, strings, seed):
    reference = Tokenizer.from_file(str(path))
    reference.no_truncation()
    reference.no_padding()
    result = Comparison(path.stem if path.stem != "tokenizer" else path.parent.name)
    source = TextSource(seed)
    texts = [source.text() for _ in range(strings)] + every_code_point()
    reference.encode_special_tokens = False
    ids = [e.ids for e in reference.encode_batch(texts)]
    reference.encode_special_tokens = True
    plain = [e.ids for e in reference.encode_batch(texts, add_special_tokens=False)]
    reference.encode_special_tokens = False
    whole = reference.decode_batch(ids, skip_special_tokens=False)
    skipped = reference.decode_batch(ids, skip_special_tokens=True)
    halves = reference.decode_batch([i[:len(i) // 2] for i in ids], skip_special_tokens=False)
    for i, ours in enumerate(run_tool(tool, "encode", path, texts)):
        result.same("encode", texts[i], ours["ids"], ids[i])
        result.same("encode without specials", texts[i], ours["plain"], plain[i])
        if ours["ids"] == ids[i]:
            check_decodings(result, ids[i], ours, whole[i], skipped[i])
            # Else the prompt ends inside a character, which may itself be the mark of a broken one.
            if whole[i].startswith(halves[i]) and not halves[i].endswith("\ufffd"):
                result.same("answer", ids[i], halves[i] + ours["answer"], whole[i])
    rng = source.rng
    limit = reference.get_vocab_size() + 20  # some ids that no token has
    lists = [[rng.randrange(limit) for _ in range(rng.randint(0, 20))] for _ in range(strings // 4)]
    whole = reference.decode_batch(lists, skip_special_tokens=False)
    skipped = reference.decode_batch(lists, skip_special_tokens=True)
    for i, ours in enumerate(run_tool(tool, "decode", path, lists)):
        check_decodings(result, lists[i], ours, whole[i], skipped[i])
    return len(texts), result


def check_decodings(result, ids, ours, whole, skipped):
    result.same("decode", ids, ours["text"], whole)
    result.same("decode without specials", ids, ours["skip"], skipped)
    result.same("stream", ids, ours["stream_text"], whole)
    result.same("stream without specials", ids, ours["stream_skip"], skipped)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--strings", type=int, default=5000, help="random strings a tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help="keeps the made tokenizers here")
    parser.add_argument("--demo", action="store_true", help="the demo model's tokenizer as well")
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    work = args.work or Path(tempfile.mkdtemp(prefix="tokenizer_diff_"))
    failed = total = 0
    paths = args.files or make_tokenizers.make(work)
    if args.demo:
        paths.append(Path(__file__).parents[2] / "models/demo/tokenizer.json")
    for path in paths:
        start = time.time()
        strings, result = compare(args.tool, path, args.strings, args.seed)
        total += strings
        failed += result.mismatches
        print(f"{result.name:14} {strings} strings, {result.checks} checks, "
              f"{result.mismatches} mismatches, {time.time() - start:.1f} s", flush=True)
    print(f"total: {total} strings, {failed} mismatches")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
