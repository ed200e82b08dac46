#!/usr/bin/env python3
"""clang-tidy (allowlist in .clang-tidy, warnings are errors) over every source that is not a test."""

import subprocess
import sys

import compile_commands


GCC_ONLY = {"-Wno-restrict", "-fno-reorder-blocks-and-partition"}  # errors to clang


def flags(command):
    """The compiler's flags, without its name, the files and what only GCC knows."""
    words = command[next(i for i, word in enumerate(command) if word.startswith("-")):]
    words = words[:words.index("-o")]
    return [word for word in words if word not in GCC_ONLY]


def main():
    root = compile_commands.ROOT
    commands = compile_commands.load()
    sources = [s for s in commands if not s.endswith("_test.cpp")]
    tidy = "clang-tidy-14"
    done_count = 0

    def lint(source):
        nonlocal done_count
        done = subprocess.run([tidy, "--quiet", source, "--", *flags(commands[source])], cwd=root,
                              capture_output=True, text=True)
        done_count += 1
        if done_count % 20 == 0:
            print(f"{done_count}/{len(sources)}", flush=True)
        return "" if done.returncode == 0 else f"{source}:\n{done.stdout}{done.stderr}"

    errors = compile_commands.run_all(sources, lint)
    print("\n".join(errors), end="\n" if errors else "")
    print(f"{len(sources)} sources, {len(errors)} with errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
