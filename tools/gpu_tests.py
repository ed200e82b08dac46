#!/usr/bin/env python3
"""Runs the test binaries of a GPU, each suite in a process of its own, and prints one table last.

A fault of a kernel spoils every later test of its process, so after one what did not pass is run again,
one test a process. Standard library only; needs a driver and the binaries, no build tree:
    tools/gpu_tests.py [--filter REGEX] [--timeout SECONDS] [--slow] [--idle-steering RUDDER] BINARY...
    tools/gpu_tests.py --sanitizer BINARY...
With --idle-steering the server's binary runs last, traced: what it launches with steering on but unused
is what it launches without, kernel by kernel (tools/gpu_trace.py). --sanitizer runs the tests of small
shapes, which launch every kernel of ours, under each tool of compute-sanitizer (memcheck, racecheck,
initcheck, synccheck), several at a time."""

import argparse
import collections
import concurrent.futures
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import gpu_trace

ROOT = pathlib.Path(__file__).resolve().parent.parent
PASSED = re.compile(r"^\[       OK \] (\S+)", re.M)
FAULT = re.compile(r"CUDA error|^ended with status|^no end in", re.M)
SKIPPED = re.compile(r"^\[  SKIPPED \] (\S+)", re.M)

LOGGED = re.compile(r"^[\d-]+ [\d:.]+ (debug|info) ")  # by the code under test

MAX_ALONE = 30  # tests of a suite that are run again

Row = collections.namedtuple("Row", "binary suite tests failed seconds")

# Suites of a binary that are quick enough to be run a hundred times slower.
SMALL_SUITES = {
    "ops_conformance_cuda_test": ".*",
    "cuda_device_test": "OpsDevice|Fp8OpsDevice|AttentionDevice|RingProduct",
    "peer_device_test": "Gpus/Peer.*",
}
# Suites that take many minutes: they run with --slow alone, with as much more time.
SLOW = "Slow/"
SLOW_FACTOR = 12
# What wants much memory, or more than there is, and ranks that are late on purpose: a tool makes the others late, too.
LEFT_OUT = "OpsDevice.M*:OpsDevice.UploadConverts:*/Peer*.*Late/*:*/Peer*.ARank*:*/Peer*.RanksAt*:*/Peer*.Hosts*"
# racecheck gives up where a kernel of the library runs; and it takes a quarter of a second for a row that is sampled,
# which is the same whatever products are stored in.
RACECHECK_LEAVES_OUT = ("*Linear*:*Logits*:*ThreadsDoNot*:OpsDevice.AGraph*:Fp8OpsDevice.*:*Many*:*Sample*/*F8*:"
                        "*Sample*invariant:*Score*/*F8*:*Score*invariant")
# Ranks on several GPUs: their kernels wait for each other, so none can be launched behind the end of another, and
# initcheck does not see what another GPU stores.
SEVERAL_GPUS = {"peer_device_test"}
TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]
TOOL_AT_ONCE = 4  # a GPU takes them in turns, the host's part runs side by side
SUMMARY = re.compile(r"SUMMARY: (\d+) (?:error|hazard)")
Checked = collections.namedtuple("Checked", "tool binary suite tests failed findings seconds output")


def gpu_count():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def list_tests(binary):
    """{suite: [full names]} as --gtest_list_tests prints them."""
    out = subprocess.run([binary, "--gtest_list_tests"], cwd=ROOT, capture_output=True, text=True,
                         check=True)
    suites = collections.OrderedDict()
    suite = ""
    for line in out.stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if name.endswith(".") and not name.startswith(" "):
            suite = name
        elif name.startswith("  "):
            suites.setdefault(suite[:-1], []).append(suite + name.strip())
    return suites


def run(binary, names, timeout):
    """(output, names that did not pass, whether a fault may be why)."""
    command = [binary, "--gtest_brief=0", "--gtest_filter=" + ":".join(names)]
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, text=True, errors="replace")
        output = done.stdout
        if done.returncode not in (0, 1):
            output += f"\nended with status {done.returncode}\n"
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace") + f"\nno end in {timeout} s\n"
    fine = set(PASSED.findall(output)) | set(SKIPPED.findall(output))
    failed = [name for name in names if name not in fine]
    return output, failed, bool(failed) and FAULT.search(output) is not None


def without_passes(output, limit=20000):
    lines = [l for l in output.splitlines()
             if not l.startswith(("[ RUN ", "[       OK", "[-----", "[=====", "Note: ")) and not LOGGED.match(l)]
    text = "\n".join(lines).strip()
    return text if len(text) <= limit else text[:limit] + "\n... (cut)"


def run_suite(binary, suite, names, timeout):
    start = time.monotonic()
    output, failed, fault = run(binary, names, timeout)
    print(f"--- {pathlib.Path(binary).name} {suite}: {len(names) - len(failed)} of {len(names)} pass")
    shown = without_passes(output)
    if shown:
        print(shown)
    for name in failed:
        print(f"not passed: {name}")
    sys.stdout.flush()
    if fault and len(names) > 1:
        still = failed[MAX_ALONE:]
        for name in failed[:MAX_ALONE]:
            output, again, _ = run(binary, [name], timeout)
            still += again
            print(f"--- alone: {name}: {'FAILS' if again else 'passes'}")
            if again:
                print(without_passes(output, 3000), flush=True)
        failed = still
    return Row(pathlib.Path(binary).name, suite, len(names), len(failed), time.monotonic() - start)


