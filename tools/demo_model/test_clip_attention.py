#!/usr/bin/env python3
"""Checks the kernels of clip_attention.py against plain PyTorch, gradients too. Run by hand or by pytest; without a GPU
under Triton's interpreter."""

import os
import sys

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from clip_attention import clip_attention, dense  # noqa: E402

LENGTHS = [30, 1, 100, 70, 55]


def test_values_and_gradients():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ends = torch.tensor(LENGTHS).cumsum(0)
    lengths = torch.tensor(LENGTHS)
    end = ends.repeat_interleave(lengths).int().to(device)
    begin = (ends - lengths).repeat_interleave(lengths).int().to(device)
    q, k, v = (scale * torch.randn(256, 2, 64, device=device) for scale in (0.3, 0.3, 1.0))
    for x in (q, k, v):
        x.requires_grad_()
    gradient = torch.randn(256, 2, 64, device=device)
    out = clip_attention(q, k, v, begin, end)
    found = torch.autograd.grad(out, (q, k, v), gradient)
    expected_out = dense(q, k, v, begin)
    expected = torch.autograd.grad(expected_out, (q, k, v), gradient)
    tolerance = 1e-4 if device == "cpu" else 2e-2  # a GPU's tensor cores take tf32
    for one, other in zip((out, *found), (expected_out, *expected)):
        assert (one - other).abs().max() <= tolerance * other.abs().max()


if __name__ == "__main__":
    test_values_and_gradients()
    sys.exit(0)
