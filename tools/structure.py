#!/usr/bin/env python3
"""Ratchets of structure: how large the parts of the code may be. Standard library only.

tools/structure.py           prints the largest of each kind; fails where one is over its limit
tools/structure.py --write   makes what is there now the limits of those that are listed, where that is less

tools/structure_limits.csv has the limits. A row of name `*` is what any may have; a row with a name is of one that was
larger when the ratchet was made, and fails as well when the thing has become smaller: its row is lowered then, or goes.
Nothing is added to the list, and no limit rises.

    functions   that a class declares, in headers and sources
    fields      of a struct or a class
    questions   functions of an interface that take nothing and answer yes or no
    cycle       folders of a room, or of rooms, that include each other in a circle, in all
    adr         lines of a decision, of 160 columns each: a longer one counts as several

A number names one decision: two files of docs/adr/ with the same one fail too.
"""

import collections
import csv
import pathlib
import re
import subprocess
import sys

import unit_names

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMITS = ROOT / "tools" / "structure_limits.csv"
COLUMNS = 160  # of a line of a decision
KINDS = ("functions", "fields", "questions", "cycle", "adr")
INCLUDE = re.compile(r'^\s*#\s*include\s+"(rudder/[\w./]+)"', re.M)
OF_TESTS = re.compile(r"_test\.cpp$|/testing/")
ACCESS = {"public", "private", "protected"}
NO_MEMBER = {"using", "typedef", "friend", "static_assert", "enum"}


def bodies(tokens):
    """(name, where its members begin and end) of each class and struct that is defined, also inside others."""
    for at, (word, _) in enumerate(tokens):
        if word not in ("class", "struct") or (at and tokens[at - 1][0] in ("enum", "<", ",", "friend")):
            continue
        name, inside = None, at + 1
        while inside < len(tokens) and tokens[inside][0] not in "{;()=>":
            word = tokens[inside][0]
            if word in unit_names.WITH_ARGUMENTS:
                inside = unit_names.after_group(tokens, inside + 1)
                continue
            if word == ":":  # bases
                while inside < len(tokens) and tokens[inside][0] not in "{;":
                    inside += 1
                break
            if word == "<":
                inside = unit_names.after_group(tokens, inside, "<", ">")
                continue
            if unit_names.WORD.match(word) and word != "final":
                name = word
            inside += 1
        if name and inside < len(tokens) and tokens[inside][0] == "{":
            yield name, inside + 1, unit_names.after_group(tokens, inside) - 1


