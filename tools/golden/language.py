"""The language that the golden models speak: a random process whose next token is nearly, but never quite, certain.

A sentence has a hidden key. After a token t comes, mostly, the key's successor of t; now and then one of two others of
t's own, whatever the key. Which key it is shows in every transition and has to be carried along; keys and first tokens
are unequally likely, so that also the first predictions have one best answer.
"""

import torch

FIRST, LAST = 3, 250  # ids in use: [FIRST, LAST)
KEYS = torch.tensor([0.6, 0.25, 0.15])
TURNS = torch.tensor([0.92, 0.06, 0.02])  # the key's successor, or an exception
STARTS = torch.tensor([0.6, 0.2, 0.1, 0.1])


class Language:
    def __init__(self, seed):
        self.random = torch.Generator().manual_seed(seed + 1)
        ids = LAST - FIRST

        def cycle():
            """A permutation of one cycle: no successor leads into a short loop."""
            order = torch.randperm(ids, generator=self.random)
            out = torch.empty(ids, dtype=torch.long)
            out[order] = order.roll(-1)
            return out

        self.successors = torch.stack([cycle() for _ in KEYS])
        self.exceptions = torch.stack([cycle() for _ in TURNS[1:]])
        self.starts = torch.randperm(ids, generator=self.random)[: len(STARTS)]

    def draw(self, weights, count):
        return torch.multinomial(weights, count, replacement=True, generator=self.random)

    def sentences(self, count, length):
        """[count, length] token ids."""
        keys = self.draw(KEYS, count)
        tokens = [self.starts[self.draw(STARTS, count)]]
        for _ in range(length - 1):
            turns = self.draw(TURNS, count)
            choices = torch.cat([self.successors[keys, tokens[-1]][None], self.exceptions[:, tokens[-1]]])
            tokens.append(choices[turns, torch.arange(count)])
        return torch.stack(tokens, dim=1) + FIRST
