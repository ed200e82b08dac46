"""A compact Llama for training, with the parameter names of Hugging Face's LlamaForCausalLM.

It runs on one flat run of packed documents: attention stays inside a document, on the varlen flash kernel
where there is a GPU."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.varlen import varlen_attn


@dataclass
class Config:
    vocab_size: int = 2560
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5



def rope_table(config):
    """cos and sin of every position, in Hugging Face's layout: the two halves of a head turn together."""
    half = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    angles = torch.outer(torch.arange(config.max_position_embeddings).float(), config.rope_theta ** -half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def attend(q, k, v, offsets, longest):
    """Causal attention inside each document; q, k, v [tokens, heads, head_dim]. The kernel needs a GPU."""
    if q.is_cuda:
        return varlen_attn(q, k, v, offsets, offsets, longest, longest, window_size=(-1, 0))
    ends = sorted(set(offsets.tolist()))
    heads = [t.transpose(0, 1) for t in (q, k, v)]
    documents = [F.scaled_dot_product_attention(*(t[:, a:b] for t in heads), is_causal=True) for a, b in zip(ends, ends[1:])]
    return torch.cat(documents, dim=1).transpose(0, 1)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        width, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(width, heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * config.head_dim, width, bias=False)

    def forward(self, x, cos, sin, offsets):
        config = self.config
        q = rotate(self.q_proj(x).view(-1, config.num_attention_heads, config.head_dim), cos, sin)
        k = rotate(self.k_proj(x).view(-1, config.num_key_value_heads, config.head_dim), cos, sin)
        v = self.v_proj(x).view(-1, config.num_key_value_heads, config.head_dim)
        group = config.num_attention_heads // config.num_key_value_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = attend(q, k, v, offsets, config.max_position_embeddings)
        return self.o_proj(out.reshape(x.shape[0], -1))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Norm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.eps = config.rms_norm_eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_layernorm = Norm(config)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config)
        self.mlp = Mlp(config)

    def forward(self, x, cos, sin, offsets):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, offsets)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config)


class Llama(nn.Module):
    """The head shares the embedding's weights."""

    def __init__(self, config):
        super().__init__()
        self.model = Decoder(config)
        cos, sin = rope_table(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                depth = (2 * config.num_hidden_layers) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
                nn.init.normal_(weight, std=0.02 * depth)

    def hidden(self, ids, positions, offsets):
        """What the head reads."""
        x = self.model.embed_tokens(ids).bfloat16()
        cos, sin = (table[positions].unsqueeze(1).bfloat16() for table in (self.cos, self.sin))
        for layer in self.model.layers:
            x = layer(x, cos, sin, offsets)
        return self.model.norm(x)

    def logits(self, ids, positions, offsets):
        return F.linear(self.hidden(ids, positions, offsets), self.model.embed_tokens.weight)

    def forward(self, ids, targets, weights, positions, offsets):
        """The mean loss over the learnt tokens of a batch; to be called under bf16 autocast."""
        losses = F.cross_entropy(self.logits(ids, positions, offsets).float(), targets, reduction="none")
        return (losses * weights).sum() / weights.sum()
