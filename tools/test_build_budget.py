#!/usr/bin/env python3
"""Tests of tools/build_budget.py: `python3 tools/test_build_budget.py`."""

import pathlib
import subprocess
import tempfile
import unittest

import build_budget

OBJECT = "src/rudder/cache/CMakeFiles/rudder_cache.dir/Unity/unity_0_cxx.cxx.o"


class BuildBudget(unittest.TestCase):
    def test_objects_belong_to_rooms(self):
        self.assertEqual(build_budget.room_of(OBJECT), "cache")
        self.assertEqual(build_budget.room_of("src/rudder/cache/CMakeFiles/cache_test.dir/a.cpp.o"), "cache tests")
        self.assertEqual(build_budget.room_of("src/rudder/steer/train/CMakeFiles/rudder_steer_train.dir/a.o"), "steer")
        self.assertEqual(build_budget.room_of("apps/CMakeFiles/rudder.dir/main.cpp.o"), "apps")
        self.assertEqual(build_budget.room_of("tests/metamorphic/CMakeFiles/graph_test.dir/a.o"), "tests")
        self.assertEqual(build_budget.room_of("src/rudder/cuda/CMakeFiles/rudder_cuda.dir/kernels/a.cu.o"), "kernels")
        self.assertEqual(build_budget.room_of("CMakeFiles/somelib.dir/a.cc.o"), "somelib")

    def test_the_last_compile_of_an_object_counts(self):
        objects = build_budget.costs_by_object([f"9.5 {OBJECT}\n", f"250 {OBJECT}\n"])
        self.assertEqual(build_budget.costs_by_room(objects), {"cache": 250.0})

    def test_growth_past_the_budget_fails(self):
        baseline = {"cache": 4000.0}  # may take 5,200 MB, 4,880 where it is alone
        self.assertEqual(list(build_budget.over_budget({"cache": 4880.0}, baseline)), [])
        self.assertIn("cache: ", list(build_budget.over_budget({"cache": 5201.0}, baseline))[0])

    def test_a_heavy_header_that_all_read_fails(self):
        baseline = {f"room {i}": 1000.0 for i in range(20)}  # each may take 1,450 MB, all of them 23,600
        heavy = {room: cost + 200.0 for room, cost in baseline.items()}
        errors = list(build_budget.over_budget(heavy, baseline))
        self.assertEqual(["all rooms"], [error.split(":")[0] for error in errors])

    def test_another_compiler_is_not_growth(self):
        self.assertEqual(list(build_budget.over_budget({"cache": 9700.0}, {"cache": 4000.0}, 2.0)), [])
        self.assertIn("cache: ", list(build_budget.over_budget({"cache": 2700.0}, {"cache": 4000.0}, 0.5))[0])

    def test_a_new_room_needs_a_row(self):
        self.assertEqual(list(build_budget.over_budget({"moe": 199.0}, {"all": 10.0})), [])
        self.assertIn("moe: ", list(build_budget.over_budget({"moe": 211.0}, {"all": 10.0}))[0])

    def test_rows_of_a_preset(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "baseline.csv"
            path.write_text("preset,room,cost\nrelease,cache,450\nreference,MB,110\nasan,cache,900\n")
            self.assertEqual(build_budget.read_baseline("release", path), {"cache": 450.0})
            self.assertEqual(build_budget.read_baseline("reference", path), {"MB": 110.0})


class Launcher(unittest.TestCase):
    """What the launcher of the compilers writes, prints and returns."""

    def compiled(self, source, *flags):
        """A compile of `source`: its return code, what it printed, and the log."""
        with tempfile.TemporaryDirectory() as folder:
            path, log = pathlib.Path(folder) / "a.cpp", pathlib.Path(folder) / "log"
            path.write_text(source)
            run = subprocess.run([build_budget.LAUNCHER, log, "g++", *flags, "-c", path, "-o", path.with_suffix(".o")],
                                 text=True, capture_output=True, check=False)
            return run.returncode, run.stdout + run.stderr, log.read_text() if log.exists() else ""

    def test_a_heavy_header_costs(self):
        costs = []
        for source in ("int f();\n", "#include <vector>\n", "#include <algorithm>\n#include <functional>\n#include <map>\n"):
            code, printed, log = self.compiled(source)
            self.assertEqual((code, printed), (0, ""))
            costs.append(float(log.split()[0]))
        self.assertLess(costs[0] * 2, costs[1])
        self.assertLess(costs[1] * 1.5, costs[2])

    def test_costs_are_the_same_again(self):
        source = "#include <vector>\nint f() { return std::vector<int>{1, 2}.size(); }\n"
        self.assertEqual(self.compiled(source)[2].split()[0], self.compiled(source)[2].split()[0])

    def test_what_a_compiler_says_stays(self):
        code, printed, _ = self.compiled("int f(int a) { int b; return 1; }\n", "-Wall")
        self.assertEqual(code, 0)
        self.assertIn("unused variable", printed)
        self.assertNotIn("TOTAL", printed)
        code, printed, log = self.compiled("int f( { }\n")
        self.assertNotEqual(code, 0)
        self.assertIn("error", printed)
        self.assertEqual(log, "")


if __name__ == "__main__":
    unittest.main()
