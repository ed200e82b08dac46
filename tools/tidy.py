#!/usr/bin/env python3
"""clang-tidy (allowlist in .clang-tidy, warnings are errors) over every source that is not a test."""

import subprocess
import sys

import compile_commands


def main():
    root = compile_commands.ROOT
    sources = [s for s in compile_commands.load() if not s.endswith("_test.cpp")]
    tidy = "clang-tidy-14"
    done_count = 0

    def lint(source):
        nonlocal done_count
        done = subprocess.run([tidy, "--quiet", "-p", root / "build" / "release", source], cwd=root,
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
