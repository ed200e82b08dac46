"""Copying a JSON object with one field changed. Held out by the text of the changed object."""

import copy
import json

from words import ADJECTIVES, CITIES, COLORS, FOODS, NAMES, NOUNS, SURNAMES

from .exchange import Exchange, draw
from .recall import random_code


def _person(rng):
    return f"{rng.choice(NAMES)} {rng.choice(SURNAMES)}"


def _thing(rng):
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def _number(rng):
    return rng.randint(0, 10 ** rng.randint(1, 5) - 1)


def _price(rng):
    return rng.randint(1, 999) + rng.randint(1, 9) / 10


def _flag(rng):
    return rng.random() < 0.5


def _words(rng):
    return rng.sample(NOUNS, rng.randint(1, 4))


def _numbers(rng):
    return [rng.randint(0, 99) for _ in range(rng.randint(1, 4))]


FIELDS = {
    "name": _person, "owner": _person, "author": _person, "friend": _person, "title": _thing, "item": _thing,
    "label": _thing, "topic": _thing, "city": lambda rng: rng.choice(CITIES),
    "home": lambda rng: rng.choice(CITIES), "color": lambda rng: rng.choice(COLORS),
    "food": lambda rng: rng.choice(FOODS), "id": random_code, "code": random_code, "key": random_code,
    "age": lambda rng: rng.randint(1, 99), "count": _number, "size": _number, "year": lambda rng: rng.randint(1900, 2099),
    "score": _number, "level": lambda rng: rng.randint(1, 20), "price": _price, "weight": _price,
    "active": _flag, "open": _flag, "ready": _flag, "note": lambda rng: None if rng.random() < 0.3 else _thing(rng),
    "tags": _words, "parts": _words, "points": _numbers,
}
NESTED = ["address", "details", "options", "meta"]
SCALARS = [key for key in FIELDS if key not in ("tags", "parts", "points")]

ASKS = [
    "Change {path} to {value}.",
    "Set {path} to {value}.",
    "Update {path} to {value}.",
    "Replace the value of {path} with {value}.",
    "Return this object with {path} changed to {value}.",
    "Copy the object, but make {path} equal to {value}.",
]


def _object(rng):
    keys = rng.sample(sorted(FIELDS), rng.randint(3, 9))
    obj = {key: FIELDS[key](rng) for key in keys}
    if rng.random() < 0.3:
        inner = rng.sample(SCALARS, rng.randint(2, 3))
        obj[rng.choice(NESTED)] = {key: FIELDS[key](rng) for key in inner}
    return obj


def _paths(obj):
    """The scalar fields, nested ones as (outer, inner)."""
    for key, value in obj.items():
        if isinstance(value, dict):
            yield from ((key, inner) for inner in value)
        elif not isinstance(value, list):
            yield (key,)


def _edit(rng):
    """An object, the path of one of its scalar fields, and the object with another value there."""
    while True:
        before = _object(rng)
        paths = list(_paths(before))
        if paths:
            break
    path = rng.choice(paths)
    after = copy.deepcopy(before)
    place = after
    for key in path[:-1]:
        place = place[key]
    while place[path[-1]] == (value := FIELDS[path[-1]](rng)):
        pass
    place[path[-1]] = value
    return before, path, value, after


def exchange(rng, held_out=False):
    before, path, value, after = draw(lambda: _edit(rng), lambda e: "json " + json.dumps(e[3]), held_out)
    indent = 2 if rng.random() < 0.15 else None
    text, reply = json.dumps(before, indent=indent), json.dumps(after, indent=indent)
    ask = rng.choice(ASKS).format(path=json.dumps(".".join(path)), value=json.dumps(value))
    user = f"{ask}\n{text}" if rng.random() < 0.7 else f"{text}\n{ask}"
    return Exchange(user, reply, {"kind": "json", "value": after})