def is_function(words):
    """Whether a member's declaration is one of a function."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "operator":
            return True
        if word in unit_names.WITH_ARGUMENTS and words[at + 1:at + 2] == ["("]:
            at = group_end(words, at + 1)
        elif word == "<":
            at = group_end(words, at, "<", ">")
        elif word == "[" and words[at + 1:at + 2] == ["["]:
            at = group_end(words, at)
        elif word == "(":
            return words[at + 1:at + 2] != ["*"]
        elif word in "={;:[":
            return False
        else:
            at += 1
    return False


def group_end(words, at, opening=unit_names.OPENING, closing=unit_names.CLOSING):
    return unit_names.after_group([(word, 0) for word in words], at, opening, closing)


def members(tokens, begin, end):
    """The words of each member of a body."""
    at = begin
    while at < end:
        word = tokens[at][0]
        if word in ACCESS and tokens[at + 1][0] == ":":
            at += 2
        elif word in ";}":
            at += 1
        else:
            after = unit_names.after_declaration(tokens[:end], at)
            yield [word for word, _ in tokens[at:after]]
            at = after


def num_fields(words):
    """That one declaration makes: `int a, b;` makes two."""
    depth = count = 0
    for word in words:
        depth += (word in "({[<") - (word in ")}]>")
        count += word == "," and depth == 0
    return count + 1


def class_sizes(text):
    """{(kind, class): size} of what a text defines."""
    tokens = unit_names.tokens_of(text)
    sizes = collections.Counter()
    for name, begin, end in bodies(tokens):
        for words in members(tokens, begin, end):
            start = group_end(words, 1, "<", ">") if words[0] == "template" else 0
            rest = words[start:]
            if not rest or rest[0] in NO_MEMBER or (rest[0] in ("class", "struct") and "{" in rest and "(" not in rest[:rest.index("{")]):
                continue
            if not is_function(rest):
                sizes["fields", name] += num_fields(rest)
                continue
            sizes["functions", name] += 1
            plain = [word for word in rest if word not in ("[", "]", "nodiscard")]
            sizes["questions", name] += plain[:2] == ["virtual", "bool"] and plain[3:5] == ["(", ")"]
    return sizes


def circles(edges):
    """The nodes from which a way leads back to them; edges: {node: nodes}."""
    def reached(start):
        seen, waiting = set(), list(edges.get(start, ()))
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += edges.get(node, ())
        return seen
    return sorted(node for node in edges if node in reached(node))


def folders_in_circles(texts):
    edges = collections.defaultdict(set)
    for path, text in texts.items():
        if path.startswith("src/rudder/") and not OF_TESTS.search(path):
            own = path.removeprefix("src/").rpartition("/")[0]
            for include in INCLUDE.findall(text):
                other = include.rpartition("/")[0]
                if other != own and "src/" + include in texts and not OF_TESTS.search(include):
                    edges[own].add(other)
    return circles(edges)


def sizes_of(texts):
    """{(kind, name): size} of the repository's texts by path; a class has its room before it."""
    found = {}
    for path, text in texts.items():
        if re.search(r"\.(h|cpp|cu|cuh)$", path) and not OF_TESTS.search(path):
            room = path.split("/")[2] if path.startswith("src/rudder/") else path.split("/")[0]
            for (kind, name), size in class_sizes(text).items():
                key = kind, f"{room}::{name}"
                found[key] = max(size, found.get(key, 0))
        elif path.startswith("docs/adr/"):
            key = "adr", path.removeprefix("docs/adr/")[:4]
            found[key] = max(sum(max(1, -(-len(line) // COLUMNS)) for line in text.splitlines()), found.get(key, 0))
    for folder in folders_in_circles(texts):
        found["cycle", folder] = 1
    return found


def numbers_taken_twice(texts):
    """What is wrong with the numbers of decisions."""
    numbers = collections.defaultdict(list)
    for path in sorted(texts):
        if path.startswith("docs/adr/"):
            name = path.removeprefix("docs/adr/")
            numbers[name[:4]].append(name)
    for number, names in numbers.items():
        if len(names) > 1:
            yield f"adr {number} is {' and '.join(names)}: a number names one decision"
        for name in names:
            if not texts[f"docs/adr/{name}"].startswith(f"# {number}: "):
                yield f"adr {name}: its title does not begin with '# {number}: '"


def read_limits(text):
    return {(row["kind"], row["name"]): int(row["limit"]) for row in csv.DictReader(text.splitlines())}


def errors_of(sizes, limits):
    """What is over its limit, and limits that are over what they are of."""
    for (kind, name), size in sorted(sizes.items()):
        limit = limits.get((kind, name), limits[kind, "*"])
        if size > limit:
            yield f"{kind} of {name}: {size}, the limit is {limit}"
    for (kind, name), limit in sorted(limits.items()):
        size = sizes.get((kind, name), 0)
        if name != "*" and size < limit:
            yield f"{kind} of {name}: {size}, and its row in {LIMITS.name} still allows {limit}: lower it (--write)"
        if name != "*" and limit <= limits[kind, "*"]:
            yield f"{kind} of {name}: its row in {LIMITS.name} allows no more than any may have: it goes"


def lowered(sizes, limits):
    kept = {}
    for (kind, name), limit in limits.items():
        size = limit if name == "*" else min(limit, sizes.get((kind, name), 0))
        if name == "*" or size > limits[kind, "*"]:
            kept[kind, name] = size
    return kept


def write(limits):
    with LIMITS.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["kind", "name", "limit"])
        table.writerows([kind, name, limit] for (kind, name), limit in sorted(limits.items(), key=lambda row: (KINDS.index(row[0][0]), row[0][1])))


def main():
    listed = subprocess.run(["git", "ls-files", "src", "apps", "docs/adr"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    texts = {path: (ROOT / path).read_text() for path in listed.split()
             if path.endswith((".h", ".cpp", ".cu", ".cuh", ".md")) and (ROOT / path).is_file()}
    sizes, limits = sizes_of(texts), read_limits(LIMITS.read_text())
    if "--write" in sys.argv[1:]:
        limits = lowered(sizes, limits)
        write(limits)
    errors = [*errors_of(sizes, limits), *numbers_taken_twice(texts)]
    print("\n".join(errors), end="\n" if errors else "")
    for kind in KINDS:
        largest = sorted(((size, name) for (of, name), size in sizes.items() if of == kind), reverse=True)[:4]
        print(f"{kind}: " + ", ".join(f"{name} {size}" for size, name in largest))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
