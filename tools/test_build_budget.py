#!/usr/bin/env python3
"""Tests of tools/build_budget.py: `python3 tools/test_build_budget.py`."""

import os
import pathlib
import tempfile
import unittest
import unittest.mock

import build_budget

OBJECT = "src/rudder/cache/CMakeFiles/rudder_cache.dir/Unity/unity_0_cxx.cxx.o"


class BuildBudget(unittest.TestCase):
    def test_objects_belong_to_rooms(self):
        self.assertEqual(build_budget.room_of(OBJECT), "cache")
        self.assertEqual(build_budget.room_of("src/rudder/cache/CMakeFiles/cache_test.dir/a.cpp.o"), "cache tests")
        self.assertEqual(build_budget.room_of("src/rudder/steer/train/CMakeFiles/rudder_steer_train.dir/a.o"), "steer")
        self.assertEqual(build_budget.room_of("apps/CMakeFiles/rudder.dir/main.cpp.o"), "apps")
        self.assertEqual(build_budget.room_of("tests/metamorphic/CMakeFiles/graph_test.dir/a.o"), "tests")
        self.assertEqual(build_budget.room_of("CMakeFiles/somelib.dir/a.cc.o"), "somelib")

    def test_the_last_compile_of_an_object_counts(self):
        objects = build_budget.seconds_by_object([f"9.0 1.0 {OBJECT}\n", f"2.0 0.5 {OBJECT}\n"])
        self.assertEqual(build_budget.seconds_by_room(objects), {"cache": 2.5})

    def test_an_object_of_a_compiler_cache_counts_with_what_it_took(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder}):
            self.assertEqual(build_budget.remember("release", {OBJECT: 0.1}), {OBJECT: 0.1})
            self.assertEqual(build_budget.remember("release", {OBJECT: 8.0}), {OBJECT: 8.0})
            self.assertEqual(build_budget.remember("release", {OBJECT: 0.2, "b": 3.0}), {OBJECT: 8.0, "b": 3.0})
            self.assertEqual(build_budget.remember("release", {OBJECT: 5.0}), {OBJECT: 5.0})
            self.assertEqual(build_budget.remember("asan", {OBJECT: 0.2}), {OBJECT: 0.2})

    def test_growth_past_the_budget_fails(self):
        baseline = {"cache": 40.0}  # may take 70 s, 60 where it is alone
        self.assertEqual(list(build_budget.over_budget({"cache": 59.0}, baseline, 1.0)), [])
        self.assertIn("cache: ", list(build_budget.over_budget({"cache": 71.0}, baseline, 1.0))[0])

    def test_a_heavy_header_that_all_read_fails(self):
        baseline = {f"room {i}": 10.0 for i in range(20)}  # each may take 25 s, all of them 260 s
        heavy = {room: seconds + 6.0 for room, seconds in baseline.items()}
        errors = list(build_budget.over_budget(heavy, baseline, 1.0))
        self.assertEqual(["all rooms"], [error.split(":")[0] for error in errors])

    def test_a_slow_machine_is_not_growth(self):
        self.assertEqual(list(build_budget.over_budget({"cache": 118.0}, {"cache": 40.0}, 2.0)), [])
        self.assertIn("cache: ", list(build_budget.over_budget({"cache": 54.0}, {"cache": 40.0}, 0.5))[0])

    def test_a_new_room_needs_a_row(self):
        self.assertEqual(list(build_budget.over_budget({"moe": 9.0}, {}, 1.0)), [])
        self.assertIn("moe: ", list(build_budget.over_budget({"moe": 11.0}, {}, 1.0))[0])

    def test_the_reference_is_no_room(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "baseline.csv"
            path.write_text("preset,room,seconds\nrelease,cache,4.5\nrelease,reference compile,2.50\nasan,cache,9.0\n")
            self.assertEqual(build_budget.read_baseline("release", path), ({"cache": 4.5}, 2.5))


if __name__ == "__main__":
    unittest.main()