def check_idle_steering(rudder, library, timeout):
    """A row as of a suite with one test."""
    name = pathlib.Path(rudder).name
    if not library.exists():
        return Row(name, "idle steering (not run: no CUPTI)", 0, 0, 0)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        # Both sessions multiply by the kernels of one policy, and no measured time says what a step has.
        bench = [rudder, "bench", "steering", "--device", "cuda", "--load-format", "dummy", "--like", "qwen3-0.6b",
                 "--kernel-policy", "policy.json", "--modes", "enabled_idle", "--concurrency", "16",
                 "--output-lens", "64", "--rounds", "2", "--requests", "16", "--max-itl-ms", "0"]
        command = [sys.executable, gpu_trace.__file__, "--library", str(library), "--idle-steering", "--", *bench]
        try:
            done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=timeout, text=True, errors="replace")
            output, failed = done.stdout, done.returncode != 0
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode(errors="replace") + f"\nno end in {timeout} s\n"
            failed = True
    print(f"--- {name} idle steering: {'FAILS' if failed else 'passes'}\n{output.strip()}", flush=True)
    return Row(name, "idle steering", 1, int(failed), time.monotonic() - start)


def check(tool, binary, suite, timeout):
    """The small tests of one suite under one tool."""
    start = time.monotonic()
    tests = f"{suite}.*-{LEFT_OUT}"
    if tool == "racecheck":
        tests += ":" + RACECHECK_LEAVES_OUT
    # Not the library's kernels. What calls on the host return is checked where they are made, and peer access that is
    # enabled already is no fault.
    options = ["--report-api-errors", "no"] if tool == "memcheck" else []
    command = ["compute-sanitizer", "--tool", tool, "--kernel-name", "kernel_substring=rudder", *options,
               "--print-limit", "20", binary, "--gtest_brief=0", "--gtest_filter=" + tests]
    environment = dict(os.environ)
    if pathlib.Path(binary).name not in SEVERAL_GPUS:  # one kernel at a time: the tools lose track of those that overlap
        environment["CUDA_LAUNCH_BLOCKING"] = "1"
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout, text=True, errors="replace")
        output = done.stdout
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace") + f"\nno end in {timeout} s\n"
    started = set(re.findall(r"^\[ RUN      \] (\S+)", output, re.M))
    fine = set(PASSED.findall(output)) | set(SKIPPED.findall(output))
    summary = SUMMARY.findall(output)
    findings = sum(map(int, summary)) if summary else -1
    return Checked(tool, pathlib.Path(binary).name, suite, len(started), len(started - fine), findings,
                   time.monotonic() - start, output)


def sanitize(binaries, tools, suites, timeout):
    jobs = [(tool, binary, suite, timeout) for tool in tools for binary in binaries
            for suite in list_tests(binary)
            if re.fullmatch(SMALL_SUITES.get(pathlib.Path(binary).name, ""), suite) and re.search(suites, suite)
            and not (tool == "initcheck" and pathlib.Path(binary).name in SEVERAL_GPUS)]
    good = bool(jobs)
    print(f"{'tool':<10} {'binary':<26} {'suite':<24} {'tests':>6} {'failed':>7} {'findings':>9} {'seconds':>8}")
    with concurrent.futures.ThreadPoolExecutor(TOOL_AT_ONCE) as pool:
        for done in concurrent.futures.as_completed([pool.submit(check, *job) for job in jobs]):
            row = done.result()
            is_left_out = "Running 0 tests" in row.output  # no summary then
            findings = row.findings if row.findings >= 0 else "-" if is_left_out else "no end"
            print(f"{row.tool:<10} {row.binary:<26} {row.suite:<24} {row.tests:>6} {row.failed:>7} {findings:>9} "
                  f"{row.seconds:>8.1f}", flush=True)
            if (row.findings != 0 or row.failed) and not is_left_out:
                good = False
                print(without_passes(row.output), flush=True)
    print("nothing found" if good else "SOMETHING IS FOUND, OR DID NOT END")
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filter", default="", help="only suites that this regular expression finds")
    parser.add_argument("--timeout", type=float, default=300, help="seconds of one process")
    parser.add_argument("--slow", action="store_true", help="the suites Slow/ too")
    parser.add_argument("--idle-steering", metavar="RUDDER", help="the server's binary; see above")
    parser.add_argument("--trace-library", type=pathlib.Path, default=gpu_trace.LIBRARY)
    parser.add_argument("--sanitizer", action="store_true", help="small tests under compute-sanitizer")
    parser.add_argument("--tools", default=",".join(TOOLS), help="of compute-sanitizer, with commas between")
    parser.add_argument("binaries", nargs="+")
    arguments = parser.parse_args()
    if gpu_count() == 0:
        print("there is no GPU here: the tests labelled gpu were not run")
        return 1
    rows = []
    binaries = [str(pathlib.Path(binary).resolve()) for binary in arguments.binaries]
    if arguments.sanitizer:
        return sanitize(binaries, arguments.tools.split(","), arguments.filter, arguments.timeout)
    for binary in binaries:
        for suite, names in list_tests(binary).items():
            is_slow = suite.startswith(SLOW)
            if re.search(arguments.filter, suite) and (arguments.slow or not is_slow):
                rows.append(run_suite(binary, suite, names, arguments.timeout * (SLOW_FACTOR if is_slow else 1)))
    if arguments.idle_steering:
        rows.append(check_idle_steering(str(pathlib.Path(arguments.idle_steering).resolve()),
                                        arguments.trace_library.resolve(), arguments.timeout))
    print(f"\n{'binary':<26} {'suite':<44} {'tests':>6} {'failed':>7} {'seconds':>8}")
    for row in rows:
        print(f"{row.binary:<26} {row.suite:<44} {row.tests:>6} {row.failed:>7} {row.seconds:>8.1f}")
    failed = sum(row.failed for row in rows)
    print(f"{sum(row.tests for row in rows)} tests, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
