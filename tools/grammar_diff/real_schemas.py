#!/usr/bin/env python3
"""JSON schemas from the field: how many are taken, why others are refused, and whether documents are
judged as jsonschema judges them.

Folders hold files of one schema each, or of {"schema", "tests": [{"data", "valid"}]}. A folder with
`schemas/json`, `test/NAME/*.json` and `negative_test/NAME/*.json` in it has documents of the schema
NAME there. What a form accepts must be valid: documents that are given, and walks of random allowed
tokens. What is valid and not accepted is counted, and shown with --show: a form may have its keys in
one order and no other properties than those that are named. With --bundle a schema has the documents
of its folder that it refers to in it, each under the name that it is referred to by, as a client
sends a schema of several documents; --write keeps the schemas so.

    real_schemas.py --tool build/release/src/rudder/constraint/grammar_tool DIR..."""

import argparse
import collections
import json
import pathlib
import random
import re
import sys
import urllib.parse

import jsonschema
from grammar_diff import Tool, exact, format_checker, strict_loads

NEW_WORDS = ("$defs", "prefixItems", "dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems")


def load(path):
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def path_of(folder):
    """Of its schemas."""
    store = pathlib.Path(folder) / "schemas" / "json"
    return store if store.is_dir() else pathlib.Path(folder)


def cases(folder):
    """(name, schema, [(document, label or None)]) of each file."""
    store = path_of(folder)
    if store != folder:
        for path in sorted(store.glob("*.json")):
            schema = load(path)
            if isinstance(schema, dict):
                tests = [(load(p), label) for kind, label in (("test", True), ("negative_test", False))
                         for p in sorted((folder / kind / path.stem).glob("*.json"))]
                yield path.name, schema, [(data, label) for data, label in tests if data is not None]
        return
    for path in sorted(folder.rglob("*.json")):
        content = load(path)
        if isinstance(content, dict) and "schema" in content and isinstance(content.get("tests"), list):
            yield path.name, content["schema"], [(t["data"], t["valid"]) for t in content["tests"] if "data" in t]
        elif isinstance(content, dict):
            yield path.name, content, []


def names_in(value):
    """References to other documents, without their fragments."""
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.split("#")[0]:
            yield reference.split("#")[0]
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from names_in(part)


def bundled(schema, folder, own_file):
    """The schema with the documents that it refers to, as far as the folder has them as others than its own file."""
    files, parts = {path.name: path for path in folder.glob("*.json") if path.name != own_file}, {}
    own = schema.get("$id", schema.get("id", ""))
    waiting = [(own if isinstance(own, str) else "", schema)]
    while waiting:
        base, document = waiting.pop()
        for reference in names_in(document):
            name = urllib.parse.urljoin(base, reference)
            last = name.rsplit("/", 1)[-1]
            path = files.get(last) or files.get(last + ".json")
            part = load(path) if path and name not in parts and name != base else None
            if isinstance(part, dict):
                parts[name] = part | {"$id": name, "id": name}
                waiting.append((name, part))
    definitions = schema.get("definitions", {})
    if not parts or not isinstance(definitions, dict):
        return schema
    return schema | {"definitions": definitions | {f"document {i}": part for i, part in enumerate(parts.values())}}


def make_validator(schema, checker):
    words = json.dumps(schema)
    default = jsonschema.Draft202012Validator if any(f'"{w}"' in words for w in NEW_WORDS) else jsonschema.Draft7Validator
    return exact(jsonschema.validators.validator_for(schema, default))(schema, format_checker=checker)


class Run:
    def __init__(self, options):
        self.options = options
        self.tool = Tool(options.tool)
        self.random = random.Random(options.seed)
        self.checker = format_checker()
        self.counts = collections.Counter()
        self.reasons = collections.Counter()
        self.examples = {}
        self.mismatches = []
        self.missed = []

    def judge(self, validator, text):
        """The error of the document, or None; "?" where jsonschema cannot say."""
        try:
            return next(validator.iter_errors(strict_loads(text)), None)
        except ValueError as error:
            return error
        except Exception:  # an expression that `re` does not know, a reference that leads elsewhere
            return "?"

    def case(self, name, schema, tests):
        documents = [json.dumps(data, ensure_ascii=False) for data, _ in tests]
        fits = [len(text) <= self.options.document for text in documents]
        reply = self.tool.ask(kind="json_schema", text=schema, seed=self.random.randrange(2**32), walks=self.options.walks,
                              documents=[text for text, ok in zip(documents, fits) if ok])
        self.counts["schemas"] += 1
        if "error" in reply:
            reason = re.sub(r"\d+|'[^']*'", "_", reply["error"])
            keyword = re.split(r"[.\[]", reply["where"])[-1] if not reply["where"].endswith("]") else reply["where"].split(".")[-1].split("[")[0]
            self.reasons[f"{keyword[:32]}: {reason}"] += 1
            self.examples.setdefault(f"{keyword[:32]}: {reason}", name)
            return
        self.counts["taken"] += 1
        validator = make_validator(schema, self.checker)
        labels = [label for (_, label), ok in zip(tests, fits) if ok]
        for text, label, accepted in zip([t for t, ok in zip(documents, fits) if ok], labels, reply["accepted"]):
            kind = "valid" if label else "invalid"
            self.counts[f"{kind} documents"] += 1
            self.counts[f"{kind} documents accepted"] += accepted is True
            if accepted:
                self.expect_valid(validator, name, schema, text, "a document")
            elif label:
                self.missed.append((name, text[:self.options.width]))
        for text in reply["generated"]:
            if text:
                self.counts["walks"] += 1
                self.expect_valid(validator, name, schema, text, "a walk")

    def expect_valid(self, validator, name, schema, text, what):
        error = self.judge(validator, text)
        if error == "?":
            self.counts["not judged"] += 1
        elif error is not None:
            self.mismatches.append(f"{name}: {what} that is not valid: {text[:self.options.width]}\n    {str(error)[:300]}")

    def run(self):
        seen = 0
        for folder in self.options.folders:
            for name, schema, tests in cases(pathlib.Path(folder)):
                seen += 1
                if self.options.bundle:
                    schema = bundled(schema, path_of(folder), name)
                if self.options.write:
                    pathlib.Path(self.options.write, name).write_text(json.dumps(schema))
                if seen % self.options.every == 0:
                    self.case(name, schema, tests)
        counts = self.counts
        print(f"taken: {counts['taken']} of {counts['schemas']} schemas, {100 * counts['taken'] / max(1, counts['schemas']):.1f} %")
        print(", ".join(f"{n} {what}" for what, n in counts.items() if what not in ("schemas", "taken")))
        for reason, count in self.reasons.most_common(self.options.reasons):
            print(f"{count:6} {reason}  ({self.examples[reason]})")
        for name, text in self.missed[:self.options.show]:
            print(f"valid and not accepted: {name}: {text}")
        for text in self.mismatches[:max(20, self.options.show)]:
            print(text)
        print(f"{len(self.mismatches)} documents accepted that are not valid")
        return 1 if self.mismatches else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--walks", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="look at each Nth schema")
    parser.add_argument("--bundle", action="store_true", help="put the documents into a schema that it refers to")
    parser.add_argument("--write", help="a folder that the schemas are written to")
    parser.add_argument("--document", type=int, default=4000, help="longest document that is looked at, in characters")
    parser.add_argument("--reasons", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--width", type=int, default=200)
    sys.exit(Run(parser.parse_args()).run())


if __name__ == "__main__":
    main()
