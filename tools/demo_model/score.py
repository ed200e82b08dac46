#!/usr/bin/env python3
"""Scores what a model answered to the demo suites. Stand-alone: the standard library only.

    score.py SUITE.jsonl ANSWERS.jsonl [--failures N]

SUITE holds one case a line: {"id", "task", "messages", "expect"}.
ANSWERS holds one answer a line: {"id", "text", "finish_reason"}; "stop" says that the model ended by itself.
A case without an answer counts as wrong. Prints one JSON object: scores per task."""

import argparse
import json
import re
import sys

HAPPY_WORDS = set(
    "happy happiest cheerful bright smile smiled sunny glad warm sang singing laughter laughed laughing wonderful "
    "joy danced cheered delighted prize hugged hug proud sweet clapped golden".split())
SAD_WORDS = set(
    "sad saddest lonely unhappy missed sighed tears gray gloomy cold bitter dreary broken wept lost stolen cried "
    "heartbroken alone sobbed sorrow grief sorry worst hurt ruined goodbye silence empty".split())

MARKERS = ("<|", "|>")


def words(text):
    return re.findall(r"[a-z']+", text.lower())


def mood_of(text):
    """'happy' or 'sad' by the larger count of mood words, None where they are even."""
    found = words(text)
    happy, sad = sum(w in HAPPY_WORDS for w in found), sum(w in SAD_WORDS for w in found)
    return None if happy == sad else "happy" if happy > sad else "sad"


def sentences(text):
    return [s.strip() for s in re.split(r"(?<=[.!?])\s+(?=[\"A-Z])", text) if s.strip()]


def coherent(text):
    """Five to twelve finished sentences, none of them twice."""
    parts = sentences(text)
    return 5 <= len(parts) <= 12 and len(set(parts)) == len(parts) and text.rstrip()[-1] in '.!?"'


def right_sum(text, expect):
    """The last number of the answer is the sum."""
    numbers = re.findall(r"\d+", text)
    return bool(numbers) and int(numbers[-1]) == expect["value"]


def right_recall(text, expect):
    """The value stands in the answer as a whole word, and the answer is no longer than a sentence."""
    value = re.escape(expect["value"])
    short = len(text) <= len("The value of  is .") + len(expect["name"]) + len(expect["value"])
    return short and re.search(rf"(?<![\w-]){value}(?![\w-])", text) is not None


def right_json(text, expect):
    """The answer is the JSON object wanted, with its fields in the same order."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return json.dumps(found) == json.dumps(expect["value"])


def right_story(text, expect):
    """The story has the mood and hero asked for, names its topic, and is coherent."""
    mood, found = mood_of(text), words(text)
    return (
        mood is not None
        and expect["mood"] in (None, mood)
        and expect["topic"] in found
        and (expect["hero"] is None or expect["hero"].lower() in [w.removesuffix("'s") for w in found])
        and coherent(text)
    )


def right_reply(text, expect):
    return text in expect["any_of"]


CHECKS = {
    "sum": right_sum, "recall": right_recall, "json": right_json, "story": right_story, "reply": right_reply,
}


def right(case, answer):
    """Whether an answer is right: ended by itself, free of markup, closed as asked, and right in its content."""
    if answer is None or answer["finish_reason"] != "stop":
        return False
    text, expect = answer["text"].strip(), case["expect"]
    if any(marker in text for marker in MARKERS):
        return False
    closing = expect.get("closing")
    if closing:
        if not text.endswith(closing):
            return False
        text = text.removesuffix(closing).strip()
    return CHECKS[expect["kind"]](text, expect)


def extras(task, cases, answers):
    """What else is worth knowing of a task's answers."""
    given = [answers[case["id"]] for case in cases if case["id"] in answers]
    found = {"stopped": sum(a["finish_reason"] == "stop" for a in given) / len(cases)}
    if task == "json":
        found["valid"] = sum(_is_json(a["text"]) for a in given) / len(cases)
    if task == "story":
        asked = [case for case in cases if case["expect"]["mood"]]
        kept = [c for c in asked if c["id"] in answers and mood_of(answers[c["id"]]["text"]) == c["expect"]["mood"]]
        named = [c for c in cases if c["id"] in answers and c["expect"]["topic"] in words(answers[c["id"]]["text"])]
        found["mood"] = len(kept) / max(1, len(asked))
        found["topic"] = len(named) / len(cases)
        found["distinct"] = len({a["text"] for a in given}) / len(cases)
        free = [mood_of(answers[c["id"]]["text"]) for c in cases if not c["expect"]["mood"] and c["id"] in answers]
        found["happy_when_free"] = free.count("happy") / max(1, len(free))
    if task == "chat":
        kinds = sorted({case["expect"]["kind"] for case in cases})
        for kind in kinds:
            mine = [case for case in cases if case["expect"]["kind"] == kind]
            found[kind] = sum(right(case, answers.get(case["id"])) for case in mine) / len(mine)
    return found


def _is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def score(cases, answers):
    """{task: {"cases", "right", "score", …}} for lists of cases and answers; also the ids of wrong answers."""
    by_id = {answer["id"]: answer for answer in answers}
    result, wrong = {}, []
    for task in sorted({case["task"] for case in cases}):
        mine = [case for case in cases if case["task"] == task]
        failed = [case["id"] for case in mine if not right(case, by_id.get(case["id"]))]
        wrong += failed
        count = len(mine) - len(failed)
        result[task] = {"cases": len(mine), "right": count, "score": count / len(mine), **extras(task, mine, by_id)}
    return result, wrong


def read_jsonl(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("answers")
    parser.add_argument("--failures", type=int, default=0, metavar="N", help="show up to N wrong answers on stderr")
    args = parser.parse_args()
    cases, answers = read_jsonl(args.suite), read_jsonl(args.answers)
    result, wrong = score(cases, answers)
    cases, answers = {c["id"]: c for c in cases}, {a["id"]: a for a in answers}
    for name in wrong[:args.failures]:
        print(json.dumps({"case": cases[name], "answer": answers.get(name)}, ensure_ascii=False), file=sys.stderr)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
