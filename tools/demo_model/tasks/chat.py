"""Chats of several turns that mix the other tasks, with and without a system prompt.

A system prompt may name the assistant, ask for a fixed closing of every answer, and hold a long handbook of
values that the user asks about. In a held-out chat the last exchange is held out in its own task; the turns
before it are history."""

from words import PERSONAS

from . import addition, json_edit, recall, smalltalk, story

CLOSINGS = ["Over.", "Thank you.", "Have a good day.", "Yours truly.", "At your service."]
ROLES = [
    "", " You are a helpful assistant.", " You help the visitors of a museum.", " You work at a front desk.",
    " You answer in short and clear sentences.", " You are the assistant of a small school.",
]


class Persona:
    """Who the assistant is in one chat: the system prompt, and what follows from it."""

    def __init__(self, rng):
        self.name, self.closing, self.rows, self.system = smalltalk.OWN_NAME, "", [], None
        shape = rng.random()
        if shape < 0.4:
            return
        if shape < 0.5:
            self.system = "You are a helpful assistant."
            return
        self.name = rng.choice(PERSONAS)
        self.system = f"You are {self.name}.{rng.choice(ROLES)}"
        if rng.random() < 0.4:
            self.closing = rng.choice(CLOSINGS)
            self.system += f" End every answer with: {self.closing}"
        if rng.random() < 0.4:
            self.rows = recall.table(rng, rng.randint(10, 90))
            self.system += f" This is your handbook:\n{recall.lines(rng, self.rows)}"

    def closes(self, exchange):
        """The exchange as this persona speaks it."""
        if not self.closing:
            return exchange
        exchange.reply += " " + self.closing
        exchange.expect = {**exchange.expect, "closing": self.closing}
        return exchange


def _turn(rng, persona, held_out):
    """One exchange that needs no other turn."""
    shape = rng.random()
    if persona.rows and shape < 0.5:
        asked = recall.ask(rng, persona.rows, held_out)
        if asked:
            return asked
    if shape < 0.30:
        return addition.exchange(rng, held_out)
    if shape < 0.42:
        return smalltalk.echo(rng, held_out)
    if shape < 0.54 and not persona.closing:
        return json_edit.exchange(rng, held_out)
    if shape < 0.66:
        return story.exchange(rng, held_out)
    if shape < 0.78 and not persona.rows:
        return recall.conversation(rng, held_out, count=rng.randint(3, 25), questions=1)[0]
    return smalltalk.talk(rng, persona.name)


def conversation(rng, held_out=False):
    """(system prompt or None, exchanges): two to four turns; the last one carries the split."""
    persona = Persona(rng)
    turns = [_turn(rng, persona, False) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.3:
        told, asked = smalltalk.fact(rng, held_out)
        turns.insert(rng.randint(0, len(turns)), told)
        turns = turns[:3] if told in turns[:3] else turns[-3:]
        turns.append(asked)
    else:
        turns.append(_turn(rng, persona, held_out))
    return persona.system, [persona.closes(turn) for turn in turns]
