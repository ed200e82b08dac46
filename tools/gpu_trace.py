#!/usr/bin/env python3
"""Runs a command under the driver's activity trace and says what the device did between and in its steps.

    tools/gpu_trace.py [--library FILE] [--out trace.csv] [--steps N] -- build/release/apps/rudder bench ...
    tools/gpu_trace.py --read trace.csv
    tools/gpu_trace.py --idle-steering -- build/release/apps/rudder bench steering --modes enabled_idle ...

A step is one launch of a graph; of the graph that was launched most often the last N steps count. Prints
for them: the step's period, how much of it the device was busy (the union of its kernels' times), the idle
time inside the graph and between one launch's last node and the next one's first; then each kernel's share.

With --idle-steering the command runs a model twice, without steering and with it on but unused, under the
same load; the check is that steering then launches nothing: no kernel with taps runs once both have begun
(before, while graphs are captured, each is run once), and the graphs of the two are pairs of the same kernels
with the same grids in the same order, launched equally often.

Where kernels overlap (a dependent one begins before the one in front of it has ended) the time goes to the
earlier. Tracing adds to each node: the percentages are upper bounds of the idle time. Standard library only;
the library is build/release/src/rudder/cuda/libgpu_trace.so."""

import argparse
import collections
import csv
import os
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "build/release/src/rudder/cuda/libgpu_trace.so"

Node = collections.namedtuple("Node", "begin end launch graph name blocks threads registers shared")


def run_traced(command, library, out):
    environment = dict(os.environ, CUDA_INJECTION64_PATH=str(library))
    process = subprocess.Popen(command, env=environment)
    status = process.wait()
    written = pathlib.Path(f"gpu_trace.{process.pid}.csv")
    if not written.exists():
        sys.exit(f"no trace was written (the command ended with status {status})")
    written.replace(out)
    return status


def read_nodes(path):
    with open(path, newline="") as file:
        nodes = [Node(int(r["begin_ns"]), int(r["end_ns"]), int(r["launch"]), int(r["graph"]), r["name"],
                      int(r["blocks"]), int(r["threads"]), int(r["registers"]), int(r["shared"]))
                 for r in csv.DictReader(file)]
    return sorted(nodes)


def last_steps(nodes, count):
    """The last `count` runs of launches of the most frequent graph, with no other launch of a graph between:
    lists of their nodes, and all that the device did from the first on."""
    launches = collections.OrderedDict()
    for node in nodes:
        if node.graph:
            launches.setdefault(node.launch, []).append(node)
    if not launches:
        return []
    graphs = collections.Counter(step[0].graph for step in launches.values())
    graph = graphs.most_common(1)[0][0]
    runs, current = [], []
    for step in launches.values():
        if step[0].graph == graph:
            current.append(step)
        elif current:
            runs.append(current)
            current = []
    runs.append(current)
    return max(runs, key=len)[-count:]


def busy_time(nodes, begin, end):
    busy, at = 0, begin
    for node in nodes:
        low, high = max(node.begin, at), min(node.end, end)
        if high > low:
            busy += high - low
            at = high
    return busy


def short_name(name):
    """A mangled or spelled name without namespaces and arguments."""
    pieces = re.findall(r"\d+([a-z]\w*?_kernel)", name)
    if pieces:
        variant = re.search(pieces[0] + r"I(\w+?)EEv", name)
        return pieces[0] + (" " + variant.group(1) if variant else "")
    return name[:56]


