#!/usr/bin/env python3
"""Fails unless what documents name is there.

Tests: a table of SECURITY.md or docs/containment.md has the column `tests` or `test`, in which names stand in backquotes:
`Suite.Test` is a unit test, `test_x` a Python one, `fuzz_x` a fuzz target, `x.py` or `x.sh` a program of this repository.
Each line has at least one, and begins with a number; its first ones are its page's list (PAGES).

In every document: files in backquotes, whole or as they end (`exec/settings.h`; `*` stands for some letters), targets of
links and their headings, tests of suites that are there, `make` targets, and options (`--x`), which some source must have as a word. Standard
library only."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = {
    "SECURITY.md": [f"S{i}" for i in range(1, 19)],
    "docs/containment.md": [*(f"A{i}" for i in range(1, 10)), "B", *(f"C{i}" for i in range(1, 7)), *(f"D{i}" for i in range(1, 7)), "E"],
}

FILE = re.compile(r"(?<![\w/.{<$~*-])[\w][\w*./-]*\.(?:h|cpp|cu|cuh|py|sh|cmake|md)\b(?![\w*{/(=])")
# What a reader puts a name into, or writes.
PLACEHOLDERS = {"src/rudder/steer/features/format_NAME.cpp", "tests/fuzz/x_fuzz.cpp", "mood.md"}


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


def endings_of(files):
    """Each file, whole and without the folders in front of it."""
    parts = (file.split("/") for file in files)
    return {"/".join(path[at:]) for path in parts for at in range(len(path))}


def is_file(name, endings):
    if "*" not in name:
        return name in endings
    pattern = re.compile(re.escape(name).replace(r"\*", "[^/]*"))
    return any(pattern.fullmatch(ending) for ending in endings)


def anchors_of(page):
    """What links to a part of the page end with, for each of its headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def document_errors(name, page, endings, names, words, targets, anchors):
    """What the document names that is not there. `words`: of the sources; `targets`: of the Makefile; `anchors`: of each document."""
    folder = pathlib.PurePosixPath(name).parent
    suites = {test.split(".")[0] for test in names if "." in test}
    for line, text in enumerate(page.split("\n"), 1):
        missing = []
        for link, part in re.findall(r"\]\(([^)#\s:]*)#?([^)\s:]*)\)", text):
            target = pathlib.PurePosixPath(os.path.normpath(folder / link)).as_posix() if link else name
            if target not in endings and not any(ending.startswith(target + "/") for ending in endings):
                missing.append(link)
            elif part and part not in anchors.get(target, {part}):
                missing.append(f"{link}#{part}")
        for code in re.findall(r"`([^`]+)`", text):
            missing += [file for file in FILE.findall(code) if file not in PLACEHOLDERS and not is_file(file, endings)]
            missing += [test for test in re.findall(r"\b[A-Z]\w+\.[A-Z]\w+\b", code) if test.split(".")[0] in suites and test not in names]
            missing += [f"make {target}" for target in re.findall(r"^make ([a-z][\w-]*)", code) if target not in targets]
            missing += [f"--{option}" for option in re.findall(r"(?<![\w-])--([a-z][\w-]+)", code) if not has_option(option, words)]
        yield from (f"{name}:{line}: there is no {each}" for each in missing)


def has_option(option, words):
    plain = option.removeprefix("no-")
    return not words.isdisjoint((option, plain, plain.replace("-", "_")))


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
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    files = [file for file in listed if (ROOT / file).is_file()]
    texts = "\n".join((ROOT / file).read_text() for file in files if re.search(r"\.(cpp|cu|py)$", file))
    others = "\n".join((ROOT / file).read_text() for file in files if re.search(r"\.(h|cuh|sh|cmake)$", file))
    errors = [error for name, numbers in PAGES.items() for error in errors_of(name, (ROOT / name).read_text(), numbers, texts, files)]
    endings, names = endings_of(files), names_in(texts)
    words = set(re.findall(r"[a-zA-Z]\w*(?:-\w+)*", texts + others))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    documents = {file: (ROOT / file).read_text() for file in files if file.endswith(".md")}
    anchors = {file: anchors_of(page) for file, page in documents.items()}
    for file, page in documents.items():
        errors += document_errors(file, page, endings, names, words, targets, anchors)
    print("\n".join(errors) or "all that documents name is there")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
