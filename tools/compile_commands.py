"""The compile commands of a preset, for the checks that compile or lint single files."""

import json
import os
import pathlib
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent


def load(preset="lint"):
    """Configures the preset; returns {source path relative to the root: [arguments]}, of our own sources."""
    database = ROOT / "build" / preset / "compile_commands.json"
    subprocess.run(["cmake", "--preset", preset], cwd=ROOT, check=True, capture_output=True)
    commands = {}
    for entry in json.loads(database.read_text()):
        path = pathlib.Path(entry["file"])
        if path.is_relative_to(ROOT):
            commands.setdefault(str(path.relative_to(ROOT)), shlex.split(entry["command"]))
    return commands


def run_all(jobs, run):
    """Runs `run(job)` for each job on every core; returns the non-empty results in job order."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [result for result in pool.map(run, jobs) if result]
