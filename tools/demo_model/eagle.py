"""An EAGLE-3 head in PyTorch, with the tensor names of published heads, for training and as a reference.

It guesses what follows token t + 1 from the rows of token t that enter three layers of the model, and from token t + 1.
Its next guess has its own output in place of those rows. Formulas: SafeAILab/EAGLE (arXiv 2503.01840)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class HeadConfig:
    vocab_size: int = 2560
    draft_vocab_size: int = 768
    hidden_size: int = 256
    intermediate_size: int = 256
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5


def aux_layers(num_layers):
    """The layers whose input rows the head reads: those that published heads were trained on."""
    return 2, num_layers // 2, num_layers - 3


def rotate(x, positions, theta):
    """x [batch, heads, tokens, head_dim] at positions [tokens]; the halves of a head turn together."""
    half = x.shape[-1] // 2
    angles = positions[:, None].float() * theta ** (-torch.arange(half).float() / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(2 * c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)

    def forward(self, x, depth, keys, values):
        """Pass `depth` of guesses that begin behind each token: it sees the tokens up to there as pass 0 has them, and of
        the later passes its own. Appends to keys and values, which have those of the passes before."""
        c, (batch, tokens, _) = self.c, x.shape
        heads = lambda t, n: t.view(batch, tokens, n, c.head_dim).transpose(1, 2)
        group = c.num_attention_heads // c.num_key_value_heads
        positions = torch.arange(tokens) + depth
        q = rotate(heads(self.q_proj(x), c.num_attention_heads), positions, c.rope_theta)
        k = rotate(heads(self.k_proj(x), c.num_key_value_heads), positions, c.rope_theta)
        keys.append(k.repeat_interleave(group, dim=1))
        values.append(heads(self.v_proj(x), c.num_key_value_heads).repeat_interleave(group, dim=1))
        scores = q @ keys[0].mT
        scores = scores.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), float("-inf"))
        own = [(q * key).sum(-1, keepdim=True) for key in keys[1:]]
        weights = (torch.cat([scores, *own], dim=-1).float() * c.head_dim**-0.5).softmax(-1).to(x.dtype)
        out = weights[..., :tokens] @ values[0]
        for i, value in enumerate(values[1:]):
            out = out + weights[..., tokens + i, None] * value
        return self.o_proj(out.transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Midlayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.hidden_norm = Norm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.mlp = Mlp(c)

    def forward(self, embedded, g, depth, keys, values):
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(g)), dim=-1)
        h = g + self.self_attn(x, depth, keys, values)
        return h + self.mlp(self.post_attention_layernorm(h))


class Eagle3(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Midlayer(config)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    def guesses(self, features, embedded, depth):
        """features [batch, tokens, 3 * hidden], embedded [batch, tokens + depth, hidden]: row t is token t + 1. The logits of
        each of `depth` guesses in a row that begin behind every token: [batch, tokens, draft_vocab_size]."""
        tokens = features.shape[1]
        g, keys, values = self.fc(features), [], []
        for i in range(depth):
            g = self.midlayer(embedded[:, i:i + tokens], g, i, keys, values)
            yield self.lm_head(self.norm(g))
