#!/usr/bin/env python3
"""Tests of structure.py: `python3 tools/test_structure.py`."""

import unittest

import structure


class Numbers(unittest.TestCase):
    def test_one_number_names_one_decision(self):
        good = {"docs/adr/0001-a.md": "# 0001: A\n", "docs/adr/0002-b.md": "# 0002: B\n", "src/0001-a.md": ""}
        self.assertEqual(list(structure.numbers_taken_twice(good)), [])
        twice = {**good, "docs/adr/0001-c.md": "# 0001: C\n"}
        self.assertEqual(list(structure.numbers_taken_twice(twice)),
                         ["adr 0001 is 0001-a.md and 0001-c.md: a number names one decision"])

    def test_a_title_has_the_number_of_its_file(self):
        self.assertEqual(list(structure.numbers_taken_twice({"docs/adr/0003-c.md": "# 0002: C\n"})),
                         ["adr 0003-c.md: its title does not begin with '# 0003: '"])


if __name__ == "__main__":
    unittest.main()
