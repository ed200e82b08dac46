#!/usr/bin/env python3
"""Lists the tracked files in which a thing is named: what an addition of its kind touches.

    make recipe WHAT=NAME
    tools/recipe.py 'AssistantProposer|kAssistant'

WHAT is a word (found whole, in any case, with - for _) or a regular expression. Records and the inputs of fuzz targets are left out,
as tools/recipe_check.py leaves them out. Standard library only."""

import re
import sys

import recipe_check


def pattern_of(what):
    if re.fullmatch(r"\w+", what):
        return re.compile(r"(?i)\b" + what.replace("_", "[-_]") + r"\b")
    return re.compile(what)


def found(what, texts):
    """path -> the first line that has it, or its name alone; `texts`: path -> text."""
    pattern = pattern_of(what)
    out = {}
    for path in sorted(texts):
        if any(recipe_check.covers(entry, path) for entry in recipe_check.OTHER_TEXT):
            continue
        match = pattern.search(texts[path])
        if match:
            text = texts[path]
            end = text.find("\n", match.end())
            out[path] = text[text.rfind("\n", 0, match.start()) + 1:end if end >= 0 else len(text)].strip()
        elif pattern.search(path):
            out[path] = ""
    return out


def main(arguments):
    if len(arguments) != 1 or not arguments[0]:
        print("which files name a thing: make recipe WHAT=NAME")
        return 2
    try:
        files = found(arguments[0], recipe_check.read_tracked())
    except re.error as error:
        print(f"{arguments[0]} is no regular expression: {error}")
        return 2
    width = max(map(len, files), default=0)
    for path, line in files.items():
        print(f"{path:<{width}}  {line[:100]}".rstrip())
    print(f"{len(files)} files")
    return 0 if files else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
