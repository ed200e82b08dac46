#!/usr/bin/env python3
"""Every header compiles alone, with the flags of a source file of its room. One that did is not
compiled again before it or a header that it includes changes (tools/clean_cache.py)."""

import pathlib
import subprocess
import sys

import compile_commands
from clean_cache import CleanCache


def flags_for(header, commands):
    """Include paths, defines and the standard of a source beside the header (or any of the room)."""
    room = pathlib.PurePosixPath(header).parent
    if room.name == "kernels":  # their headers are read by the host files of the folder above
        room = room.parent
    beside = [c for c in commands if pathlib.PurePosixPath(c).parent == room and c.endswith(".cpp")]
    arguments = commands[beside[0]] if beside else next(iter(commands.values()))
    flags = []
    words = iter(arguments)
    for word in words:
        if word == "-isystem":
            flags += [word, next(words)]
        elif word.startswith(("-I", "-D", "-std=", "-W", "-m")):
            flags.append(word)
    return flags


def main():
    commands = compile_commands.load()
    out = subprocess.run(["git", "ls-files", "src/*.h", "apps/*.h"], cwd=compile_commands.ROOT,
                         check=True, capture_output=True)
    headers = out.stdout.decode().split()
    if not any(source.startswith("src/rudder/cuda/") for source in commands):
        headers = [h for h in headers if not h.startswith("src/rudder/cuda/")]  # no toolkit here

    version = subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout
    cache = CleanCache("headers", version)
    flags = {header: flags_for(header, commands) for header in headers}
    digests = {header: cache.digest(header, flags[header]) for header in headers}

    def check(header):
        command = ["g++", *flags[header], "-fsyntax-only", "-x", "c++", "-"]
        text = f'#include "{compile_commands.ROOT / header}"\n'
        done = subprocess.run(command, cwd=compile_commands.ROOT, input=text, capture_output=True,
                              text=True)
        if done.returncode == 0:
            cache.add([digests[header]])
            return ""
        return f"{header} does not compile alone:\n{done.stderr}"

    unknown = [header for header in headers if not cache.is_clean(digests[header])]
    errors = compile_commands.run_all(unknown, check)
    cache.save()
    print("\n".join(errors), end="\n" if errors else "")
    print(f"{len(headers)} headers, {len(unknown)} of them compiled, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
