"""Two- and three-digit addition, asked in many ways. Held out by the unordered pair of operands."""

from words import COUNTED, NAMES

from .exchange import Exchange, draw

EQUATION = "{a} + {b} = {c}."

PLAIN = [
    ("What is {a} + {b}?", EQUATION),
    ("What is {a} plus {b}?", EQUATION),
    ("Add {a} and {b}.", EQUATION),
    ("Compute {a} + {b}.", EQUATION),
    ("Please calculate {a} plus {b}.", EQUATION),
    ("How much is {a} + {b}?", EQUATION),
    ("{a} + {b}", EQUATION),
    ("Can you add {a} to {b}?", "{b} + {a} = {c}."),
    ("What is the sum of {a} and {b}?", "The sum of {a} and {b} is {c}."),
    ("Find the sum of {a} and {b}.", "The sum of {a} and {b} is {c}."),
    ("{a}+{b}=", "{c}"),
    ("Answer with the number only: {a} + {b}", "{c}"),
    ("Give only the result of {a} plus {b}.", "{c}"),
]

STORIES = [
    ("{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
     "{a} + {b} = {c}. {name} has {c} {things}."),
    ("There are {a} {things} in one room and {b} {things} in another. How many {things} are there?",
     "{a} + {b} = {c}. There are {c} {things}."),
    ("{name} counted {a} {things} in the morning and {b} in the evening. How many in all?",
     "{a} + {b} = {c}. {name} counted {c} {things}."),
]


def _carrying_pair(rng, digits):
    """Operands most of whose digit pairs sum to 8, 9 or 10: the sums in which carries travel."""
    a = b = 0
    for place in range(digits):
        low = 1 if place == 0 else 0
        x = rng.randint(low, 9)
        y = min(9, max(low, rng.choice((8, 9, 9, 10, 10)) - x))
        a, b = 10 * a + x, 10 * b + y
    return a, b


def operands(rng):
    shape = rng.random()
    if shape < 0.45:
        return rng.randint(100, 999), rng.randint(100, 999)
    if shape < 0.65:
        return rng.randint(10, 99), rng.randint(10, 99)
    if shape < 0.80:
        pair = rng.randint(100, 999), rng.randint(10, 99)
        return pair if rng.random() < 0.5 else pair[::-1]
    return _carrying_pair(rng, 3 if rng.random() < 0.75 else 2)


def exchange(rng, held_out=False):
    a, b = draw(lambda: operands(rng), lambda p: f"add {min(p)} {max(p)}", held_out)
    user, reply = rng.choice(STORIES) if rng.random() < 0.12 else rng.choice(PLAIN)
    slots = dict(a=a, b=b, c=a + b, name=rng.choice(NAMES), things=rng.choice(COUNTED))
    return Exchange(user.format(**slots), reply.format(**slots), {"kind": "sum", "value": a + b})
