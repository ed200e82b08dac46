#!/usr/bin/env python3
"""Every gate has a fault that it stops: `python3 tools/test_gates.py`, which runs all tests of tools/ (test_*.py).

CHECKS has a line or more for each `check` of tools/check.sh: what is planted where, and what the check must say of it. The
check runs as check.sh runs it, in a copy of the tree. PARTS has the same for each `part` of tools/test.sh: a command that
fails, and with which the whole run must fail. A gate without a line fails here."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent
ROOT = TOOLS.parent
HEADER = "src/rudder/base/clock.h"
LEDGER = "bench/ledger/build.csv"
LIMITS = "tools/structure_limits.csv"


def many(count, line):
    return "".join(line.format(i) for i in range(count))


def name_clash(room):
    return f"namespace rudder::{room} {{\nnamespace {{\nint planted = 0;\n}}\n}}\n"


# (check, file, what is put behind its text or (pattern, text in its place), what the check says)
CHECKS = (
    ("format", HEADER, "int  planted;\n", "code should be clang-formatted"),
    ("rooms", HEADER, '#include "rudder/engine/engine.h"\n', "room base may not include room engine"),
    ("rooms", HEADER, "\n" * 500, "the budget is 500"),
    ("rooms", HEADER, 'auto* a = getenv("A");\n', r"\bgetenv\s*\( is banned"),
    ("rooms", HEADER, "#include <regex>\n", "use PCRE2"),
    ("rooms", HEADER, "auto* b = alloca(1);\n", "use a vector or an arena"),
    ("rooms", HEADER, "auto& c = std::cout;\n", "use base/log.h"),
    ("rooms", HEADER, "// /home/planted\n", "no absolute paths of a machine"),
    ("rooms", "src/rudder/cache/block_pool.cpp", name_clash("cache"), "planted is this source's own"),
    ("rooms", "src/rudder/cache/block_cache.cpp", name_clash("cache"), "planted is this source's own"),
    ("structure", HEADER, f"class Planted {{\n{many(31, 'void f{}();')}}};\n", "functions of base::Planted: 31"),
    ("structure", HEADER, f"struct Wide {{\n{many(21, 'int a{};')}}};\n", "fields of base::Wide: 21"),
    ("structure", HEADER, f"struct Asked {{\n{many(3, 'virtual bool q{}() const = 0;')}}};\n", "questions of base::Asked: 3"),
    ("structure", HEADER, '#include "rudder/cache/block_pool.h"\n', "cycle of rudder/base"),
    ("structure", "docs/adr/0001-rooms.md", "\n" * 60, "adr of 0001"),
    ("structure", "docs/adr/0002-step-contract.md", "x" * 160 * 60, "adr of 0002"),
    ("structure", "docs/adr/0003-dependencies.md", ("^# 0003: ", "# 0004: "), "adr 0003-dependencies.md: its title does not begin with '# 0003: '"),
    ("structure", LIMITS, ("functions,cpu::HostOps,.*", "functions,cpu::HostOps,999"), "still allows 999"),
    ("structure", LIMITS, "fields,base::Gone,1\n", "allows no more than any may have"),
    ("glossary", HEADER, "struct Place {};\n", "`Place`: place has another meaning"),
    ("glossary", "docs/api.md", "The memory plan.\n", "`memory plan`: plan has another meaning"),
    ("ledger", LEDGER, "planted\n", "1 columns, not 13"),
    ("ledger", "bench/ledger/host.csv", "planted\n" * 500, "rows, the limit is 500"),
    ("recipes", "tools/additions.csv", "a planted kind,planted,pragma once,0,,\n", "a planted kind touches "),
    ("recipes", "tools/additions.csv", "a planted kind,planted,pragma once,9999,1,\n", "files, the limit is 1"),
    ("recipes", "tools/additions.csv", "a lost kind,lost,no_such_w[o]rd,1,,\n", "lost, the example of a lost kind, is nowhere"),
    ("named tests", "SECURITY.md", (r"`\w+Test\.\w+`", "`Planted.Test`"), "there is no test Planted.Test"),
    ("named tests", "ARCHITECTURE.md", "`exec/planted.h`\n", "there is no exec/planted.h"),
    ("named tests", "docs/api.md", "[planted](contracts/planted.md)\n", "there is no contracts/planted.md"),
    ("named tests", "docs/fleet.md", "[planted](api.md#planted)\n", "there is no api.md#planted"),
    ("named tests", "README.md", "`make planted`\n", "there is no make planted"),
    ("named tests", "CONTRIBUTING.md", "`rudder serve --plant" "ed-flag`\n", "there is no --plant" "ed-flag"),
    ("types", "clients/python/src/rudder_client/ops.py", 'planted: int = "text"\n', "Incompatible types in assignment"),
)
# The same in a repository of a few files, since these checks compile.
COMPILED = (
    ("headers", "src/rudder/a/lacks.h", "#pragma once\nstd::string planted();\n", "lacks.h does not compile alone"),
    ("clang-tidy", "src/rudder/a/long.cpp", f"int f(int a) {{\n{many(101, 'a += {};' + chr(10))}return a;\n}}\n", "readability-function-size"),
    ("clang-tidy", "apps/slices.cpp", "struct A { int a = 0; };\nstruct B : A { int b = 0; };\nA slice(B b) { return b; }\n",
     "cppcoreguidelines-slicing"),
    ("clang-tidy", "src/rudder/a/implicit.h", "#pragma once\nstruct Implicit {\n  Implicit(int a);\n};\n", "google-explicit-constructor"),
    ("clang-tidy", "apps/main.cpp", '#include "rudder/a/implicit.h"\nint main() { return nothing; }\n', "clang-diagnostic-error"),
)
GOOD = {"src/rudder/a/good.h": "#pragma once\n#include <string>\nstd::string good();\n",
        "src/rudder/a/good.cpp": '#include "rudder/a/good.h"\nstd::string good() { return "good"; }\n'}

# (stage, part, the command that fails)
PARTS = (
    ("", "build", "build.sh release"),
    ("", "checks", "check.sh"),
    ("", "tests", "ctest --test-dir build/release"),
    ("", "tests of the Python client", "python -m pytest clients"),
    ("", "builds under asan and tsan, end to end", "build.sh asan"),
    ("", "builds under asan and tsan, end to end", "build.sh tsan"),
    ("", "builds under asan and tsan, end to end", "python -m pytest tests/e2e"),
    ("", "tests under asan", "ctest --test-dir build/asan"),
    ("", "tests under tsan", "ctest --test-dir build/tsan"),
    ("", "cost of builds", "build_budget.py release"),
    ("", "cost of builds", "build_budget.py asan"),
    ("", "cost of builds", "build_budget.py tsan"),
    ("release", "build", "build.sh release"),
    ("release", "checks", "check.sh"),
    ("release", "tests", "ctest --test-dir build/release"),
    ("release", "tests of the Python client", "python -m pytest clients"),
    ("release", "end to end", "python -m pytest tests/e2e"),
    ("asan", "build under asan", "build.sh asan-full"),
    ("asan", "tests under asan", "ctest --test-dir build/asan-full"),
    ("asan", "end to end under asan", "python -m pytest tests/e2e"),
    ("tsan", "build under tsan", "build.sh tsan"),
    ("tsan", "tests under tsan", "ctest --test-dir build/tsan"),
    ("busy", "build", "build.sh release"),
    ("busy", "tests beside busy loops", "ctest --test-dir build/release"),
    ("busy", "end to end beside busy loops", "python -m pytest tests/e2e"),
    ("busy", "end to end with a fast model", "slow_clients.py .venv/bin/python -m pytest tests/e2e"),
    ("fuzz", "build of the fuzz targets", "build.sh fuzz"),
    ("fuzz", "fuzz targets", "fuzz.sh"),
)
STUB = """#!/bin/sh
case "$(basename "$0") $*" in *"$PLANTED"*) echo "planted: $(basename "$0") $*"; exit 1 ;; esac
[ "$1" != speed ] || echo 1.00
"""


def run(command, root, **environment):
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


def commands_of(check_sh):
    """{check: its command} of the text of check.sh."""
    return {name: shlex.split(command.split("||")[0]) for name, command in re.findall(r'^ *check "([^"]+)" (.+)$', check_sh, re.M)}


def planted(fault, text):
    if isinstance(fault, str):
        return text + fault
    assert re.search(*fault[:1], text), fault
    return re.sub(*fault, text, count=1)


class Copy:
    """The tracked files: links, but for tools/, whose programs look for the tree around them, and what is planted."""

    def __init__(self, folder):
        self.root = pathlib.Path(folder)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                path = self.root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, path) if name.startswith("tools/") else path.symlink_to(ROOT / name)
        (self.root / ".venv").symlink_to(ROOT / ".venv")
        at = subprocess.run(["git", "rev-parse", "--absolute-git-dir"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        self.environment = {"GIT_DIR": at.strip(), "GIT_WORK_TREE": folder, "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")}

    def run(self, command, faults):
        """`faults`: {path: [what is planted there]}, which is gone afterwards."""
        for name, each in faults.items():
            text = (ROOT / name).read_text()
            for fault in each:
                text = planted(fault, text)
            (self.root / name).unlink()
            (self.root / name).write_text(text)
        try:
            return run(command, self.root, **self.environment)
        finally:
            for name in faults:
                shutil.copy(ROOT / name, self.root / name)


class Checks(unittest.TestCase):
    commands = commands_of((TOOLS / "check.sh").read_text())

    def test_each_has_a_fault(self):
        self.assertGreater(len(self.commands), 8)
        self.assertEqual(set(self.commands) - {"gates"}, {check for check, *_ in CHECKS + COMPILED})
        self.assertIn("new", commands_of('  check "new" python3 tools/new.py || status=1\n'))

    def test_each_stops_its_faults(self):
        with tempfile.TemporaryDirectory(prefix="rudder-gates-") as folder:
            copy = Copy(folder)
            for check in dict.fromkeys(check for check, *_ in CHECKS):
                faults, says = {}, []
                for _, path, fault, says_of_it in (each for each in CHECKS if each[0] == check):
                    faults.setdefault(path, []).append(fault)
                    says.append(says_of_it)
                command = [word for word in self.commands[check] if word != "${sources[@]}"]
                command += [HEADER] if command != self.commands[check] else []
                status, told = copy.run(command, faults)
                with self.subTest(check=check):
                    self.assertNotEqual(status, 0)
                    for each in says:
                        self.assertIn(each, told)


class CompiledChecks(unittest.TestCase):
    def check(self, folder, program, files):
        """(status, what it says) of a program of tools/ whose repository has these files."""
        root = pathlib.Path(folder)
        shutil.rmtree(root / "tools", ignore_errors=True)
        shutil.copytree(TOOLS, root / "tools", ignore=shutil.ignore_patterns("[!a-z]*", "*_model", "*_diff", "golden"))
        shutil.copy(ROOT / ".clang-tidy", root)
        if not (root / ".venv").exists():
            (root / ".venv").symlink_to(ROOT / ".venv")
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "build" / "lint").mkdir(parents=True, exist_ok=True)
        run(["git", "init", "-q"], root)
        run(["git", "add", "."], root)
        sources = {name: ["c++", f"-I{root}/src", "-std=c++20", "-o", "x"] for name in files if name.endswith(".cpp")}
        module = pathlib.Path(program).stem
        script = (f"import sys\nsys.path.insert(0, 'tools')\nimport compile_commands\ncompile_commands.load = lambda: {sources!r}\n"
                  f"import {module}\nsys.exit({module}.main())\n")
        return run([sys.executable, "-c", script], root, XDG_CACHE_HOME=str(root / "cache"))

    def test_each_stops_its_faults(self):
        for check in dict.fromkeys(check for check, *_ in COMPILED):
            program = Checks.commands[check][1]
            faults = [each[1:] for each in COMPILED if each[0] == check]
            with tempfile.TemporaryDirectory(prefix="rudder-gates-") as folder:
                with self.subTest(check=check):
                    self.assertEqual(self.check(folder, program, GOOD)[0], 0)
                    for _ in range(2):  # what was found wrong is not known as clean afterwards
                        status, told = self.check(folder, program, GOOD | {path: text for path, text, _ in faults})
                        self.assertEqual(status, 1, told)
                        for *_, says in faults:
                            self.assertIn(says, told)


class Parts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="rudder-gates-")
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        (self.root / "build").mkdir()
        for path in ("tools/build.sh", "tools/has_gpu.sh", "tools/check.sh", "tools/build_budget.py", "tools/slow_clients.py", "tools/fuzz.sh",
                     ".venv/bin/python", "bin/ctest"):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(STUB)
            (self.root / path).chmod(0o755)
        shutil.copy(TOOLS / "test.sh", self.root / "tools")

    def run_tests(self, stage, fault):
        return run(["tools/test.sh", *(["full", stage] if stage else [])], self.root, PLANTED=fault,
                   PATH=f"{self.root / 'bin'}:{os.environ['PATH']}")

    def test_each_has_a_fault(self):
        text = (TOOLS / "test.sh").read_text()
        self.assertEqual(set(re.findall(r' part "([^"]+)" \S', text)), {part for _, part, _ in PARTS})
        stages = re.search(r"set -- (.+)$", text, re.M)[1].split()
        self.assertEqual({stage for stage, *_ in PARTS}, {"", *stages})

    def test_each_fails_the_run(self):
        for stage in dict.fromkeys(stage for stage, *_ in PARTS):
            status, told = self.run_tests(stage, "nothing")
            self.assertEqual(status, 0, told)
            self.assertTrue(told.endswith("all green\n"), told)
            for _, part, _ in (each for each in PARTS if each[0] == stage):
                self.assertIn(f"| {part} | ", told)
        for stage, part, fault in PARTS:
            with self.subTest(stage=stage, part=part):
                status, told = self.run_tests(stage, fault)
                self.assertNotEqual(status, 0)
                self.assertIn(f"planted: {fault}", told)
                self.assertNotIn("all green", told)

    def test_processor_time_past_the_budget_fails_the_run(self):
        script = self.root / "tools" / "test.sh"
        script.write_text(planted((r"(?m)^CPU_MINUTES=\d+", "CPU_MINUTES=-1"), script.read_text()))
        status, told = self.run_tests("", "nothing")
        self.assertEqual(status, 1)
        self.assertIn("CPU-minutes, the budget is -1", told)
        self.assertIn("takes 1.00 x as long", told)


def main():
    tests = unittest.defaultTestLoader.discover(str(TOOLS), "test_*.py")
    return 0 if unittest.TextTestRunner(buffer=True).run(tests).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
