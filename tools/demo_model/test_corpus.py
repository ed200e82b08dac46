#!/usr/bin/env python3
"""Checks of the corpus that need no model: the split holds, the scorer accepts every right reply, and the chat
markup is the template's. Run by hand or by pytest."""

import random

import jinja2
import score
from chat_format import CHAT_TEMPLATE, messages_of, render
from corpus import TASKS, document
from suites import case
from tasks import addition, chat, json_edit, recall, story
from tasks.exchange import is_held_out


def held_out_conversations(rng):
    yield "addition", None, [addition.exchange(rng, True)]
    yield "recall", None, recall.conversation(rng, True, questions=1)
    yield "json", None, [json_edit.exchange(rng, True)]
    yield "story", None, [story.exchange(rng, True)]
    yield ("chat", *chat.conversation(rng, True))


def test_scorer_accepts_right_replies():
    rng = random.Random(1)
    for _ in range(300):
        for task, system, exchanges in held_out_conversations(rng):
            item = case(task, 0, system, exchanges)
            answer = {"id": item["id"], "text": exchanges[-1].reply, "finish_reason": "stop"}
            assert score.right(item, answer), (item, answer)
            assert not score.right(item, {**answer, "finish_reason": "length"})
            assert not score.right(item, {**answer, "text": "I do not know."})


def test_stories_keep_their_mood():
    rng = random.Random(2)
    for _ in range(3000):
        mood = rng.choice(story.MOODS)
        found = set(score.words(story.tell(rng, rng.choice(story.TOPICS), mood, "Mia")))
        other = score.SAD_WORDS if mood == "happy" else score.HAPPY_WORDS
        assert not found & other, (mood, found & other)


def test_training_avoids_held_out_sums():
    rng = random.Random(3)
    for _ in range(3000):
        a, b = sorted(addition.draw(lambda: addition.operands(rng), lambda p: f"add {min(p)} {max(p)}", False))
        assert not is_held_out(f"add {a} {b}")


def test_markup_is_the_templates():
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(CHAT_TEMPLATE)
    rng = random.Random(4)
    for prompt in (False, True):
        messages = messages_of("You are Mira.", [addition.exchange(rng), json_edit.exchange(rng)])
        assert template.render(messages=messages, add_generation_prompt=prompt) == render(messages, prompt)


def test_documents_are_reproducible():
    for task in TASKS:
        assert document(task, random.Random(5)) == document(task, random.Random(5))


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)
