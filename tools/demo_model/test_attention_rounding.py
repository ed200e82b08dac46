#!/usr/bin/env python3
"""Checks the roundings of attention_rounding.py. Run by hand or by pytest."""

import sys

import torch
from attention_rounding import ROUNDINGS, Rounding, attend, by_row, by_tensor, cut_scores, e4m3


def grid():
    """Every finite value of e4m3."""
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return values[values.isfinite()]


def test_the_nearest_value_is_taken():
    values = grid()
    x = torch.cat((torch.linspace(-448, 448, 20001), torch.linspace(-0.1, 0.1, 20001)))
    assert (e4m3(x) - x).abs().equal((values[None] - x[:, None]).abs().amin(1))
    assert e4m3(values).equal(values)
    assert e4m3(torch.tensor([1.0625, 1.1875, 1e6])).tolist() == [1.0, 1.25, 448.0]


def test_a_row_has_a_power_of_two():
    row = grid()
    row = row[row.abs() < 256]
    for exponent in (-100, -3, 0, 1, 100):
        assert by_row(row * 2.0**exponent).equal(row * 2.0**exponent)
    assert by_row(torch.zeros(1, 4)).equal(torch.zeros(1, 4))
    assert by_row(torch.tensor([[255.9, 0.3], [0.3, 0.001]])).tolist() == [[256.0, 0.3125], [0.3125, 0.0009765625]]
    torch.manual_seed(0)
    q = torch.randn(50, 128) * torch.randn(50, 1).exp()
    assert ((by_row(q) - q).abs() <= q.abs() / 16 + q.abs().amax(-1, keepdim=True) * 2.0**-17).all()
    assert ((by_tensor(q) - q).abs() <= q.abs() / 16 + q.abs().max() * 2.0**-18).all()


def test_sums_keep_13_bits():
    ones = torch.ones(1, 64)
    small = torch.full((1, 64), 2.0**-14)
    small[0, 0] = 1
    assert cut_scores(ones, small).item() == 1
    torch.manual_seed(0)
    q, k = torch.randn(9, 128), torch.randn(7, 128)
    largest = (q[:, None] * k).abs().amax(-1).maximum((q @ k.T).abs()) * 2
    assert ((cut_scores(q, k) - q @ k.T).abs() <= 128 * 2.0**-13 * largest).all()


def test_attention_without_roundings_is_attention():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 5, 64), torch.randn(2, 9, 64), torch.randn(2, 9, 64)
    mask = torch.ones(5, 9, dtype=torch.bool).tril(4)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
    assert torch.allclose(attend(q, k, v, 64**-0.5, Rounding()), expected, atol=1e-5)
    for rounding in ROUNDINGS.values():
        out = attend(q, rounding.cache(k), rounding.cache(v), 64**-0.5, rounding)
        assert 0 <= (out - expected).abs().max() < 0.3


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
    sys.exit(0)
