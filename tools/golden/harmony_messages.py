#!/usr/bin/env python3
"""Answers in Harmony, and what openai-harmony reads of them.

    TIKTOKEN_ENCODINGS_BASE=FOLDER .venv-models/bin/python tools/golden/harmony_messages.py src/rudder/dialect/harmony_messages.json

Needs openai-harmony 0.0.8 and FOLDER/o200k_base.tiktoken. Each row has the text of an answer behind "<|start|>assistant", as the package
renders messages or as a model may write them otherwise, and what its parser makes of the tokens: thoughts (the channel analysis), calls
(recipients that begin with "functions."), and text. Pieces of text of several messages are joined with a newline
where neither side has a blank.
"""

import json
import pathlib
import random
import sys

from openai_harmony import HarmonyEncodingName, Message, Role, load_harmony_encoding

ENCODING = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
OPENING = "<|start|>assistant"
WORDS = ["the sea", " and ", "é", "漢字", "x = y", "{", "}", "\n\n", "```", "to=me", "final", " analysis", "🌊", "1, 2"]
ARGUMENTS = ['{"n": 1}', "{}", '{"s": "a\\nb", "list": [1, {"k": null}]}', '{"s":"é } ]"}']
BLANKS = " \n\t\r"


def words(rng):
    return "".join(rng.choice(WORDS) for _ in range(rng.randint(1, 5))).strip() or "so"


def drawn(rng):
    """Messages as a model writes them: thoughts, words before a call, a call or the last words."""
    out = []
    for _ in range(rng.randint(0, 2)):
        out.append(("analysis", None, None, words(rng)))
    if rng.random() < 0.3:
        out.append(("commentary", None, None, words(rng)))
    if rng.random() < 0.5:
        out.append(("commentary", "functions." + rng.choice(["f", "get_weather"]), "json", rng.choice(ARGUMENTS)))
    else:
        out.append(("final", None, None, words(rng)))
    return out


def text_of(rng, messages):
    """The header's parts in each order that the format knows."""
    text = ""
    for i, (channel, recipient, kind, body) in enumerate(messages):
        text += OPENING
        to = f" to={recipient}" if recipient else ""
        before = rng.random() < 0.5
        text += (to if before else "") + f"<|channel|>{channel}" + ("" if before else to)
        if kind:
            text += rng.choice([f" <|constrain|>{kind}", f" {kind}"])
        is_last = i + 1 == len(messages)
        text += f"<|message|>{body}" + ("<|call|>" if recipient else "<|return|>" if is_last else "<|end|>")
    return text.removeprefix(OPENING)


def join(text, more):
    gap = "\n" if text and more and text[-1] not in BLANKS and more[0] not in BLANKS else ""
    return text + gap + more


def read(text):
    tokens = ENCODING.encode(text, allowed_special="all")
    row = {"text": text, "content": "", "reasoning": "", "calls": []}
    for message in ENCODING.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT):
        body = "".join(part.text for part in message.content)
        if message.recipient and message.recipient.startswith("functions."):
            row["calls"].append({"name": message.recipient.removeprefix("functions."), "arguments": body})
        else:
            key = "reasoning" if message.channel == "analysis" else "content"
            row[key] = join(row[key], body)
    return row


def rendered(messages):
    """As the package itself writes them."""
    tokens = []
    for channel, recipient, kind, body in messages:
        message = Message.from_role_and_content(Role.ASSISTANT, body).with_channel(channel)
        if recipient:
            message = message.with_recipient(recipient).with_content_type(f"<|constrain|>{kind}")
        tokens += ENCODING.render(message)
    return ENCODING.decode(tokens).removeprefix(OPENING)


def main():
    rng = random.Random(20)
    rows = []
    for i in range(120):
        messages = drawn(rng)
        rows.append(read(rendered(messages) if i % 3 == 0 else text_of(rng, messages)))
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    pathlib.Path(sys.argv[1]).write_text(f"[\n{lines}\n]\n")


main()
