#!/usr/bin/env python3
"""Fails where code or a document uses a word of the glossary (ARCHITECTURE.md) for what the glossary calls otherwise.

It knows the uses that a regular expression can find: names in code, and terms of two words in documents. A name is looked
for outside comments and strings, where English may say "in place" and "takes the place of". Reasons of old decisions
(docs/adr/) and the ledger keep the words that they were written with. Standard library only."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = (".h", ".cpp", ".cu", ".cuh")
TEXT = (*CODE, ".md", ".py", ".sh")
OLD = ("docs/adr/", "bench/ledger/", "tools/glossary_check.py", "tools/test_glossary_check.py", "tools/test_gates.py")
# In `constraint` automata have places in a text still.
QUEUE_AND_AUTOMATA = ("src/rudder/engine/", "src/rudder/constraint/")
# (word, pattern, is it of names in code, paths that are exempt, what to say instead)
RULES = (
    ("place", r"\b(?:\w+_)?places?_?\b(?!\s*\()|\b\w*Places?\b(?!\s*\()", True, QUEUE_AND_AUTOMATA,
     "a place is a share of the bounded queue: say index, offset, state, site, entry or placement"),
    ("plan", r"\bMemoryBudget>?[&*]? \w*plan\b|\b[Pp]lan_kv\w*|\b(?:Tensor|Memory|Attention|Kernel|Decode)Plan\b", True, (),
     "a plan is a StepPlan: say memory budget, work list, tensor list, decode pipeline or kernel choice"),
    ("plan", r"\b(?:memory|attention|tensor|kernel|decoding) plans?\b|\bmemory_plan", False, (),
     "a plan is a StepPlan: say memory budget, work list, tensor list, decode pipeline or kernel choice"),
    ("row", r"\bSeq(?:Work|Result)[&*]? rows?\b|\bdecode_rows\b|\bnum_seq_rows\b", True, (),
     "what a step does for one sequence is the sequence"),
    ("row", r"\b(?:constrained|speculating|drafted|decoding) rows?\b", False, (),
     "what a step does for one sequence is the sequence"),
    ("draft", r"\bRequest(?:Params)?[&*]? \w*draft\b|\b(?:Request|Step)Draft\b", True, (),
     "a request that is not validated is request parameters, a step in the making is in a step builder"),
    ("admission", r"\bAdmission\b|\badmission_\b", True, ("src/rudder/sched/",),
     "admission is the scheduler's: requests take places of the bounded queue"),
    ("relay", r"\bCaptureRelay\b|\bcapture_relay\w*", True, (), "a relay is a number of a token: say capture bridge"),
    ("form", r"\bTaps?Forms?\b|\btaps?_forms?\b", True, (), "a form is of an output: say resolved taps"),
    ("stage", r"\b(?:test|start|build) stages?\b|time of each stage", False, (), "a stage is of a pipeline: say part"),
)


def without_comments(line):
    """A line of code without what stands in strings and behind //."""
    return re.sub(r"//.*", "", re.sub(r'"(?:\\.|[^"\\])*"', '""', line))


def errors_of(path, text):
    if path.startswith(OLD):
        return
    is_code = path.endswith(CODE)
    lines = text.splitlines()
    names = None
    for word, pattern, is_name, exempt, instead in RULES:
        if path.startswith(exempt) or (is_name and not is_code) or not re.search(pattern, text):
            continue
        if is_name and names is None:
            names = [without_comments(line) for line in re.sub(r'R"(\w*)\((.*?)\)\1"', _blank, text, flags=re.S).splitlines()]
        for number, line in enumerate(names if is_name else lines, 1):
            found = re.search(pattern, line)
            if found:
                yield f"{path}:{number}: `{found[0]}`: {word} has another meaning: {instead}"


def _blank(literal):
    return '""' + "\n" * literal[0].count("\n")


def main():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    files = [path for path in listed if path.endswith(TEXT) and (ROOT / path).is_file()]
    errors = [error for path in files for error in errors_of(path, (ROOT / path).read_text())]
    print("\n".join([*errors, f"{len(files)} files, {len(errors)} words of the glossary with another meaning"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
