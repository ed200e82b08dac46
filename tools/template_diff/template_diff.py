#!/usr/bin/env python3
"""Compares our chat templates with Python's jinja2 in the environment that Hugging Face gives them:
every template style over every conversation, small snippets over one context, and random templates.
Both must give the same text, or both must fail. What we alone refuse must be refused by its name,
as unsupported or as too large; it is counted.

  template_diff.py --tool build/release/src/rudder/text/tokenizer_tool [--templates 20000] [--seed 1]
"""
import argparse
import json
import multiprocessing
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cases import CONTEXT, CONVERSATIONS, SNIPPETS  # noqa: E402
from generator import CONTEXT as RANDOM_CONTEXT, Generator  # noqa: E402, I001
from reference import environment, render  # noqa: E402
from templates import TEMPLATES  # noqa: E402

# In the manner of published model families, written for this comparison: what they do (tools, tool
# results, thinking, documents, dates, recursive schemas), with the parts of the language they use.
FAMILIES = {path.stem: path.read_text(encoding="utf-8")
            for path in sorted((Path(__file__).parent / "families").glob("*.jinja"))}

_ENV = environment()
RANDOM_CONTEXTS = [RANDOM_CONTEXT]
NAMED_REFUSALS = ("unsupported", "too_large")


def theirs(case):
    warnings.simplefilter("ignore")
    return render(_ENV, *case)


def ours(tool, cases):
    lines, last = [], None
    for source, contexts in cases:
        job = {"template": source} if contexts is last else {"template": source, "contexts": contexts}
        lines.append(json.dumps(job) + "\n")
        last = contexts
    done = subprocess.run([tool, "render"], input="".join(lines).encode(), capture_output=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"the tool failed: {done.returncode} {done.stderr.decode()[-2000:]}")
    return [json.loads(line) for line in done.stdout.split(b"\n") if line]


def verdict(mine, reference):
    if "error" in reference:
        return "refused by both" if "error" in mine else "mismatch"
    if "error" in mine:
        return "refused by name" if mine["code"] in NAMED_REFUSALS else "mismatch"
    return "same" if mine["text"] == reference["text"] else "mismatch"


def compare(tool, cases, jobs, show):
    """Counts of the verdicts; prints the first mismatches, and why what is refused by name is."""
    with multiprocessing.Pool(jobs) as pool:
        reference = pool.map_async(theirs, cases, chunksize=200)
        mine = ours(tool, cases)
        reference = reference.get()
    counts, reasons = Counter(), Counter()
    for (source, contexts), left, right in zip(cases, mine, reference, strict=True):
        for context, a, b in zip(contexts, left, right, strict=True):
            kind = verdict(a, b)
            counts[kind] += 1
            if kind == "refused by name":
                reasons[a["error"].split(" is not in the")[0].split("(")[0][-60:]] += 1
            if kind == "mismatch" and counts[kind] <= show:
                told = "" if context is RANDOM_CONTEXT else f"\n  on     {json.dumps(context)[:300]}"
                print(f"--- {source}{told}\n  ours   {a!r}\n  theirs {b!r}")
    return counts, reasons


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    parser.add_argument("--templates", type=int, default=0, help="random ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", type=int, default=20, help="mismatches to print")
    args = parser.parse_args()
    start = time.monotonic()
    styles = [(source, CONVERSATIONS) for source in (TEMPLATES | FAMILIES).values()]
    styles += [(snippet, [CONTEXT]) for snippet in SNIPPETS]
    random = Generator(args.seed)
    sets = {
        f"{len(TEMPLATES | FAMILIES)} styles over {len(CONVERSATIONS)} conversations, "
        f"{len(SNIPPETS)} snippets": styles,
        f"{args.templates} random templates (seed {args.seed})":
            [(random.template(), RANDOM_CONTEXTS) for _ in range(args.templates)],
    }
    failed = 0
    for name, cases in sets.items():
        if not cases:
            continue
        counts, reasons = compare(args.tool, cases, args.jobs, args.show)
        failed += counts["mismatch"]
        print(f"{name}: {counts['same']} same, {counts['refused by both']} refused by both, "
              f"{counts['refused by name']} refused by us by name, {counts['mismatch']} mismatches")
        for reason, count in reasons.most_common(12):
            print(f"    {count:6} {reason}")
    print(f"{time.monotonic() - start:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
