#!/usr/bin/env python3
"""clang-tidy (allowlist in .clang-tidy, warnings are errors) over every source that is not a test.

Most of its time goes into the headers, so sources with the same flags are linted as one translation
unit; where names clash, its halves are. A source that was found clean is not linted again before it, a
header or the settings change (tools/clean_cache.py).
"""

import collections
import re
import subprocess
import sys
import tempfile

import compile_commands
from clean_cache import CleanCache

TIDY = "clang-tidy-14"
GROUP_SIZE = 64
GCC_ONLY = {"-Wno-restrict", "-fno-reorder-blocks-and-partition", "-Wno-maybe-uninitialized"}  # errors to clang
MAIN = re.compile(r"^int main\(", re.M)
COMPILE_ERROR = re.compile(r"\[clang-diagnostic-error\]")


def flags(command):
    """The compiler's flags, without its name, the files and what only GCC knows."""
    words = command[next(i for i, word in enumerate(command) if word.startswith("-")):]
    words = words[:words.index("-o")]
    return [word for word in words if word not in GCC_ONLY]


def groups(commands):
    """Lists of sources that may be one translation unit, of `commands` by source. Neighbours come together:
    they include the same headers. One source of a unit may have a main."""
    alike = collections.defaultdict(list)
    for source, command in sorted(commands.items()):
        alike[tuple(flags(command))].append(source)
    for sources in alike.values():
        mains = [source for source in sources if MAIN.search((compile_commands.ROOT / source).read_text())]
        others = [source for source in sources if source not in mains]
        count = -(-len(others) // GROUP_SIZE)
        units = [others[i * len(others) // count:(i + 1) * len(others) // count] for i in range(count)]
        units += [[] for _ in mains[count:]]
        for unit, source in zip(units, mains):
            unit.append(source)
        yield from units


def run_tidy(source, words):
    # A unit of several sources includes them, which is what bugprone-suspicious-include is against.
    done = subprocess.run([TIDY, "--quiet", "--checks=-bugprone-suspicious-include", str(source), "--", *words,
                           "-Wno-unknown-warning-option"],
                          cwd=compile_commands.ROOT, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def lint(sources, commands):
    """What is wrong with these sources, as text; empty when nothing is."""
    words = flags(commands[sources[0]])
    if len(sources) == 1:
        return run_tidy(sources[0], words)
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as unit:
        unit.writelines(f'#include "{compile_commands.ROOT / source}"\n' for source in sources)
        unit.flush()
        found = run_tidy(unit.name, words)
    if not COMPILE_ERROR.search(found):
        return found
    middle = len(sources) // 2
    return lint(sources[:middle], commands) + lint(sources[middle:], commands)


def main():
    commands = {source: command for source, command in compile_commands.load().items()
                if source.endswith(".cpp") and not source.endswith("_test.cpp")}
    version = subprocess.run([TIDY, "--version"], check=True, capture_output=True, text=True).stdout
    cache = CleanCache("tidy", version + (compile_commands.ROOT / ".clang-tidy").read_text())
    digests = {source: cache.digest(source, flags(command)) for source, command in commands.items()}
    unknown = {s: c for s, c in commands.items() if not cache.is_clean(digests[s])}
    units = sorted(groups(unknown), key=len, reverse=True)  # the longest first, so that all cores end together

    def check(sources):
        found = lint(sources, commands)
        if not found:
            cache.add(digests[source] for source in sources)
        return found

    errors = compile_commands.run_all(units, check)
    cache.save()
    print("\n".join(errors), end="\n" if errors else "")
    print(f"{len(commands)} sources, {sum(map(len, units))} of them linted in {len(units)} units, {len(errors)} with errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
