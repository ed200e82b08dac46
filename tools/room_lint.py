#!/usr/bin/env python3
"""Fails on an include outside the room table (cmake/rooms.cmake), a file over its budget that is not
in the committed baseline, a banned call, or a name that two sources of a room have. Standard library
only."""

import pathlib
import re
import subprocess
import sys

import unit_names

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASELINE = ROOT / "tools" / "budget_baseline.txt"
INCLUDE = re.compile(r'^\s*#\s*include\s+"rudder/([a-z_]+)/')
BUDGETS = {".h": 500, ".cpp": 500, ".cu": 900, ".cuh": 900, ".py": 500}
# pattern -> (files that may use it, what to do instead)
BANNED = {
    r"\bgetenv\s*\(": ({"src/rudder/base/settings.cpp"}, "read settings through base/settings.h"),
    r"#\s*include\s+<regex>": (set(), "use PCRE2"),
    r"\balloca\s*\(": (set(), "use a vector or an arena"),
    r"\bstd::cout\b|\bstd::cerr\b": (set(), "use base/log.h, or fmt::print in apps"),
    r"/root/|/home/\w": (set(), "no absolute paths of a machine"),
}


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True)
    return [pathlib.PurePosixPath(p) for p in out.stdout.decode().split()]


def room_table():
    text = (ROOT / "cmake" / "rooms.cmake").read_text()
    return {
        room: set(filter(None, allowed.split(";")))
        for room, allowed in re.findall(r'set\(RUDDER_ROOM_(\w+) "([^"]*)"\)', text)
    }


def room_errors(path, text, table):
    parts = path.parts
    if parts[:2] != ("src", "rudder"):
        return  # apps and tests may include every room
    room = parts[2]
    if room not in table:
        yield f"{path}: room {room} is not in cmake/rooms.cmake"
        return
    allowed = table[room] | {room}
    if path.name.endswith("_test.cpp"):
        allowed |= table[room] | {"testing"}
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match and match[1] not in allowed:
            yield f"{path}:{number}: room {room} may not include room {match[1]}"


def banned_errors(path, text):
    for pattern, (exempt, instead) in BANNED.items():
        if str(path) in exempt or not re.search(pattern, text):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(pattern, line):
                yield f"{path}:{number}: {pattern} is banned: {instead}"


def budget_errors(path, text, baseline):
    budget = max(BUDGETS[path.suffix], baseline.get(str(path), 0))
    lines = text.count("\n")
    if lines > budget:
        yield f"{path}: {lines} lines, the budget is {budget}"


def read_baseline():
    if not BASELINE.exists():
        return {}
    rows = (line.split() for line in BASELINE.read_text().splitlines() if line and line[0] != "#")
    return {path: int(lines) for path, lines in rows}


def main():
    table = room_table()
    baseline = read_baseline()
    errors = []
    files = tracked("src/*.h", "src/*.cpp", "src/*.cu", "src/*.cuh", "apps/*.h", "apps/*.cpp",
                    "tests/*.h", "tests/*.cpp", "tests/*.py", "bench/*.cpp", "tools/*.py")
    texts = {path: (ROOT / path).read_text() for path in files}
    for path, text in texts.items():
        if path.suffix != ".py":
            errors += room_errors(path, text, table)
            errors += banned_errors(path, text)
        errors += budget_errors(path, text, baseline)
    errors += unit_names.errors((path, text) for path, text in texts.items() if path.suffix in (".h", ".cpp"))
    for line in errors:
        print(line)
    print(f"{len(files)} files, {len(table)} rooms, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
