#!/usr/bin/env python3
"""What a build cost, in MB by room, beside a committed baseline.

tools/build_budget.py PRESET          prints the table; fails where a room costs more than its budget
tools/build_budget.py PRESET --write  makes what this build cost the baseline
tools/build_budget.py speed           prints how many times longer than the baseline's this machine takes

The cost of an object is its size, and a twentieth of the text that its compiler read (`ninja -t deps`): the first
follows what was instantiated and made, which is most of a compile, and together they follow its time with a
correlation of 0.95. Unlike the time they are the same on every machine, beside any load, and out of a compiler
cache. So a room may cost a quarter more than its baseline and a little, and all rooms together a sixth: a heavy
header in a place that many read adds to each of some hundred units. Another compiler makes other objects: all
costs are divided by that of a reference compile, made now and with the baseline.
"""

import collections
import csv
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASELINE = ROOT / "tools" / "build_baseline.csv"
GROWTH, SLACK_MB = 1.25, 2.0
TOTAL_GROWTH = 1.17
OF_TEXT = 0.05  # of a byte that is read, beside one that is made
REFERENCE = "#include <algorithm>\n#include <functional>\n#include <map>\n#include <boost/json.hpp>\n"
USE = "boost::json::value f(const char* s) { return boost::json::parse(s); }\n"


def reference_seconds():
    """Processor time of the reference compile, as a build runs it: one on each core, best of three rounds.
    Cores that share their units are slower together, so one compile alone would say too little."""
    command = ["g++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    cores = os.cpu_count() or 1

    def one_round():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        running = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True) for _ in range(cores)]
        for compiler in running:
            compiler.stdin.write(REFERENCE)
            compiler.stdin.close()
        if any(compiler.wait() for compiler in running):
            raise RuntimeError("the reference does not compile")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / cores
    return min(one_round() for _ in range(3))


def reference_mb():
    with tempfile.TemporaryDirectory() as folder:
        source, made = pathlib.Path(folder) / "reference.cpp", pathlib.Path(folder) / "reference.o"
        source.write_text(REFERENCE + USE)
        subprocess.run(["g++", "-std=c++20", "-O2", "-g1", "-c", source, "-o", made], check=True)
        return made.stat().st_size / 1e6


def room_of(obj):
    """The row of the table that an object belongs to: a room, a room's tests, a folder, or a library."""
    if obj.endswith(".cu.o"):
        return "kernels"
    target = re.search(r"CMakeFiles/([^/]+)\.dir/", obj)
    target = target[1] if target else "?"
    room = re.match(r"src/rudder/(\w+)/", obj)
    folder = room[1] if room else re.match(r"(\w+)/", obj)[1] if re.match(r"(apps|tests)/", obj) else target
    is_test = room and not target.startswith("rudder_" + folder)
    return f"{folder} tests" if is_test else folder


def costs_by_object(deps, folder):
    """{object: MB}, from what `ninja -t deps` prints: a line with each object, indented ones with what it read."""
    sizes, costs = {}, {}

    def size(path):
        if path not in sizes:
            sizes[path] = (folder / path).stat().st_size / 1e6 if (folder / path).exists() else 0.0
        return sizes[path]
    obj = None
    for line in deps.splitlines():
        if line.startswith(" "):
            if obj:
                costs[obj] += OF_TEXT * size(line.strip())
        else:
            obj = line.partition(": #deps")[0] if line.endswith("(VALID)") else None
            if obj:
                costs[obj] = size(obj)
    return costs


def build_costs(folder):
    deps = subprocess.run(["ninja", "-t", "deps"], cwd=folder, check=True, capture_output=True, text=True).stdout
    return costs_by_room(costs_by_object(deps, folder))


def costs_by_room(objects):
    rooms = collections.Counter()
    for obj, cost in objects.items():
        rooms[room_of(obj)] += cost
    return rooms


def read_baseline(preset, path=None):
    """{room: MB} of a preset. Those of `reference` are the seconds and the MB of the reference compile."""
    path = path or BASELINE
    rows = csv.DictReader(path.read_text().splitlines()) if path.exists() else []
    return {row["room"]: float(row["cost"]) for row in rows if row["preset"] == preset}


def over_budget(now, baseline, scale=1.0):
    """Lines about rooms past their budgets. `scale`: what this compiler takes over what the baseline's took."""
    for room, cost in sorted(now.items()):
        budget = baseline.get(room, 0.0) * GROWTH + SLACK_MB
        if cost / scale > budget:
            yield (f"{room}: {cost / scale:.1f} MB, the budget is {budget:.1f}. Find the header that costs it, or, if the room "
                   "grew for a reason, write a new baseline (--write)")
    total, total_budget = sum(now.values()) / scale, sum(baseline.values()) * TOTAL_GROWTH + SLACK_MB
    if total > total_budget:
        yield f"all rooms: {total:.0f} MB, the budget is {total_budget:.0f}"


def write(preset, now):
    """Makes `now` the rows of a preset. The seconds of the reference compile stay: they name the baseline's machine."""
    rows = [row for row in csv.DictReader(BASELINE.read_text().splitlines()) if row["preset"] not in (preset, "reference")]
    rows += [{"preset": preset, "room": room, "cost": f"{cost:.2f}"} for room, cost in sorted(now.items())]
    rows += [{"preset": "reference", "room": unit, "cost": cost}
             for unit, cost in (("MB", f"{reference_mb():.3f}"), ("seconds", read_baseline("reference")["seconds"]))]
    with BASELINE.open("w", newline="") as file:
        table = csv.DictWriter(file, ["preset", "room", "cost"], lineterminator="\n")
        table.writeheader()
        table.writerows(sorted(rows, key=lambda row: (row["preset"], row["room"])))


def main():
    preset = sys.argv[1]
    reference = read_baseline("reference")
    if preset == "speed":
        print(f"{reference_seconds() / reference['seconds']:.2f}")
        return 0
    now = build_costs(ROOT / "build" / preset)
    if "--write" in sys.argv[2:]:
        write(preset, now)
        return 0
    baseline, scale = read_baseline(preset), reference_mb() / reference["MB"]
    print(f"{preset}: {sum(now.values()):.0f} MB; this compiler takes {scale:.2f} x the baseline's")
    for room, cost in now.most_common():
        print(f"  {cost:7.1f} MB  {room} (baseline {baseline.get(room, 0.0):.1f})")
    errors = list(over_budget(now, baseline, scale))
    print("\n".join(errors), end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
