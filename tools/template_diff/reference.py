"""Python's jinja2 as Hugging Face's apply_chat_template sets it up, and a template's fate in it."""
import copy
import json
from datetime import datetime, timezone

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """{% generation %} marks the assistant's text; it shows as its body, which is a call block's."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_shown"), [], [], body).set_lineno(line)

    def _shown(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(format):
        return datetime.now(timezone.utc).replace(tzinfo=None).strftime(format)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def render(env, source, contexts):
    """{"text"} or {"error"} for each context."""
    try:
        template = env.from_string(source)
    except Exception as error:  # noqa: BLE001: a template that Python cannot compile is refused
        return [{"error": f"{type(error).__name__}: {error}"}] * len(contexts)
    out = []
    for context in contexts:
        try:
            # `list | indent` adds to the list itself, in Python.
            own = copy.deepcopy(context) if "indent" in source else context
            out.append({"text": template.render(**own)})
        except Exception as error:  # noqa: BLE001: any failure of the reference is a failure
            out.append({"error": f"{type(error).__name__}: {error}"})
    return out
