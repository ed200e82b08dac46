#!/usr/bin/env python3
"""Every header compiles alone, with the flags of a source file of its room.

The build proves it of a header that its own source (x.cpp of x.h) includes first; the others
are compiled here.
"""

import pathlib
import re
import subprocess
import sys

import compile_commands


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


def is_first_of_its_source(header, commands):
    source = header.removesuffix(".h") + ".cpp"
    if source not in commands:
        return False
    first = re.search(r'^#include [<"](.*)[>"]', (compile_commands.ROOT / source).read_text(), re.M)
    return first is not None and header.endswith("/" + first[1])


def main():
    commands = compile_commands.load()
    out = subprocess.run(["git", "ls-files", "src/*.h", "apps/*.h"], cwd=compile_commands.ROOT,
                         check=True, capture_output=True)
    headers = out.stdout.decode().split()
    if not any(source.startswith("src/rudder/cuda/") for source in commands):
        headers = [h for h in headers if not h.startswith("src/rudder/cuda/")]  # no toolkit here

    def check(header):
        command = ["g++", *flags_for(header, commands), "-fsyntax-only", "-x", "c++", "-"]
        text = f'#include "{compile_commands.ROOT / header}"\n'
        done = subprocess.run(command, cwd=compile_commands.ROOT, input=text, capture_output=True,
                              text=True)
        return "" if done.returncode == 0 else f"{header} does not compile alone:\n{done.stderr}"

    alone = [header for header in headers if not is_first_of_its_source(header, commands)]
    errors = compile_commands.run_all(alone, check)
    print("\n".join(errors), end="\n" if errors else "")
    print(f"{len(headers)} headers, {len(alone)} of them compiled here, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
