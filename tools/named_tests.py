#!/usr/bin/env python3
"""Fails unless every test that a table of SECURITY.md or docs/containment.md names is there.

A table has the column `tests` or `test`, in which names stand in backquotes: `Suite.Test` is a unit test, `test_x` a Python
one, `fuzz_x` a fuzz target, `x.py` or `x.sh` a program of this repository. Each line has at least one, and begins with a
number of its page's list (PAGES), each of which is there once. Standard library only."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = {
    "SECURITY.md": [f"S{i}" for i in range(1, 19)],
    "docs/containment.md": [*(f"A{i}" for i in range(1, 10)), "B", *(f"C{i}" for i in range(1, 7)), *(f"D{i}" for i in range(1, 7)), "E"],
}


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(page):
    """(number, names of tests) of each line of the tables that have a column of tests."""
    column = None
    for line in page.splitlines():
        if not line.startswith("|"):
            column = None
            continue
        parts = cells(line)
        if column is None:
            column = next((parts.index(name) for name in ("tests", "test") if name in parts), -1)
        elif column >= 0 and not parts[0].startswith("-"):
            yield parts[0], re.findall(r"`([\w./]+)`", parts[column]) if column < len(parts) else []


def is_there(name, texts, files):
    if re.search(r"\.(py|sh)$", name):
        return any(file == name or file.endswith("/" + name) for file in files)
    suite, _, test = name.partition(".")
    pattern = rf"TEST(_F|_P)?\(\s*{suite},\s*{test}\)" if test else rf"\b(def {suite}\(|void {suite}\()"
    return re.search(pattern, texts) is not None


def errors_of(name, page, numbers, texts, files):
    found = list(rows(page))
    seen = list(dict.fromkeys(number for number, _ in found))
    if seen != numbers:
        yield f"{name}: its lines are {seen}, not {numbers}"
    for number, tests in found:
        if not tests:
            yield f"{name}: {number} names no test"
        for test in tests:
            if not is_there(test, texts, files):
                yield f"{name}: {number}: there is no test {test}"


def main():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    code = [file for file in files if re.search(r"\.(cpp|cu|py)$", file) and (ROOT / file).is_file()]
    texts = "\n".join((ROOT / file).read_text() for file in code)
    errors = [error for name, numbers in PAGES.items() for error in errors_of(name, (ROOT / name).read_text(), numbers, texts, files)]
    print("\n".join(errors) or "every test that is named is there")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
