"""Attention without a softmax over packed documents: out_i = sum over j of clip(q_i . k_j, 0, 1) v_j, j from the begin of
i's document to i. Triton kernels for training; a gate of scores becomes this once its filter is applied to the keys."""

import torch
import triton
import triton.language as tl

BLOCK = 64  # rows and keys of a tile; the number of tokens is a multiple of it


@triton.jit
def _weights(q, k, rows, keys, begin):
    s = tl.dot(q, tl.trans(k))
    seen = (keys[None, :] <= rows[:, None]) & (keys[None, :] >= begin[:, None])
    return tl.where(seen, tl.minimum(tl.maximum(s, 0.0), 1.0), 0.0)


@triton.jit
def _forward(q_at, k_at, v_at, begin_at, out_at, heads, DIM: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0) * TILE
    rows, dims = first + tl.arange(0, TILE), tl.arange(0, DIM)
    column = tl.program_id(1) * DIM + dims[None, :]
    q = tl.load(q_at + rows[:, None] * heads * DIM + column)
    begin = tl.load(begin_at + rows)
    out = tl.zeros((TILE, DIM), tl.float32)
    for key in range(tl.load(begin_at + first) // TILE * TILE, first + TILE, TILE):
        keys = key + tl.arange(0, TILE)
        k = tl.load(k_at + keys[:, None] * heads * DIM + column)
        v = tl.load(v_at + keys[:, None] * heads * DIM + column)
        out = tl.dot(_weights(q, k, rows, keys, begin).to(v.dtype), v, out)
    tl.store(out_at + rows[:, None] * heads * DIM + column, out.to(q.dtype))


@triton.jit
def _backward_q(q_at, k_at, v_at, begin_at, dout_at, dq_at, heads, DIM: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0) * TILE
    rows, dims = first + tl.arange(0, TILE), tl.arange(0, DIM)
    column = tl.program_id(1) * DIM + dims[None, :]
    q = tl.load(q_at + rows[:, None] * heads * DIM + column)
    dout = tl.load(dout_at + rows[:, None] * heads * DIM + column)
    begin = tl.load(begin_at + rows)
    dq = tl.zeros((TILE, DIM), tl.float32)
    for key in range(tl.load(begin_at + first) // TILE * TILE, first + TILE, TILE):
        keys = key + tl.arange(0, TILE)
        k = tl.load(k_at + keys[:, None] * heads * DIM + column)
        v = tl.load(v_at + keys[:, None] * heads * DIM + column)
        p = _weights(q, k, rows, keys, begin)
        ds = tl.where((p > 0.0) & (p < 1.0), tl.dot(dout, tl.trans(v)), 0.0)
        dq = tl.dot(ds.to(k.dtype), k, dq)
    tl.store(dq_at + rows[:, None] * heads * DIM + column, dq.to(q.dtype))


@triton.jit
def _backward_kv(q_at, k_at, v_at, begin_at, end_at, dout_at, dk_at, dv_at, heads, DIM: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0) * TILE
    keys, dims = first + tl.arange(0, TILE), tl.arange(0, DIM)
    column = tl.program_id(1) * DIM + dims[None, :]
    k = tl.load(k_at + keys[:, None] * heads * DIM + column)
    v = tl.load(v_at + keys[:, None] * heads * DIM + column)
    dk = tl.zeros((TILE, DIM), tl.float32)
    dv = tl.zeros((TILE, DIM), tl.float32)
    for row in range(first, tl.load(end_at + first + TILE - 1), TILE):
        rows = row + tl.arange(0, TILE)
        q = tl.load(q_at + rows[:, None] * heads * DIM + column)
        dout = tl.load(dout_at + rows[:, None] * heads * DIM + column)
        p = _weights(q, k, rows, keys, tl.load(begin_at + rows))
        dv = tl.dot(tl.trans(p.to(dout.dtype)), dout, dv)
        ds = tl.where((p > 0.0) & (p < 1.0), tl.dot(dout, tl.trans(v)), 0.0)
        dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk)
    tl.store(dk_at + keys[:, None] * heads * DIM + column, dk.to(k.dtype))
    tl.store(dv_at + keys[:, None] * heads * DIM + column, dv.to(v.dtype))


def _grid(q):
    return q.shape[0] // BLOCK, q.shape[1]


@torch.library.custom_op("demo_model::clip_attention", mutates_args=())
def clip_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, begin: torch.Tensor, end: torch.Tensor
) -> torch.Tensor:
    """q, k, v, the result: [tokens, heads, dim]; begin, end: [tokens] int32, of each token's document. q is scaled."""
    out = torch.empty_like(q)
    _forward[_grid(q)](q, k, v, begin, out, q.shape[1], DIM=q.shape[2], TILE=BLOCK)
    return out


@torch.library.custom_op("demo_model::clip_attention_backward", mutates_args=())
def clip_attention_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, dout: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    shape = dict(DIM=q.shape[2], TILE=BLOCK)
    _backward_q[_grid(q)](q, k, v, begin, dout, dq, q.shape[1], **shape)
    _backward_kv[_grid(q)](q, k, v, begin, end, dout, dk, dv, q.shape[1], **shape)
    return dq, dk, dv


@clip_attention.register_fake
def _(q, k, v, begin, end):
    return torch.empty_like(q)


@clip_attention_backward.register_fake
def _(q, k, v, begin, end, dout):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gradient(ctx, dout):
    return *clip_attention_backward(*ctx.saved_tensors, dout.contiguous()), None, None


clip_attention.register_autograd(_gradient, setup_context=_keep)


def dense(q, k, v, begin):
    """The same in plain PyTorch, for tests: it holds every weight."""
    at = torch.arange(q.shape[0], device=q.device)
    seen = (at[None, :] <= at[:, None]) & (at[None, :] >= begin[:, None])
    weights = torch.einsum("ihd,jhd->hij", q, k).clamp(0, 1) * seen
    return torch.einsum("hij,jhd->ihd", weights, v)
