#!/usr/bin/env python3
"""What a build cost, in seconds of processor time by room, beside a committed baseline.

tools/build_budget.py PRESET          prints the table; fails where a room costs more than its budget
tools/build_budget.py PRESET --write  makes what this build cost the baseline
tools/build_budget.py speed           prints how many times longer than the baseline's this machine takes

The launcher of every compiler (tools/timed_compile.sh) writes build/PRESET/compile_times.log. Machines
differ, so all seconds are divided by those of a reference compile, made now and with the baseline. A room
may cost half more than its baseline and ten seconds, since shared machines are noisy, and all rooms together
a quarter more: a heavy header in a place that many read adds seconds to each of some hundred units. An object
that came out of a compiler cache counts with what it last took on this machine, which the user's cache folder
keeps: else a room would grow unseen until a machine without a cache builds it.
"""

import collections
import csv
import os
import pathlib
import re
import resource
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASELINE = ROOT / "tools" / "build_baseline.csv"
GROWTH, SLACK_SECONDS = 1.5, 10.0
TOTAL_GROWTH = 1.25
CACHE_GAIN = 4.0  # what takes so many times less than it took was not compiled
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


def room_of(obj):
    """The row of the table that an object belongs to: a room, a room's tests, a folder, or a library."""
    target = re.search(r"CMakeFiles/([^/]+)\.dir/", obj)
    target = target[1] if target else "?"
    room = re.match(r"src/rudder/(\w+)/", obj)
    folder = room[1] if room else re.match(r"(\w+)/", obj)[1] if re.match(r"(apps|tests)/", obj) else target
    is_test = room and not target.startswith("rudder_" + folder)
    return f"{folder} tests" if is_test else folder


def seconds_by_object(lines):
    """The last compile of each object counts: a log outlives many builds."""
    last = {}
    for line in lines:
        user, system, obj = line.split(maxsplit=2)
        last[obj.strip()] = float(user) + float(system)
    return last


def seconds_by_room(objects):
    rooms = collections.Counter()
    for obj, seconds in objects.items():
        rooms[room_of(obj)] += seconds
    return rooms


def compiled(objects, known):
    """`objects` with what those took before (`known`) that came out of a compiler cache."""
    return {obj: known[obj] if seconds * CACHE_GAIN < known.get(obj, 0.0) else seconds
            for obj, seconds in objects.items()}


def known_path(preset):
    root = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return root / "rudder" / f"compile_times.{preset}"


def remember(preset, objects):
    """What this build's objects took, as of the machine; those that a cache had as they were known before."""
    path = known_path(preset)
    known = seconds_by_object(path.read_text().splitlines()) if path.exists() else {}
    known.update(compiled(objects, known))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text("".join(f"{seconds:.3f} 0 {obj}\n" for obj, seconds in sorted(known.items())))
    partial.replace(path)
    return {obj: known[obj] for obj in objects}


def read_baseline(preset, path=None):
    """{room: seconds}, and the seconds of the reference compile when they were written."""
    path = path or BASELINE
    rows = [row for row in csv.DictReader(path.open()) if row["preset"] == preset] if path.exists() else []
    seconds = {row["room"]: float(row["seconds"]) for row in rows}
    return seconds, seconds.pop("reference compile", None)


def over_budget(now, baseline, speed):
    """Lines about rooms past their budgets. `speed`: this machine's reference seconds over the baseline's."""
    for room, seconds in sorted(now.items()):
        budget = baseline.get(room, 0.0) * GROWTH + SLACK_SECONDS
        if seconds / speed > budget:
            yield (f"{room}: {seconds / speed:.0f} s on the baseline's machine, the budget is {budget:.0f} s. Find the header that "
                   "costs it, or, if the room grew for a reason, write a new baseline (--write)")
    total, total_budget = sum(now.values()) / speed, sum(baseline.values()) * TOTAL_GROWTH + SLACK_SECONDS
    if total > total_budget:
        yield f"all rooms: {total:.0f} s on the baseline's machine, the budget is {total_budget:.0f} s"


def write(preset, now, reference):
    rows = [row for row in csv.DictReader(BASELINE.open()) if row["preset"] != preset] if BASELINE.exists() else []
    rows += [{"preset": preset, "room": room, "seconds": f"{seconds:.1f}"} for room, seconds in sorted(now.items())]
    rows.append({"preset": preset, "room": "reference compile", "seconds": f"{reference:.2f}"})
    with BASELINE.open("w", newline="") as file:
        table = csv.DictWriter(file, ["preset", "room", "seconds"], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def main():
    preset = sys.argv[1]
    if preset == "speed":
        print(f"{reference_seconds() / read_baseline('release')[1]:.2f}")
        return 0
    objects = seconds_by_object((ROOT / "build" / preset / "compile_times.log").read_text().splitlines())
    now = seconds_by_room(remember(preset, objects))
    reference = reference_seconds()
    if "--write" in sys.argv[2:]:
        write(preset, now, reference)
        return 0
    baseline, before = read_baseline(preset)
    if before is None:
        print(f"build_budget: {BASELINE.name} has no rows of preset {preset}; --write makes them")
        return 1
    speed = reference / before
    print(f"{preset}: {sum(now.values()):.0f} s of processor time; this machine takes {speed:.2f} x the baseline's time")
    for room, seconds in now.most_common():
        print(f"  {seconds:7.1f} s  {room} (baseline {baseline.get(room, 0.0):.0f})")
    errors = list(over_budget(now, baseline, speed))
    print("\n".join(errors), end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
