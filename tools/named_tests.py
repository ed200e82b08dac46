#!/usr/bin/env python3
"""Fails unless every test that a table of SECURITY.md or docs/containment.md names is there.

A table has the column `tests` or `test`, in which names stand in backquotes: `Suite.Test` is a unit test, `test_x` a Python
one, `fuzz_x` a fuzz target, `x.py` or `x.sh` a program of this repository. Each line has at least one, and begins with a
number; its first ones are its page's list (PAGES). Standard library only."""

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


def names_in(texts):
    """The tests that texts of code define, as pages name them."""
    suites = re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", texts)
    return {f"{suite}.{test}" for suite, test in suites} | set(re.findall(r"\b(?:def|void) (\w+)\(", texts))


def is_there(name, names, files):
    if re.search(r"\.(py|sh)$", name):
        return any(file == name or file.endswith("/" + name) for file in files)
    return name in names


def errors_of(name, page, numbers, texts, files):
    found = list(rows(page))
    seen = list(dict.fromkeys(number for number, _ in found))
    if seen[:len(numbers)] != numbers:  # further tables have numbers of their own
        yield f"{name}: its lines are {seen[:len(numbers)]}, not {numbers}"
    names = names_in(texts)
    for number, tests in found:
        if not tests:
            yield f"{name}: {number} names no test"
        for test in tests:
            if not is_there(test, names, files):
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
