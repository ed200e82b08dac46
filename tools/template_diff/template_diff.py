#!/usr/bin/env python3
"""Compares our chat templates with Python's jinja2 in the environment that Hugging Face gives them:
every template style over every conversation, and small snippets over one context.
Both must give the same text, or both must fail.

  template_diff.py --tool build/release/src/rudder/text/tokenizer_tool
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, str(Path(__file__).parent))
from cases import CONTEXT, CONVERSATIONS, SNIPPETS  # noqa: E402
from templates import TEMPLATES  # noqa: E402


class Generation(Extension):
    """{% generation %} marks the assistant's text; it shows as its body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def theirs(env, source, contexts):
    try:
        template = env.from_string(source)
    except jinja2.exceptions.TemplateError as error:
        return [{"error": str(error)}] * len(contexts)
    out = []
    for context in contexts:
        try:
            out.append({"text": template.render(**context)})
        except Exception as error:  # noqa: BLE001: any failure of the reference is a failure
            out.append({"error": f"{type(error).__name__}: {error}"})
    return out


def ours(tool, source, contexts):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", encoding="utf-8", newline="") as file:
        file.write(source)
        file.flush()
        done = subprocess.run([tool, "render", file.name], capture_output=True, text=True,
                              encoding="utf-8", check=False,
                              input="".join(json.dumps(c) + "\n" for c in contexts))
    if done.returncode != 0:
        return [{"error": done.stderr.strip()}] * len(contexts)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True)
    args = parser.parse_args()
    env = environment()
    checks = failed = errors = 0
    cases = [(name, source, CONVERSATIONS) for name, source in TEMPLATES.items()]
    cases += [(snippet, snippet, [CONTEXT]) for snippet in SNIPPETS]
    for name, source, contexts in cases:
        for context, a, b in zip(contexts, ours(args.tool, source, contexts),
                                 theirs(env, source, contexts), strict=True):
            checks += 1
            errors += "error" in b
            if ("error" in a) != ("error" in b) or a.get("text") != b.get("text"):
                failed += 1
                print(f"{name}: differs on {json.dumps(context)[:300]}\n  ours   {a!r}\n  theirs {b!r}")
    print(f"{len(TEMPLATES)} templates, {len(CONVERSATIONS)} conversations, {len(SNIPPETS)} snippets: "
          f"{checks} checks ({errors} refused by both), {failed} mismatches")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
