#!/usr/bin/env python3
"""Every header compiles alone, with the flags of a source file of its room. One that did is not
compiled again before it or a header that it includes changes (tools/clean_cache.py).

Nearly all of such a compile goes into what many headers include. That is precompiled where it pays
(tools/preludes.py, which says why it hides nothing). And one compile proves a chain of headers, each of
which includes the one before it: a header finds no name there that it would not have read itself.
"""

import collections
import pathlib
import subprocess
import sys
import tempfile

import compile_commands
import preludes
from clean_cache import CleanCache, closure, text_of

COMPILER = "clang++-14"  # reads of a precompiled header only what is used
GCC_ONLY = {"-Wno-restrict", "-Wno-maybe-uninitialized"}  # errors to clang


def flags_for(header, commands):
    """Include paths, defines and the standard of a source beside the header (or any of the room)."""
    room = pathlib.PurePosixPath(header).parent
    if "kernels" in room.parts:  # their headers are read by the host files of the folder above
        room = pathlib.PurePosixPath(*room.parts[:room.parts.index("kernels")])
    beside = [c for c in commands if pathlib.PurePosixPath(c).parent == room and c.endswith(".cpp")]
    arguments = commands[beside[0]] if beside else next(iter(commands.values()))
    flags = []
    words = iter(arguments)
    for word in words:
        if word == "-isystem":
            flags.append(word + next(words))
        elif word.startswith(("-I", "-D", "-std=", "-W", "-m")) and word not in GCC_ONLY:
            flags.append(word)
    return flags


def prelude_flags(flags):
    """Those that all headers have, and every folder where one finds others."""
    lists = list(flags.values())
    common = [flag for flag in lists[0] if all(flag in others for others in lists)]
    folders = {flag for each in lists for flag in each if flag.startswith(("-I", "-isystem"))}
    return common + sorted(folders - set(common))


def run_compiler(arguments, text, root):
    return subprocess.run([COMPILER, *arguments, "-"], cwd=root, input=text, capture_output=True, text=True)


def includes(headers):
    """The lines that include these: <headers> of libraries, and paths of ours."""
    names = sorted(name if isinstance(name, str) else f'"{name}"' for name in headers)
    return "".join(f"#include {name}\n" for name in reversed(names))  # those of libraries first


def chains(ours):
    """Lists of headers, of which each includes the one before it. `ours`: of each, what it includes and itself."""
    found = []
    for header in sorted(ours, key=lambda header: (len(ours[header]), header)):
        chain = max((chain for chain in found if chain[-1] in ours[header]), key=lambda chain: len(ours[chain[-1]]), default=None)
        if chain is None:
            found.append([header])
        else:
            chain.append(header)
    return found


def check(flags, folder, root=compile_commands.ROOT):
    """{header: error, empty if it compiles alone}. `flags`: of each header, a path below `root`. `folder`: an
    empty one, for what is precompiled."""
    ours = {root / header: frozenset(closure(root / header)) for header in flags}
    libraries = {header: preludes.library_headers(map(text_of, paths)) for header, paths in ours.items()}
    libraries = {header: names for header, names in libraries.items() if names is not None}
    common = prelude_flags(flags) if flags else []
    files, made, errors = {}, {}, {}

    def read_files(name):
        done = run_compiler([*common, "-M", "-x", "c++"], includes([name]), root)
        files[name] = preludes.file_sizes(done.stdout) if done.returncode == 0 else {}  # its users will tell

    def make(prelude):
        number, names = prelude
        path = pathlib.Path(folder) / f"{number}.pch"
        done = run_compiler([*common, "-fpch-instantiate-templates", "-x", "c++-header", "-o", str(path)],
                            includes(names), root)
        if done.returncode == 0:  # else its users are compiled without
            made[names] = path

    def compile_chain(chain):
        prelude = made.get(chosen.get(chain[0]))
        before = ["-include-pch", str(prelude)] if prelude else []
        text = "".join(f'#include "{path}"\n' for path in chain)
        names = [path.relative_to(root).as_posix() for path in chain]
        done = run_compiler([*flags[names[0]], *before, "-fsyntax-only", "-x", "c++"], text, root)
        if done.returncode != 0 and len(chain) > 1:  # which of them?
            for path in chain:
                compile_chain([path])
            return
        errors.update(dict.fromkeys(names, "" if done.returncode == 0 else f"{names[0]} does not compile alone:\n{done.stderr}"))

    def all_chains():
        """Of headers with the same prelude and flags. One that may not include what it names has its own."""
        alike = collections.defaultdict(dict)
        for path, names in ours.items():
            header = path.relative_to(root).as_posix()
            alike[tuple(flags[header]), chosen.get(path), None if path in libraries else path][path] = names
        return [chain for each in alike.values() for chain in chains(each)]

    compile_commands.run_all(sorted(set().union(*libraries.values())), read_files)
    chosen = preludes.Choice(libraries, ours, files).prelude_of
    compile_commands.run_all(enumerate({names for names in chosen.values() if names}), make)
    compile_commands.run_all(all_chains(), compile_chain)
    return errors


def main():
    commands = compile_commands.load()
    out = subprocess.run(["git", "ls-files", "src/*.h", "apps/*.h"], cwd=compile_commands.ROOT,
                         check=True, capture_output=True)
    headers = out.stdout.decode().split()
    if not any(source.startswith("src/rudder/cuda/") for source in commands):
        headers = [h for h in headers if not h.startswith("src/rudder/cuda/")]  # no toolkit here

    version = subprocess.run([COMPILER, "--version"], check=True, capture_output=True, text=True).stdout
    cache = CleanCache("headers", version)
    flags = {header: flags_for(header, commands) for header in headers}
    digests = {header: cache.digest(header, flags[header]) for header in headers}
    unknown = {header: flags[header] for header in headers if not cache.is_clean(digests[header])}

    with tempfile.TemporaryDirectory(prefix="rudder-headers-") as folder:
        errors = check(unknown, folder)
    cache.add(digests[header] for header, error in errors.items() if not error)
    cache.save()
    wrong = [error for error in errors.values() if error]
    print("\n".join(wrong), end="\n" if wrong else "")
    print(f"{len(headers)} headers, {len(unknown)} of them compiled, {len(wrong)} errors")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
