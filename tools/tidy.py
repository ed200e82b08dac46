#!/usr/bin/env python3
"""clang-tidy (allowlist in .clang-tidy, warnings are errors) over every source that is not a test.

Most of its time goes into the headers, so sources with like flags are linted as one translation
unit, in which each main has a name of its own; where names clash, its halves are. A unit is written to a folder of its own, where clang-tidy would
find no settings: they are named, and so are the folders of ours, since to it what a unit includes is a
header. A source that was found clean is not linted again before it, a
header or the settings change (tools/clean_cache.py).

tools/tidy_known.csv has what was there when the settings were first found again: how often a check
speaks of a file. No more is allowed, and nothing is added to it.
"""

import collections
import csv
import pathlib
import re
import subprocess
import sys
import tempfile

import compile_commands
from clean_cache import CleanCache

TIDY = compile_commands.ROOT / ".venv" / "bin" / "clang-tidy"
SETTINGS = compile_commands.ROOT / ".clang-tidy"
OURS = "(src/rudder|apps|tests|bench)/"  # below the root
GROUP_SIZE = 64
GCC_ONLY = {"-Wno-restrict", "-fno-reorder-blocks-and-partition", "-Wno-maybe-uninitialized"}  # errors to clang
PLUGIN = re.compile(r"-D\w+_EXPORTS")  # CMake's; plugins have an entry of one name
MAIN = re.compile(r"^int main\(", re.M)
COMPILE_ERROR = re.compile(r"\[clang-diagnostic-error\]")
FINDING = re.compile(r"^(\S+):(\d+):\d+: error: .*\[([\w.-]+)(?:,-warnings-as-errors)?\]$", re.M)
KNOWN = compile_commands.ROOT / "tools" / "tidy_known.csv"


def flags(command):
    """The compiler's flags, without its name, the files and what only GCC knows."""
    words = command[next(i for i, word in enumerate(command) if word.startswith("-")):]
    words = words[:words.index("-o")]
    return [word for word in words if word not in GCC_ONLY]


def parted(words):
    """(those that give or find names: -D, -I, -isystem with its folder; those that say which language, machine and plugin it is)
    of a compiler's flags. How it makes code is of no interest here."""
    names, kinds, words = [], [], iter(words)
    for word in words:
        if word == "-isystem":
            names.append((word, next(words)))
        elif word.startswith(("-m", "-std")) or PLUGIN.fullmatch(word):
            kinds.append(word)
        elif word.startswith(("-D", "-I", "-isystem", "-W")):
            names.append((word,))
    return names, kinds


def flags_of_all(commands):
    """Flags with which all of these are compiled: they are of one kind."""
    parts = [parted(flags(command)) for command in commands]
    names = dict.fromkeys(name for each, _ in parts for name in each)
    return ["-O2", *parts[0][1], *(word for name in names for word in name)]


def groups(commands):
    """Lists of sources that may be one translation unit, of `commands` by source. Neighbours come together:
    they include the same headers."""
    alike = collections.defaultdict(list)
    for source, command in sorted(commands.items()):
        alike[tuple(parted(flags(command))[1])].append(source)
    for sources in alike.values():
        count = -(-len(sources) // GROUP_SIZE)
        yield from (sources[i * len(sources) // count:(i + 1) * len(sources) // count] for i in range(count))


def text_of_unit(sources, root):
    """What includes them all. Each main is renamed, since a program has one."""
    for number, source in enumerate(sources):
        line = f'#include "{root / source}"\n'
        renames = len(sources) > 1 and MAIN.search((root / source).read_text())
        yield f"#define main main_{number}\n{line}#undef main\n" if renames else line


def run_tidy(source, words, root):
    # A unit includes sources, which is what bugprone-suspicious-include is against.
    done = subprocess.run([TIDY, "--quiet", f"--config-file={SETTINGS}", "--checks=-bugprone-suspicious-include",
                           f"--header-filter=^{re.escape(str(root))}/{OURS}", str(source), "--", *words,
                           "-Wno-unknown-warning-option",
                           "-Wno-deprecated-declarations"],  # of GCC's library, by itself
                          cwd=root, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def known_findings():
    """How often a check may speak of a file, by (file, check)."""
    with KNOWN.open(newline="") as file:
        return {(row["file"], row["check"]): int(row["count"]) for row in csv.DictReader(file)}


def is_known(found, root):
    """Whether a unit has nothing but findings that are listed."""
    lines = {(pathlib.Path(path).resolve(), line, check) for path, line, check in FINDING.findall(found)}
    counts = collections.Counter((path.relative_to(root).as_posix(), check) for path, _, check in lines
                                 if path.is_relative_to(root))
    known = known_findings()
    return bool(lines) and sum(counts.values()) == len(lines) and all(count <= known.get(key, 0)
                                                                      for key, count in counts.items())


def lint(sources, commands, folder, root=compile_commands.ROOT):
    """What is wrong with these sources, as text; empty when nothing is. `folder`: for units."""
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".cpp") as unit:
        unit.writelines(text_of_unit(sources, root))
        unit.flush()
        found = run_tidy(unit.name, [*flags_of_all([commands[source] for source in sources]), *(["-Wno-shadow"] if len(sources) > 1 else [])], root)
    if len(sources) == 1 or not COMPILE_ERROR.search(found):
        return "" if is_known(found, root) else found
    middle = len(sources) // 2
    return lint(sources[:middle], commands, folder, root) + lint(sources[middle:], commands, folder, root)


def main():
    commands = {source: command for source, command in compile_commands.load().items()
                if source.endswith(".cpp") and not source.endswith("_test.cpp")}
    version = subprocess.run([TIDY, "--version"], check=True, capture_output=True, text=True).stdout
    cache = CleanCache("tidy", version + SETTINGS.read_text() + KNOWN.read_text() + pathlib.Path(__file__).read_text())
    digests = {source: cache.digest(source, flags(command)) for source, command in commands.items()}
    unknown = {s: c for s, c in commands.items() if not cache.is_clean(digests[s])}
    units = sorted(groups(unknown), key=len, reverse=True)  # the longest first, so that all cores end together

    folder = compile_commands.ROOT / "build" / "lint" / "units"
    folder.mkdir(exist_ok=True)

    def check(sources):
        found = lint(sources, commands, folder)
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
