"""python3 tools/test_recipe_check.py: what the check of CONTRIBUTING's recipes (recipe_check.py) sees."""

import unittest

import recipe
import recipe_check

PAGE = r"""
## Recipes

**Add a spoon.** One file, one test. Example: `ladle`, found by
`\bkLadle\b|"ladle"`.

| file | what |
|---|---|
| `spoons/spoon.h` | the kind |
| `spoons/test.cpp` | its test |
| `cases/ladle/` | its case |

Also named in `docs/soup.md` (eats with it),
`menu.md` (a list).

**Add a fork.** No example yet.

**Fix a bug.** `elsewhere.cpp`
"""
TEXTS = {
    "CONTRIBUTING.md": PAGE,
    "spoons/spoon.h": "enum { kLadle };",
    "spoons/test.cpp": 'name("ladle");',
    "cases/ladle/config.json": '{"kind": "ladle"}',
    "cases/ladle/weights": "",
    "docs/soup.md": 'with a "ladle"',
    "menu.md": "kLadle",
    "other.cpp": "int kLadles = 0;  // ladle",
}


class RecipeCheck(unittest.TestCase):
    def setUp(self):
        self.recipes, self.errors = recipe_check.parse(PAGE)

    def found(self, **changes):
        texts = {path: text for path, text in {**TEXTS, **changes}.items() if text is not None}
        return recipe_check.recipe_errors(self.recipes[0], texts)

    def test_a_recipe_is_read_to_its_end(self):
        self.assertEqual(["a spoon"], [recipe.title for recipe in self.recipes])
        self.assertEqual("ladle", self.recipes[0].example)
        self.assertEqual(["spoons/spoon.h", "spoons/test.cpp", "cases/ladle/"], self.recipes[0].files)
        self.assertEqual(["docs/soup.md", "menu.md"], self.recipes[0].also)

    def test_a_true_recipe_is_accepted(self):
        self.assertEqual([], self.found())

    def test_a_file_that_the_recipe_misses(self):
        errors = self.found(**{"spoons/drawer.cpp": "case kLadle:"})
        self.assertEqual(1, len(errors), errors)
        self.assertIn("spoons/drawer.cpp", errors[0])

    def test_a_file_without_the_example(self):
        for path, text in [("spoons/test.cpp", "moved"), ("spoons/spoon.h", None), ("docs/soup.md", None)]:
            with self.subTest(path=path):
                errors = self.found(**{path: text})
                self.assertEqual(1, len(errors), errors)
                self.assertIn(path, errors[0])

    def test_a_folder_without_the_example(self):
        errors = self.found(**{"cases/ladle/config.json": None})
        self.assertEqual(1, len(errors), errors)
        self.assertIn("cases/ladle/", errors[0])

    def test_records_may_name_everything(self):
        self.assertEqual([], self.found(**{"docs/adr/0001-ladles.md": "kLadle", "bench/ledger/x.csv": '"ladle"'}))

    def test_required_recipes_have_an_example(self):
        self.assertEqual([f"there is no recipe of {title}" for title in recipe_check.REQUIRED], self.errors)
        _, errors = recipe_check.parse("**Add a model.** Words.\n\n**Add an endpoint.** Example: `x`, found by `x`.\n")
        self.assertIn("the recipe of a model has no example", errors)
        self.assertIn("the recipe of an endpoint lists no files", errors)

    def test_a_recipe_has_no_more_files_than_its_design_says(self):
        rows = "".join(f"| `part{i}.cpp` | x |\n" for i in range(recipe_check.MOST["a proposer"] + 1))
        page = "**Add a proposer.** Example: `x`, found by `x`.\n\n| file | what |\n|---|---|\n" + rows
        _, errors = recipe_check.parse(page)
        self.assertIn("the recipe of a proposer lists 13 files, the most is 12", errors)

    def test_the_files_that_name_a_thing_are_listed(self):
        found = recipe.found("ladle", {**TEXTS, "docs/adr/0001-ladles.md": "ladle"})
        self.assertEqual({"cases/ladle/config.json", "cases/ladle/weights", "docs/soup.md", "other.cpp", "spoons/test.cpp"}, set(found))
        self.assertEqual("int kLadles = 0;  // ladle", found["other.cpp"])
        self.assertEqual(["spoons/spoon.h"], list(recipe.found(r"enum.*kLad", TEXTS)))


if __name__ == "__main__":
    unittest.main()
