#!/usr/bin/env python3
"""Times causal prefill attention of PyTorch (cuDNN's and FlashAttention-2's kernels) beside ours.

    attention_bench bench > ours.txt && tools/bench_cudnn_sdpa.py --ours ours.txt

Both programs on one machine, one after the other; prints one table last: TFLOP/s of each and our share of
cuDNN's. Same shapes, bf16, head size 128; the inputs of a call are not those of the calls before it, so
that they come from memory. Ours reads a paged cache through a block table, theirs dense tensors. Needs a
GPU and PyTorch."""

import argparse
import pathlib
import re
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

HEADS = [(28, 4), (16, 16)]
HEAD_DIM = 128
SHAPES = [(16, 1024), (4, 2048), (1, 8192), (1, 32768)]
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION}
ROTATED_BYTES = 256 << 20  # five times the L2 cache
CALLS = 10
ROUNDS = 11

OURS_LINE = re.compile(r"^\s*heads (\d+)/(\d+) hd (\d+) wgmma bf16:(.*)$", re.M)
OURS_POINT = re.compile(r"(\d+)x(\d+) (\d+) \(\d+\)")


def read_ours(path):
    """{(heads, kv_heads, sequences, tokens): TFLOP/s} of attention_bench's output."""
    found = {}
    if path is None:
        return found
    for heads, kv_heads, head_dim, points in OURS_LINE.findall(path.read_text()):
        if int(head_dim) != HEAD_DIM:
            continue
        for sequences, tokens, rate in OURS_POINT.findall(points):
            found[int(heads), int(kv_heads), int(sequences), int(tokens)] = float(rate)
    return found


def flops(heads, sequences, tokens):
    return 4 * heads * HEAD_DIM * sequences * tokens * (tokens + 1) / 2


def make_inputs(heads, kv_heads, sequences, tokens):
    """As many (q, k, v) as the cache must not hold."""
    elements = sequences * tokens * HEAD_DIM * (heads + 2 * kv_heads)
    count = max(1, min(CALLS, ROTATED_BYTES // (2 * elements)))

    def draw(number):
        # Laid out token after token, as a projection leaves them.
        x = torch.randn(sequences, tokens, number, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        return x.transpose(1, 2)

    return [(draw(heads), draw(kv_heads), draw(kv_heads)) for _ in range(count)]


def call(inputs, grouped):
    q, k, v = inputs
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def seconds_of_a_call(inputs, grouped):
    """Median over rounds of a graph of CALLS calls."""
    calls = CALLS if inputs[0][0].shape[2] <= 8192 else 2
    for one in inputs:
        call(one, grouped)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(inputs[i % len(inputs)], grouped) for i in range(calls)]
    times = []
    for _ in range(ROUNDS + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / calls)
    del kept
    return statistics.median(times[2:])


def rate(backend, heads, kv_heads, sequences, tokens):
    """TFLOP/s, or None where the kernel does not take the shape."""
    inputs = make_inputs(heads, kv_heads, sequences, tokens)
    with sdpa_kernel(backend):
        try:
            seconds = seconds_of_a_call(inputs, heads != kv_heads)
        except RuntimeError as refused:
            print(f"{backend}: {str(refused).splitlines()[0]}", file=sys.stderr)
            if heads == kv_heads:
                return None
            # Without groups: keys and values once a query head, repeated outside the timing.
            repeated = [(q, *(x.repeat_interleave(heads // kv_heads, 1) for x in (k, v)))
                        for q, k, v in inputs]
            seconds = seconds_of_a_call(repeated, False)
    return flops(heads, sequences, tokens) / seconds * 1e-12


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", type=pathlib.Path, help="the output of attention_bench")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here: nothing was measured")
        return 1
    ours = read_ours(arguments.ours)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
          f"cuDNN {torch.backends.cudnn.version()}; causal, bf16, head size {HEAD_DIM}, TFLOP/s")
    print(f"{'heads':<8} {'prompts':>12} {'ours':>8} " +
          " ".join(f"{name:>17}" for name in BACKENDS) + f" {'ours/cuDNN':>11}")
    for heads, kv_heads in HEADS:
        for sequences, tokens in SHAPES:
            rates = [rate(backend, heads, kv_heads, sequences, tokens)
                     for backend in BACKENDS.values()]
            own = ours.get((heads, kv_heads, sequences, tokens))
            shown = [f"{x:.0f}" if x is not None else "-" for x in (own, *rates)]
            share = f"{100 * own / rates[0]:.0f} %" if own and rates[0] else "-"
            print(f"{f'{heads}/{kv_heads}':<8} {f'{sequences} x {tokens}':>12} {shown[0]:>8} " +
                  " ".join(f"{x:>17}" for x in shown[1:]) + f" {share:>11}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
