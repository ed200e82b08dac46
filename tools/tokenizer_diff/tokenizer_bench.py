#!/usr/bin/env python3
"""Encode speed of our tokenizer and of the `tokenizers` package, one thread each, on the same texts:
this repository's documents and sources, and made-up text in many scripts, in pieces of about 2 KB.
The two take turns and the best pass of each counts. Also our streaming decode, in ns a token.

  tokenizer_bench.py --tool build/release/src/rudder/text/tokenizer_tool [FILE ...]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
import make_tokenizers  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

ROOT = Path(__file__).parents[2]


def texts():
    sources = [p.read_text(encoding="utf-8") for pattern in ("*.md", "src/rudder/*/*.cpp", "tools/*.py")
               for p in sorted(ROOT.glob(pattern))]
    out, piece = [], ""
    for line in "\n".join([*sources, *make_tokenizers.corpus(3000, seed=23)]).splitlines(keepends=True):
        piece += line
        if len(piece) > 2000:
            out.append(piece)
            piece = ""
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    paths = args.files or [*make_tokenizers.make(Path(tempfile.mkdtemp(prefix="tokenizer_bench_"))),
                           ROOT / "models/demo/tokenizer.json"]
    pieces = texts()
    size = sum(len(t.encode()) for t in pieces)
    lines = "".join(json.dumps(t, ensure_ascii=False) + "\n" for t in pieces)
    print(f"{size / 1e6:.1f} MB in {len(pieces)} texts; MB/s, best of {args.rounds} rounds")
    worst = 1e9
    for path in paths:
        reference = Tokenizer.from_file(str(path))
        reference.no_truncation()
        theirs, ours, stream = 1e9, 1e9, 1e9
        for _ in range(args.rounds):
            start = time.perf_counter()
            reference.encode_batch_fast(pieces, add_special_tokens=False)
            theirs = min(theirs, time.perf_counter() - start)
            done = subprocess.run([args.tool, "bench", str(path), "0.5"], input=lines, check=True,
                                  capture_output=True, text=True, encoding="utf-8")
            result = json.loads(done.stdout)
            ours = min(ours, result["encode_s"])
            stream = min(stream, result["stream_s"] / result["tokens"])
        worst = min(worst, theirs / ours)
        print(f"{path.parent.name + '/' + path.stem:36} ours {size / ours / 1e6:7.1f}  theirs "
              f"{size / theirs / 1e6:6.1f}  ratio {theirs / ours:5.1f}  stream {stream * 1e9:4.0f} ns/token",
              flush=True)
    print(f"worst ratio {worst:.2f}")
    return 0 if worst >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
