#!/usr/bin/env python3
"""Runs a command so that the servers under its test have ten times its speed: what the command starts has a core
for a tenth of the time, but for `rudder`, which has it always. To the tests that is a model ten times as fast,
with the same answers: whoever expects to be quicker than the model fails.

    tools/slow_clients.py .venv/bin/python -m pytest tests/e2e
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading

PERIOD_S = 0.2
SHARE = 0.1  # of it, in which they run
FAST = "rudder"


def processes():
    """{process: (its parent, its name)} of all that run."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            found[int(folder.name)] = (int(rest.split()[1]), name)
    return found


def slowed(root):
    """A process and all that came of it, but for servers."""
    known, found = processes(), [root]
    for parent in found:
        found += [each for each, (of, name) in known.items() if of == parent and name != FAST]
    return found


def send(number, to):
    for process in to:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def main():
    command = subprocess.Popen(sys.argv[1:])
    ended = threading.Event()

    def pace():
        known = [command.pid]
        while not ended.wait(PERIOD_S * SHARE):
            send(signal.SIGSTOP, known)
            known = slowed(command.pid)  # and what they have started meanwhile
            send(signal.SIGSTOP, known)
            ended.wait(PERIOD_S * (1 - SHARE))
            send(signal.SIGCONT, known)

    pacer = threading.Thread(target=pace)
    pacer.start()
    try:
        status = command.wait()
    finally:
        ended.set()
        pacer.join()
    return status


if __name__ == "__main__":
    sys.exit(main())
