#!/usr/bin/env python3
"""Fails unless every row of bench/ledger/*.csv can be read by a program and repeated by a person: the
columns are those of HEADER, date and value parse, commit, device, what and command are there. Each file
is named in bench/ledger/README.md and has MOST_ROWS at most, since sweeps do not stay; no other CSV file
lies under bench/. Standard library only."""

import csv
import datetime
import io
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADER = "date device commit what command n prompt output weights kv inside value unit".split()
REQUIRED = ("device", "what", "command")
MOST_ROWS = 500  # of a file
COMMIT = re.compile(r"[0-9a-f]{7,40}( .+)?")


def parses(parse, text):
    try:
        parse(text)
    except ValueError:
        return False
    return True


def row_errors(row):
    """What is wrong with one row, a list of strings as long as HEADER."""
    if len(row) != len(HEADER):
        return [f"{len(row)} columns, not {len(HEADER)}"]
    fields = dict(zip(HEADER, row))
    errors = [f"{name} is empty" for name in REQUIRED if not fields[name].strip()]
    if not COMMIT.fullmatch(fields["commit"]):
        errors.append(f"commit {fields['commit']!r} does not begin with a hash of 7 to 40 digits")
    if not parses(datetime.date.fromisoformat, fields["date"]):
        errors.append(f"date {fields['date']!r} is not YYYY-MM-DD")
    if not parses(float, fields["value"]):
        errors.append(f"value {fields['value']!r} is not a number")
    return errors


def text_errors(name, text):
    """What is wrong with the text of one file, as lines that name file and line."""
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        return [f"{name}: {error}"]
    if not text.endswith("\n"):
        return [f"{name}: no newline at the end"]
    if len(rows) != text.count("\n"):
        return [f"{name}: a row is one line, and this has {len(rows)} rows on {text.count(chr(10))} lines"]
    if len(rows) - 1 > MOST_ROWS:
        return [f"{name}: {len(rows) - 1} rows, the limit is {MOST_ROWS}: keep those that documents quote (bench/ledger/README.md)"]
    if rows[0] != HEADER:
        return [f"{name}:1: the columns are {','.join(rows[0])}, not {','.join(HEADER)}"]
    return [f"{name}:{line}: {error}" for line, row in enumerate(rows[1:], 2) for error in row_errors(row)]


def main():
    ledger = ROOT / "bench" / "ledger"
    readme = (ledger / "README.md").read_text()
    files = sorted((ROOT / "bench").rglob("*.csv"))
    errors = [] if files else ["bench/ledger holds no CSV file"]
    rows = 0
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        text = path.read_bytes().decode()
        errors += text_errors(name, text)
        rows += text.count("\n") - 1
        if path.parent != ledger:
            errors.append(f"{name}: rows belong to bench/ledger/")
        elif f"`{path.name}`" not in readme:
            errors.append(f"{name}: bench/ledger/README.md does not say what it holds")
    for line in errors:
        print(line)
    print(f"{rows} rows of the ledger in {len(files)} files, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
