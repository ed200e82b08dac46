"""What a task hands out: a user's turn, the right reply, and what a scorer must look for."""

import zlib
from dataclasses import dataclass

HELD_OUT_IN = 20


@dataclass
class Exchange:
    user: str
    reply: str
    expect: dict


def is_held_out(key: str) -> bool:
    """One key in twenty never occurs in training; the evaluation suites use only such keys."""
    return zlib.crc32(key.encode()) % HELD_OUT_IN == 0


def draw(make, key_of, held_out: bool):
    """Calls `make` until the key of what it returns lies on the wanted side of the split."""
    while True:
        item = make()
        if is_held_out(key_of(item)) == held_out:
            return item
