#!/usr/bin/env python3
"""Fails unless the recipes of CONTRIBUTING.md name the files that their newest example is in.

A recipe that lists files looks like this:

    **Add a thing.** Words about it. Example: `name`, found by `REGEX`.

    | file | what |
    |---|---|
    | `a/file.cpp` | its part |
    | `a/folder/` | one file or more below it |

    Also named in `b/other.md` (why it is not part of the recipe).

The expression is searched in every tracked text file. Each file and folder of the table must have it,
and no other file may, but those of the line "Also named in" and those below OTHER_TEXT. So a recipe that
forgets a file fails, and so does one that names a file which the example does not touch. The recipes of
REQUIRED must be there. Standard library only."""

import dataclasses
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = "CONTRIBUTING.md"
REQUIRED = ("a model", "an endpoint", "a sampling option", "a steering op", "a proposer")
# Files that a recipe may list at most, where a design says so.
MOST = {"a proposer": 12}
# Records, figures and inputs of fuzz targets, which name whatever was measured or decided, and the recipes themselves.
OTHER_TEXT = ("bench/ledger/", "docs/adr/", "docs/performance.md", "docs/figures/", "tests/fuzz/corpus/", PAGE, "tools/recipe_check.py", "tools/test_gates.py",
              "tools/test_recipe_check.py")
TITLE = re.compile(r"^\*\*Add (an? [^.*]+?)\.\*\*", re.MULTILINE)
EXAMPLE = re.compile(r"Example: `([^`]+)`, found by\s`([^`]+)`\.")
ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
ALSO = re.compile(r"^Also named in (.+?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass
class Recipe:
    title: str  # "a sampling option"
    example: str
    pattern: re.Pattern
    files: list  # of the table; folders end with a slash
    also: list  # named for other reasons


def parse(page):
    """The recipes of the page's text that have an example, and what is wrong with the page."""
    titles = list(TITLE.finditer(page))
    recipes, errors = [], []
    for title, following in zip(titles, titles[1:] + [None]):
        text = page[title.end():following.start() if following else len(page)]
        text = re.split(r"^\*\*|^## ", text, maxsplit=1, flags=re.MULTILINE)[0]
        example = EXAMPLE.search(text)
        if example is None:
            if title[1] in REQUIRED:
                errors.append(f"the recipe of {title[1]} has no example")
            continue
        also = ALSO.search(text)
        recipes.append(Recipe(title[1], example[1], re.compile(example[2]), ROW.findall(text),
                              re.findall(r"`([^`]+)`", also[1]) if also else []))
        if not recipes[-1].files:
            errors.append(f"the recipe of {title[1]} lists no files")
        most = MOST.get(title[1])
        if most is not None and len(recipes[-1].files) > most:
            errors.append(f"the recipe of {title[1]} lists {len(recipes[-1].files)} files, the most is {most}")
    found = {recipe.title for recipe in recipes}
    errors += [f"there is no recipe of {title}" for title in REQUIRED
               if title not in found and title not in {t[1] for t in titles}]
    return recipes, errors


def covers(entry, path):
    return path.startswith(entry) if entry.endswith("/") else path == entry


def recipe_errors(recipe, texts):
    """`texts`: path -> text of every tracked file."""
    named = {path for path, text in texts.items()
             if recipe.pattern.search(text) or recipe.pattern.search(path)}
    errors = []
    for entry in recipe.files + recipe.also:
        if not any(covers(entry, path) for path in named):
            errors.append(f"{PAGE}: the recipe of {recipe.title} names {entry}, which has no {recipe.example}")
    allowed = [*recipe.files, *recipe.also, *OTHER_TEXT]
    for path in sorted(named):
        if not any(covers(entry, path) for entry in allowed):
            errors.append(f"{PAGE}: {path} has {recipe.example}, and the recipe of {recipe.title} does not name it")
    return errors


def read_tracked():
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    texts = {}
    for name in filter(None, out.decode().split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue  # deleted and not yet committed
        try:
            texts[name] = path.read_bytes().decode()
        except UnicodeDecodeError:
            texts[name] = ""  # its name counts
    return texts


def main():
    texts = read_tracked()
    recipes, errors = parse(texts[PAGE])
    for recipe in recipes:
        errors += recipe_errors(recipe, texts)
    for line in errors:
        print(line)
    counts = ", ".join(f"{recipe.title} {len(recipe.files)}" for recipe in recipes)
    print(f"{len(recipes)} recipes with files ({counts}), {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
