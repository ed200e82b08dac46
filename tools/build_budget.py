#!/usr/bin/env python3
"""What a build cost, in MB by room, beside a committed baseline.

tools/build_budget.py PRESET          prints the table; fails where a room costs more than its budget
tools/build_budget.py PRESET --write  makes what this build cost the baseline
tools/build_budget.py speed           prints how many times longer than the baseline's this machine takes

The launcher of every compiler (tools/measured_compile.sh) writes build/PRESET/compile_costs.log: the memory
that GCC took for a compile, which follows what it read and what it made of that, or the size of an object for a
GPU. Such a number does not depend on the machine or on what else it does (processor time of one room varied
by two on one machine), so a room may cost a quarter more than its baseline and a little, and all rooms together
a sixth: a heavy header in a place that many read adds to each of some hundred units. Another version of GCC
takes other amounts: all are divided by those of a reference compile, made now and with the baseline.
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
LAUNCHER = ROOT / "tools" / "measured_compile.sh"
GROWTH, SLACK_MB = 1.25, 200.0
TOTAL_GROWTH = 1.17
REFERENCE = "#include <algorithm>\n#include <functional>\n#include <map>\n#include <boost/json.hpp>\n"


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
    """What the reference compile costs, as its launcher says."""
    with tempfile.TemporaryDirectory() as folder:
        source, log = pathlib.Path(folder) / "reference.cpp", pathlib.Path(folder) / "log"
        source.write_text(REFERENCE)
        subprocess.run([LAUNCHER, log, "g++", "-std=c++20", "-c", source, "-o", source.with_suffix(".o")], check=True)
        return sum(costs_by_object(log.read_text().splitlines()).values())


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


def costs_by_object(lines):
    """The last compile of each object counts: a log outlives many builds."""
    last = {}
    for line in lines:
        cost, obj = line.split(maxsplit=1)
        last[obj.strip()] = float(cost)
    return last


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
            yield (f"{room}: {cost / scale:.0f} MB, the budget is {budget:.0f}. Find the header that costs it, or, if the room "
                   "grew for a reason, write a new baseline (--write)")
    total, total_budget = sum(now.values()) / scale, sum(baseline.values()) * TOTAL_GROWTH + SLACK_MB
    if total > total_budget:
        yield f"all rooms: {total:.0f} MB, the budget is {total_budget:.0f}"


def write(preset, now):
    """Makes `now` the rows of a preset. The seconds of the reference compile stay: they name the baseline's machine."""
    rows = [row for row in csv.DictReader(BASELINE.read_text().splitlines()) if row["preset"] not in (preset, "reference")]
    rows += [{"preset": preset, "room": room, "cost": f"{cost:.0f}"} for room, cost in sorted(now.items())]
    rows += [{"preset": "reference", "room": unit, "cost": cost}
             for unit, cost in (("MB", f"{reference_mb():.0f}"), ("seconds", read_baseline("reference")["seconds"]))]
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
    now = costs_by_room(costs_by_object((ROOT / "build" / preset / "compile_costs.log").read_text().splitlines()))
    if "--write" in sys.argv[2:]:
        write(preset, now)
        return 0
    baseline, scale = read_baseline(preset), reference_mb() / reference["MB"]
    print(f"{preset}: {sum(now.values()):.0f} MB; this compiler takes {scale:.2f} x the baseline's")
    for room, cost in now.most_common():
        print(f"  {cost:7.0f} MB  {room} (baseline {baseline.get(room, 0.0):.0f})")
    errors = list(over_budget(now, baseline, scale))
    print("\n".join(errors), end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