def report(nodes, count):
    steps = last_steps(nodes, count + 1)
    if len(steps) < 3:
        print("the trace has no three steps of one graph after another")
        return 1
    periods, busy, gaps, inside = [], [], [], []
    for step, following in zip(steps, steps[1:]):
        begin, end = step[0].begin, following[0].begin
        between = [n for n in nodes if n.end > begin and n.begin < end]
        last = max(n.end for n in step)
        periods.append(end - begin)
        busy.append(busy_time(between, begin, end))
        gaps.append(max(0, end - last) - busy_time([n for n in between if n.begin >= last], last, end))
        inside.append(last - begin - busy_time(between, begin, last))
    period = statistics.median(periods)
    idle = 100 * (1 - sum(busy) / sum(periods))
    print(f"{len(periods)} steps of {len(steps[0])} nodes: period {period / 1e3:.1f} us (median), device busy "
          f"{statistics.median(busy) / 1e3:.1f} us")
    print(f"idle {idle:.2f} % of the time: between steps {statistics.median(gaps) / 1e3:.2f} us "
          f"({100 * sum(gaps) / sum(periods):.2f} %), within steps {statistics.median(inside) / 1e3:.2f} us "
          f"({100 * sum(inside) / sum(periods):.2f} %)")
    time, calls, shape = collections.Counter(), collections.Counter(), {}
    for step in steps:
        at = 0
        for node in step:
            name = short_name(node.name)
            time[name] += max(0, node.end - max(node.begin, at))
            calls[name] += 1
            shape[name] = (node.blocks, node.threads, node.registers, node.shared)
            at = max(at, node.end)
    print(f"\n{'kernel':<58} {'calls':>6} {'us/call':>8} {'us/step':>8} {'share':>6}  blocks x threads, registers, "
          "shared")
    total = sum(time.values())
    for name, spent in time.most_common():
        print(f"{name:<58} {calls[name] / len(steps):>6.0f} {spent / calls[name] / 1e3:>8.2f} "
              f"{spent / len(steps) / 1e3:>8.1f} {100 * spent / total:>5.1f}%  "
              "{} x {}, {}, {}".format(*shape[name]))
    return 0


def lists_of(launches):
    """{kernels: {graph: launches}}"""
    lists = collections.defaultdict(collections.Counter)
    for (graph, _), step in launches:
        lists[tuple((node.name, node.blocks, node.threads) for node in step)][graph] += 1
    return lists


def check_idle(nodes):
    """Whether the graphs that were launched come in pairs of the same kernels; says what does not."""
    launches = collections.defaultdict(list)
    for node in nodes:
        if node.graph:
            launches[(node.graph, node.launch)].append(node)
    lists = lists_of(launches.items())
    most = max(lists.values(), key=lambda graphs: sum(graphs.values()), default={})
    first = {graph: min(step[0].begin for (of, _), step in launches.items() if of == graph) for graph in most}
    second = max(first.values(), default=0)
    # One session warms up behind the other, each as long as it needs; behind that they take turns, and these are compared.
    earlier = min(first, key=first.get, default=None)
    begin = min((step[0].begin for (of, _), step in launches.items() if of == earlier and step[0].begin > second),
                default=second)
    lists = lists_of((key, step) for key, step in launches.items() if step[0].begin >= begin)
    tapped = sorted({short_name(node.name) for node in nodes if node.begin >= second and "tapped" in node.name})
    bad = 0
    print(f"{'kernels':>8} {'nodes of kinds':>15}  launches of each graph that has just them")
    for kernels, graphs in sorted(lists.items(), key=lambda item: -sum(item[1].values())):
        counts = sorted(graphs.values())
        # Requests that come together may be taken by a step more or less.
        good = len(counts) == 2 and counts[1] - counts[0] <= max(4, counts[1] // 20)
        few = sum(counts) < 16
        bad += not good and not few
        print(f"{len(kernels):>8} {len(set(kernels)):>15}  {' and '.join(map(str, counts))}"
              f"{'' if good else '  (few: passed over)' if few else '  NOT A PAIR'}")
    for name in tapped:
        print(f"A KERNEL WITH TAPS RAN: {name}")
    if bad or tapped or not lists:
        print("IDLE STEERING IS NOT NOTHING")
        return 1
    print("idle steering launches what no steering launches")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, default=LIBRARY)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu_trace.csv"))
    parser.add_argument("--read", type=pathlib.Path, help="a trace that is there; runs nothing")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--idle-steering", action="store_true", help="check that idle steering launches nothing")
    parser.add_argument("command", nargs="*")
    arguments = parser.parse_args()
    if arguments.read is None:
        if not arguments.command:
            parser.error("a command, or --read")
        if not arguments.library.exists():
            sys.exit(f"{arguments.library} is not built (it needs the toolkit's cupti.h)")
        status = run_traced(arguments.command, arguments.library.resolve(), arguments.out)
        if status != 0:
            return status
    nodes = read_nodes(arguments.read or arguments.out)
    return check_idle(nodes) if arguments.idle_steering else report(nodes, arguments.steps)


if __name__ == "__main__":
    sys.exit(main())
