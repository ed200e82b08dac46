#!/usr/bin/env python3
"""JSON Schema and regular expressions as grammars against the Python packages that define them.

Random schemas with random documents, both ways: a document that jsonschema finds valid is accepted
(in any usual whitespace, keys in the grammar's order); what is accepted is valid, be it a walk of
random allowed tokens or a document that was changed at random. Expressions likewise against `re`.
Schemas that the grammar refuses are counted by reason; more than a few of them is a failure."""

import argparse
import collections
import datetime
import fractions
import ipaddress
import json
import random
import re
import signal
import subprocess
import sys
import urllib.parse
import uuid

import jsonschema
from random_patterns import TEXT, Patterns
from random_schemas import Schemas
from schema_drafts import as_jsonschema, in_draft

WAYS = [{}, {"separators": (",", ":")}, {"indent": 1}, {"indent": 2}]  # an indent is at most 32


def format_checker():
    checker = jsonschema.FormatChecker(formats=())
    clock = r"T?\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"

    def check(name, test):
        def run(value):
            try:
                return not isinstance(value, str) or test(value) is not False
            except ValueError:
                return False
        checker.checks(name)(run)
    seconds = lambda text: re.sub(r"\.\d+", "", text)  # of any precision
    check("date", lambda v: bool(re.fullmatch(r"\d{4}-\d\d-\d\d", v)) and datetime.date.fromisoformat(v))
    check("time", lambda v: bool(re.fullmatch(clock, v)) and datetime.datetime.fromisoformat("1970-01-01T" + seconds(v)))
    check("date-time", lambda v: bool(re.fullmatch(r"\d{4}-\d\d-\d\d" + clock, v)) and datetime.datetime.fromisoformat(seconds(v)))
    check("email", lambda v: bool(re.fullmatch(r"[^@\s]{1,64}@[^@\s.]+(\.[^@\s.]+)+", v)))
    check("hostname", lambda v: len(v) <= 253 and all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", x) for x in v.split(".")))
    check("ipv4", lambda v: ipaddress.IPv4Address(v) and True)
    check("ipv6", lambda v: ipaddress.IPv6Address(v) and True)
    check("uuid", lambda v: bool(re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", v)) and uuid.UUID(v) and True)
    check("uri", lambda v: bool(urllib.parse.urlsplit(v).scheme) and len(v) <= 2083 and " " not in v)
    check("duration", lambda v: bool(re.fullmatch(r"P(?!$)(\d+Y)?(\d+M)?(\d+W)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?", v)))
    check("json-pointer", lambda v: bool(re.fullmatch(r"(/([^~/]|~[01])*)*", v)))
    return checker


def multiple_of(validator, divisor, instance, schema):
    """Of the decimals as written, where jsonschema divides floats."""
    if validator.is_type(instance, "number"):
        if fractions.Fraction(repr(instance)) % fractions.Fraction(repr(divisor)) != 0:
            yield jsonschema.ValidationError(f"{instance!r} is not a multiple of {divisor}")


def exact(validator):
    return jsonschema.validators.extend(validator, {"multipleOf": multiple_of})


def whole_match(compiled, text):
    """Whether the text matches; None where `re`, which tries all ways, would take longer than seconds."""
    def stop(*_):
        raise TimeoutError
    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 3)
    try:
        return bool(compiled.fullmatch(text))
    except TimeoutError:
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def changed(text, source):
    """The document with a few characters or values changed."""
    kind = source.randrange(3)
    if kind == 0 and text:
        at = source.randrange(len(text))
        return text[:at] + source.choice(["", source.choice(TEXT), "0", '"', "1"]) + text[at + 1:]
    if kind == 1:
        return re.sub(r"-?\d+", lambda m: str(int(m[0]) * source.choice([1, 10, -1]) + source.choice([-1, 0, 1])), text, count=2)
    return re.sub(r'"[^"]*"', lambda m: source.choice([m[0], '""', "null", m[0][:-1] + 'x"']), text)


def strict_loads(text):
    def no(value):
        raise ValueError(value)
    return json.loads(text, parse_constant=no)


class Tool:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **fields):
        self.process.stdin.write(json.dumps(fields).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the tool died on {json.dumps(fields)[:2000]}")
        return json.loads(line)


class Differential:
    def __init__(self, options):
        self.options = options
        self.source = random.Random(options.seed)
        self.tool = Tool(options.tool)
        self.counts = collections.Counter()
        self.refused = collections.Counter()
        self.mismatches = []
        self.checker = format_checker()

    def mismatch(self, what, **fields):
        self.mismatches.append(json.dumps({"what": what, **fields}, ensure_ascii=False))

    def schema(self):
        schema, sample = Schemas(self.source).draw()
        validator = jsonschema.Draft202012Validator
        for draft, older in ((4, jsonschema.Draft4Validator), (7, jsonschema.Draft7Validator)):
            spelled = in_draft(schema, draft, self.source) if self.source.random() < 0.25 else None
            words = json.dumps(spelled)
            if '"dependencies"' in words and re.search(r'"\$?id": "', words):
                spelled = None  # jsonschema looks for schemas with names in lists of names
            if spelled is not None:
                schema, validator = spelled, older
                self.counts[f"in draft {draft}"] += 1
                break
        validator = exact(validator)(as_jsonschema(schema), format_checker=self.checker)
        good = []
        for _ in range(6):
            value = sample()
            if validator.is_valid(value):
                good.append(json.dumps(value, ensure_ascii=False, **self.source.choice(WAYS)))
        bad = [changed(text, self.source) for text in good for _ in range(2)]
        reply = self.tool.ask(kind="json_schema", text=schema, seed=self.source.randrange(2**32), walks=6,
                              documents=good + bad)
        self.counts["schemas"] += 1
        if "error" in reply:
            self.refused[re.sub(r"\d+|'.*'", "_", reply["error"])] += 1
            return
        accepted = reply["accepted"]
        for text, ok in zip(good, accepted):
            self.counts["valid documents"] += 1
            self.counts["given up"] += ok is None
            if ok is False:
                self.mismatch("a valid document is not accepted", schema=schema, document=text)
        others = [t for t, ok in zip(bad, accepted[len(good):]) if ok]
        self.counts["changed documents"] += len(bad)
        self.counts["changed documents accepted"] += len(others)
        walks = [text for text in reply["generated"] if text]
        self.counts["walks"] += len(walks)
        for text in walks + others:
            try:
                error = jsonschema.exceptions.best_match(validator.iter_errors(strict_loads(text)))
            except ValueError as exception:
                error = exception
            if error is not None:
                self.mismatch("what the grammar accepts is not valid", schema=schema, document=text, error=str(error)[:300])

    def pattern(self):
        text, draw = self.source.choice([Patterns.row, Patterns.alternatives, Patterns.long])(Patterns(self.source), 1)
        good = [draw() for _ in range(6)]
        bad = [changed(t, self.source) for t in good]
        reply = self.tool.ask(kind="regex", text=text, seed=self.source.randrange(2**32), walks=4, documents=good + bad)
        self.counts["expressions"] += 1
        if "error" in reply:
            return self.mismatch("an expression is refused", pattern=text, error=reply["error"])
        compiled = re.compile(text)
        for document, ok in zip(good + bad, reply["accepted"]):
            self.counts["texts"] += 1
            self.counts["given up"] += ok is None
            matches = whole_match(compiled, document)
            self.counts["too much for re"] += matches is None
            if ok is None or matches is None:
                continue
            # \w of `re` takes letters of all scripts.
            if ok != matches and (ok or document.isascii()):
                self.mismatch("re disagrees", pattern=text, document=document, accepted=ok)
        for document in reply["generated"]:
            self.counts["walks"] += 1
            if document and whole_match(compiled, document) is False:
                self.mismatch("a walk does not match", pattern=text, document=document)

    def run(self):
        for _ in range(self.options.schemas):
            self.schema()
        for _ in range(self.options.schemas // 2):
            self.pattern()
        print(", ".join(f"{n} {what}" for what, n in self.counts.items()))
        print("refused:", dict(self.refused.most_common(8)))
        for text in self.mismatches[:self.options.show]:
            print(text)
        print(f"{len(self.mismatches)} mismatches")
        too_many = (sum(self.refused.values()) + self.counts["given up"]) * 10 > self.options.schemas
        return 1 if self.mismatches or too_many else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5)
    sys.exit(Differential(parser.parse_args()).run())


if __name__ == "__main__":
    main()
