#!/usr/bin/env python3
"""Tests of tools/build_budget.py: `python3 tools/test_build_budget.py`."""

import pathlib
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

    def test_an_object_costs_what_it_is_and_some_of_what_it_read(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for path, size in (("a.o", 3_000_000), ("b.o", 1_000_000), ("old.o", 1_000_000), ("heavy.h", 40_000_000)):
                (folder / path).write_bytes(bytes(size))
            deps = ("a.o: #deps 2, deps mtime 1 (VALID)\n    heavy.h\n    gone.h\n\n"
                    "b.o: #deps 0, deps mtime 1 (VALID)\n\nold.o: #deps 1, deps mtime 1 (STALE)\n    heavy.h\n\n")
            costs = build_budget.costs_by_object(deps, folder)
        self.assertEqual(costs, {"a.o": 5.0, "b.o": 1.0})

    def test_objects_of_a_room_add_up(self):
        self.assertEqual(build_budget.costs_by_room({OBJECT: 2.0, OBJECT.replace("_0_", "_1_"): 3.0}), {"cache": 5.0})

    def test_growth_past_the_budget_fails(self):
        baseline = {"cache": 40.0}  # may take 52 MB, 48.8 where it is alone
        self.assertEqual(list(build_budget.over_budget({"cache": 48.7}, baseline)), [])
        self.assertIn("cache: ", list(build_budget.over_budget({"cache": 52.1}, baseline))[0])

    def test_a_heavy_header_that_all_read_fails(self):
        baseline = {f"room {i}": 10.0 for i in range(20)}  # each may take 14.5 MB, all of them 236
        heavy = {room: cost + 2.0 for room, cost in baseline.items()}
        errors = list(build_budget.over_budget(heavy, baseline))
        self.assertEqual(["all rooms"], [error.split(":")[0] for error in errors])

    def test_another_compiler_is_not_growth(self):
        self.assertEqual(list(build_budget.over_budget({"cache": 97.0}, {"cache": 40.0}, 2.0)), [])
        self.assertIn("cache: ", list(build_budget.over_budget({"cache": 27.0}, {"cache": 40.0}, 0.5))[0])

    def test_a_new_room_needs_a_row(self):
        self.assertEqual(list(build_budget.over_budget({"moe": 1.9}, {"all": 10.0})), [])
        self.assertIn("moe: ", list(build_budget.over_budget({"moe": 2.1}, {"all": 10.0}))[0])

    def test_rows_of_a_preset(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "baseline.csv"
            path.write_text("preset,room,cost\nrelease,cache,450\nreference,MB,110\nasan,cache,900\n")
            self.assertEqual(build_budget.read_baseline("release", path), {"cache": 450.0})
            self.assertEqual(build_budget.read_baseline("reference", path), {"MB": 110.0})


if __name__ == "__main__":
    unittest.main()
