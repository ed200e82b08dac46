#!/usr/bin/env python3
"""What named_tests.py finds wrong with a page."""

import unittest

from named_tests import anchors_of, document_errors, endings_of, errors_of, names_in, rows

PAGE = """
| item | test | figures |
|---|---|---|
| A1 | `Suite.One`, `test_two` | `not_a_test` |
| A2 | `tools/three.py` | |

| what | which |
|---|---|
| A9 | `other` |
"""
TEXTS = "TEST_F(Suite, One) {\ndef test_two():\n"
FILES = ["tools/three.py"]


def errors(page, numbers=("A1", "A2"), texts=TEXTS, files=tuple(FILES)):
    return list(errors_of("page", page, list(numbers), texts, list(files)))


class NamedTests(unittest.TestCase):
    def test_rows_are_those_of_tables_with_tests(self):
        self.assertEqual(list(rows(PAGE)), [("A1", ["Suite.One", "test_two"]), ("A2", ["tools/three.py"])])

    def test_what_is_right_passes(self):
        self.assertEqual(errors(PAGE), [])

    def test_a_test_that_is_gone_is_named(self):
        self.assertEqual(errors(PAGE, texts="def test_two():"), ["page: A1: there is no test Suite.One"])
        self.assertEqual(errors(PAGE, files=()), ["page: A2: there is no test tools/three.py"])
        self.assertEqual(errors(PAGE.replace("test_two", "test_tw")), ["page: A1: there is no test test_tw"])

    def test_lines_that_are_missing_or_empty(self):
        self.assertEqual(len(errors(PAGE, numbers=("A1", "A2", "A3"))), 1)
        self.assertEqual(errors(PAGE.replace("`tools/three.py`", "none")), ["page: A2 names no test"])

    def test_what_a_document_names(self):
        files = ["docs/page.md", "docs/other.md", "src/room/thing.h", "src/room/kernels/wide_a.cuh", "tools/run.sh"]
        for text, missing in [
            ("`src/room/thing.h`, `room/thing.h`, `thing.h`, `kernels/wide_*.cuh`, `tools/run.sh fast`, [other](other.md#a-part-of-it), [folder](../src/room)", []),
            ("[other](other.md#the-part), [here](#gone)", ["other.md#the-part", "#gone"]),
            ("`room/other.h`", ["room/other.h"]),
            ("`oom/thing.h`", ["oom/thing.h"]),
            ("`kernels/narrow_*.cuh`", ["kernels/narrow_*.cuh"]),
            ("[gone](gone.md)", ["gone.md"]),
            ("`Suite.One` `Other.Name`", []),
            ("`Suite.Two`", ["Suite.Two"]),
            ("`make check`, make sure", []),
            ("`make nothing`", ["make nothing"]),
            ("`run --top-k 1 --no-tune`", []),
            ("`run --max-q 1`", ["--max-q"]),
        ]:
            with self.subTest(text=text):
                found = list(document_errors("docs/page.md", text, endings_of(files), names_in(TEXTS), {"top-k", "tune"}, {"check"},
                                             {"docs/other.md": anchors_of("# A part of it\n"), "docs/page.md": set()}))
                self.assertEqual([f"docs/page.md:1: there is no {each}" for each in missing], found)


if __name__ == "__main__":
    unittest.main()
