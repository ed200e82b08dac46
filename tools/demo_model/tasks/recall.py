"""Recall of a named value from a list. Held out by the (name, value) pair that is asked for."""

from words import ADJECTIVES, CITIES, CODE_LETTERS, COLORS, FOODS, NAMES, NOUNS, SURNAMES

from .exchange import Exchange, is_held_out

LINE_FORMS = ["- {k}: {v}", "{k}: {v}", "{k} = {v}", "* {k} -> {v}", "The value of {k} is {v}.", "{k} has {v}."]

INTROS = [
    "Here is a list of values.",
    "Remember these values.",
    "Read this list:",
    "Below are some notes.",
    "Keep this table in mind.",
    "I have the following records:",
]

QUESTIONS = [
    ("What is the value of {k}?", "The value of {k} is {v}."),
    ("Which value does {k} have?", "The value of {k} is {v}."),
    ("Tell me the value of {k}.", "The value of {k} is {v}."),
    ("Look up {k}.", "{k}: {v}"),
    ("What does the list say about {k}?", "{k}: {v}"),
    ("Give only the value of {k}.", "{v}"),
    ("Answer with the value of {k} and nothing else.", "{v}"),
]


def random_code(rng):
    return f"{rng.choice(CODE_LETTERS)}{rng.choice(CODE_LETTERS)}-{rng.randint(100, 999)}"


def _names(rng, count):
    """Distinct names of one kind; adjective-noun names share words, so the whole name must match."""
    kind = rng.random()
    if kind < 0.25 and count <= 100:
        return rng.sample(NOUNS, count)
    if kind < 0.55:
        firsts, lasts = NAMES, SURNAMES
    else:
        firsts, lasts = ADJECTIVES, NOUNS
    width = len(lasts)
    return [f"{firsts[i // width]} {lasts[i % width]}" for i in rng.sample(range(len(firsts) * width), count)]


VALUE_KINDS = [
    lambda rng: str(rng.randint(10, 99)),
    lambda rng: str(rng.randint(100, 999)),
    lambda rng: str(rng.randint(1000, 9999)),
    random_code,
    lambda rng: rng.choice(NOUNS),
    lambda rng: f"{rng.choice(COLORS)} {rng.choice(NOUNS)}",
    lambda rng: rng.choice((rng.choice(CITIES), rng.choice(FOODS))),
]


def table(rng, count):
    """`count` distinct names with values of one kind (or, at times, of mixed kinds)."""
    names = _names(rng, count)
    if rng.random() < 0.2:
        return [(name, rng.choice(VALUE_KINDS)(rng)) for name in names]
    kind = rng.choice(VALUE_KINDS)
    return [(name, kind(rng)) for name in names]


def lines(rng, rows):
    form = rng.choice(LINE_FORMS)
    return "\n".join(form.format(k=k, v=v) for k, v in rows)


def question(rng, row):
    user, reply = rng.choice(QUESTIONS)
    k, v = row
    return Exchange(user.format(k=k), reply.format(k=k, v=v), {"kind": "recall", "name": k, "value": v})


def askable(rows, held_out):
    return [row for row in rows if is_held_out(f"recall {row[0]} {row[1]}") == held_out]


def ask(rng, rows, held_out=False):
    """A question about one of the rows, or None where no row lies on the wanted side of the split."""
    candidates = askable(rows, held_out)
    return question(rng, rng.choice(candidates)) if candidates else None


def list_length(rng):
    """Mostly short lists, some that fill over a thousand tokens."""
    shape = rng.random()
    if shape < 0.45:
        return rng.randint(3, 20)
    if shape < 0.78:
        return rng.randint(20, 70)
    if shape < 0.95:
        return rng.randint(70, 150)
    return rng.randint(150, 200)


def conversation(rng, held_out=False, count=None, questions=None):
    """A list and questions about it; the held-out form asks one question only."""
    while True:
        rows = table(rng, count or list_length(rng))
        asked = [ask(rng, rows, held_out) for _ in range(questions or rng.randint(1, 10))]
        if all(asked):
            break
    first = asked[0]
    text = f"{rng.choice(INTROS)}\n{lines(rng, rows)}"
    first.user = f"{text}\n{first.user}" if rng.random() < 0.7 else f"{first.user}\n{text}"
    return asked
