#!/usr/bin/env python3
"""What an addition touches, read off the tree.

    make recipe WHAT="a sampling option"   the files that the example of tools/additions.csv is in
    make recipe WHAT=min_p                 the same of that example, or of any other word or expression

prints a table: each file, how many of its lines have it, and what the file says that it is.
Without WHAT: the additions, their examples and how many files each touches, and how many of these are
neither tests nor documents; fails where those are more than `most` says, or all of them more than `files` says
(where it does), which only fall (part of `make check`), or where an example is nowhere. Sources that match `users` use what was added, and
do not count. Records of what was measured or decided do not count. Standard
library only."""

import collections
import csv
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = "tools/additions.csv"
# Records, figures, inputs of fuzz targets, and the table itself.
RECORDS = ("bench/ledger/", "docs/adr/", "docs/performance.md", "docs/figures/", "docs/containment.md", "tests/fuzz/corpus/",
           "CONTRIBUTING.md", "Makefile", "tools/additions.csv", "tools/structure_limits.csv", "tools/tidy_known.csv", "tools/test_gates.py", "tools/recipe.py")
COMMENT = re.compile(r'\A(?:#!.*\n)?(?:/[/*]|# |"""|<!--)\s*(.+?)(?:\.\s|\.$|\n\n|"""|\n(?!//|#))', re.S)

Addition = collections.namedtuple("Addition", "name example pattern most files users")


def read_additions(text):
    return [Addition(row["addition"], row["example"], re.compile(row["found by"]), int(row["most"]), int(row["files"] or 0),
                     re.compile(row["users"]) if row["users"] else None)
            for row in csv.DictReader(text.splitlines())]


def read_tracked():
    """Path -> text; "" of what is no text, whose name counts."""
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    texts = {}
    for name in filter(None, out.decode().split("\0")):
        path = ROOT / name
        if path.is_file():
            content = path.read_bytes()
            texts[name] = "" if b"\0" in content else content.decode(errors="replace")
    return texts


def touched(pattern, texts):
    """Path -> how many lines have it, of all files that do; 0 where only the name has."""
    found = {}
    for path, text in texts.items():
        if path.startswith(RECORDS):
            continue
        lines = sum(1 for line in text.splitlines() if pattern.search(line))
        if lines or pattern.search(path):
            found[path] = lines
    return found


def says(path, texts):
    """The first sentence of a file's opening comment, or of its header's."""
    found = COMMENT.match(texts[path]) or COMMENT.match(texts.get(re.sub(r"\.(cpp|cu)$", ".h", path), ""))
    sentence = re.sub(r"\s*\n(?://|#)?\s*", " ", found[1]).strip() if found else ""
    return sentence if len(sentence) <= 90 else sentence[:87] + "..."


def place(path):
    """Sources first, then tests, then documents."""
    is_document = path.endswith(".md")
    is_test = path.startswith(("tests/", "tools/", "clients/python/tests/")) or "_test." in path
    return (is_document, is_test, path)


def listed(pattern, texts):
    rows = touched(pattern, texts)
    lines = [f"{'file':<60} {'lines':>5}  what it is"]
    for path in sorted(rows, key=place):
        lines.append(f"{path:<60} {rows[path]:>5}  {says(path, texts)}".rstrip())
    return lines + [f"{len(rows)} files"]


def limits(additions, texts):
    """The table of all additions, and what is wrong."""
    lines, errors = [f"{'addition':<20} {'example':<16} {'files':>5} {'sources':>7} {'most':>5}"], []
    for one in additions:
        rows = touched(one.pattern, texts)
        sources = sum(1 for path in rows if not any(place(path)[:2]) and not (one.users and one.users.search(path)))
        lines.append(f"{one.name:<20} {one.example:<16} {len(rows):>5} {sources:>7} {one.most:>5}")
        if not rows:
            errors.append(f"{TABLE}: {one.example}, the example of {one.name}, is nowhere")
        if sources > one.most:
            errors.append(f"{one.name} touches {sources} sources, the limit is {one.most}: make recipe WHAT=\"{one.name}\"")
        if one.files and len(rows) > one.files:
            errors.append(f"{one.name} touches {len(rows)} files, the limit is {one.files}: make recipe WHAT=\"{one.name}\"")
    return lines, errors


def main(arguments):
    texts = read_tracked()
    additions = read_additions(texts.get(TABLE) or (ROOT / TABLE).read_text())
    if arguments:
        what = " ".join(arguments)
        known = [one for one in additions if what in (one.name, one.example)]
        print("\n".join(listed(known[0].pattern if known else re.compile(what), texts)))
        return 0
    lines, errors = limits(additions, texts)
    print("\n".join(lines + errors))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main([word for word in sys.argv[1:] if word]))
