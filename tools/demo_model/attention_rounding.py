"""Attention with the roundings of a kernel over an fp8 cache (docs/adr/0069-e4m3-queries.md), in float32 between them."""

from dataclasses import dataclass
from typing import Callable

import torch

SUMMED = 32  # products that an fp8 tensor core adds to a sum at a time
KEPT_BITS = 13  # of these, below the power of two of the largest


def exact(x):
    return x


def bf16(x):
    return x.bfloat16().float()


def f16(x):
    return x.half().float()


def e4m3(x):
    """The nearest value, of two the even one; clipped at 448."""
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def by_row(q):
    """Queries [..., head_dim] in e4m3, each times a power of two that puts its largest magnitude in [128, 256)."""
    _, exponent = torch.frexp(q.abs().amax(-1, keepdim=True))  # of zeros: 0, so any factor
    exponent = (8 - exponent).clamp(max=126)
    return torch.ldexp(e4m3(torch.ldexp(q, exponent)), -exponent)


def by_tensor(q):
    """Queries in e4m3 with one factor for all, the largest magnitude at 448."""
    factor = 448 / q.abs().max().clamp(min=1e-30)
    return e4m3(q * factor) / factor


def e4m3_weights(weights):
    """As FlashAttention 3 has them with fp8: the largest weight of a softmax is 2^8."""
    return e4m3(256 * weights) / 256


def scores(q, k):
    return q @ k.transpose(-1, -2)


def cut(x, largest):
    """x without what is below 2^-KEPT_BITS of the power of two of `largest`."""
    _, exponent = torch.frexp(largest)  # largest < 2^exponent
    unit = torch.ldexp(torch.ones_like(largest), exponent - 1 - KEPT_BITS)
    return torch.trunc(x / unit) * unit


def cut_scores(q, k):
    """scores(), summed as fp8 tensor cores do it."""
    total = torch.zeros(*q.shape[:-1], k.shape[-2])
    for first in range(0, q.shape[-1], SUMMED):
        part = slice(first, first + SUMMED)
        products = q[..., :, None, part] * k[..., None, :, part]
        largest = torch.maximum(products.abs().amax(-1), total.abs())
        total = cut(products, largest[..., None]).sum(-1) + cut(total, largest)
        total = cut(total, total.abs())
    return total


@dataclass(frozen=True)
class Rounding:
    """What happens to keys and values when they are stored, and to queries and weights before they are multiplied."""

    cache: Callable = exact
    queries: Callable = exact
    weights: Callable = exact
    scores: Callable = scores

    def q(self, q):
        return self.queries(q if self.queries is exact else bf16(q))


ROUNDINGS = {
    "float32": Rounding(),
    "bf16": Rounding(bf16, bf16, bf16),
    "a: fp8 cache": Rounding(e4m3, bf16, f16),
    "b: a, queries by row": Rounding(e4m3, by_row, f16),
    "c: a, queries by tensor, weights": Rounding(e4m3, by_tensor, e4m3_weights),
    "d: bf16 cache, queries by row": Rounding(bf16, by_row, bf16),
}


def softmax_weights(products):
    """The weights before their division by their sum, and that; row i of r sees all keys but the last r - 1 - i."""
    rows, keys = products.shape[-2:]
    seen = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
    products = products.masked_fill(~seen, float("-inf"))
    weights = (products - products.amax(-1, keepdim=True)).exp()
    return weights, weights.sum(-1, keepdim=True)


def attend(q, k, v, scale, rounding, weigh=softmax_weights):
    """q [..., rows, head_dim] of the last tokens, k and v [..., keys, head_dim] as they are stored."""
    weights, total = weigh(rounding.scores(rounding.q(q), k) * scale)
    return rounding.weights(weights) @ v / total
