"""A compact model whose residual has several streams (mHC), for training: layers of a delta rule with decays of
channels, and latent attention that knows no position, as GLM 5.3 Flash has them; parameter names are those of its
text model in Hugging Face transformers, whose forward pass it equals. Documents are rows of a batch, padded behind."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 32  # tokens that the delta rule takes at once: exp(-CHUNK * linear_lower_bound) is finite in fp32


@dataclass
class StreamsConfig:
    vocab_size: int = 2560
    hidden_size: int = 128
    intermediate_size: int = 320
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    q_lora_rank: int = 64
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 0
    v_head_dim: int = 32
    linear_num_heads: int = 4
    linear_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    linear_lower_bound: float = -2.0
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 1024

    def has_delta_rule(self, layer):
        return layer % 4 != 3


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


def linear(width, out):
    return nn.Linear(width, out, bias=False)


def decayed_delta_rule(q, k, v, g, beta):
    """S = diag(exp(g)) S; S += k (beta (v - k S)); out = q S, over [batch, heads, tokens, dim], CHUNK tokens at a time."""
    batch, heads, tokens, dim = q.shape
    q, k, v, g = (t.reshape(batch, heads, -1, CHUNK, dim) for t in (q, k, v, g))
    beta = beta.reshape(batch, heads, -1, CHUNK, 1)
    total = g.cumsum(dim=-2)
    grown, shrunk = total.exp(), (-total).exp()
    q, key, back = q * grown, k * grown, k * shrunk
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril(diagonal=-1)
    seen = (key @ back.mT * beta).masked_fill(~lower, 0) + torch.eye(CHUNK, device=q.device)
    both = torch.linalg.solve_triangular(seen, torch.cat((v * beta, key * beta), dim=-1), upper=False, unitriangular=True)
    fresh, read = both.split(dim, dim=-1)
    scores = (q @ back.mT).tril()
    last = (total[..., -1:, :] - total).exp() * k
    state, out = q.new_zeros(batch, heads, dim, dim), []
    for i in range(tokens // CHUNK):
        new = fresh[:, :, i] - read[:, :, i] @ state
        out.append(q[:, :, i] @ state + scores[:, :, i] @ new)
        state = state * grown[:, :, i, -1, :, None] + last[:, :, i].mT @ new
    return torch.cat(out, dim=2)


class DeltaRule(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        hidden, dim, heads = config.hidden_size, config.linear_head_dim, config.linear_num_heads
        width = dim * heads
        self.q_proj, self.k_proj, self.v_proj = linear(hidden, width), linear(hidden, width), linear(hidden, width)
        for name in ("q_conv1d", "k_conv1d", "v_conv1d"):
            length = config.linear_conv_kernel_dim
            setattr(self, name, nn.Conv1d(width, width, length, groups=width, padding=length - 1, bias=False))
        self.f_a_proj, self.f_b_proj = linear(hidden, dim), linear(dim, width)
        self.dt_bias = nn.Parameter(torch.full((width,), -3.0))
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.b_proj = linear(hidden, heads)
        self.g_a_proj, self.g_b_proj = linear(hidden, dim), linear(dim, width)
        self.o_norm = Norm(dim, config.rms_norm_eps)
        self.o_proj = linear(width, hidden)

    def forward(self, x):
        config, tokens = self.config, x.shape[1]
        heads, dim = config.linear_num_heads, config.linear_head_dim

        def convolved(name):
            rows = getattr(self, f"{name}_proj")(x).mT
            rows = F.silu(getattr(self, f"{name}_conv1d")(rows)[..., :tokens]).mT.float()
            return rows.unflatten(-1, (heads, dim)).transpose(1, 2)

        def unit(t):
            return t / torch.sqrt(t.square().sum(-1, keepdim=True) + 1e-6)

        q, k, v = unit(convolved("q")) * dim**-0.5, unit(convolved("k")), convolved("v")
        g = (self.f_b_proj(self.f_a_proj(x)).float() + self.dt_bias).unflatten(-1, (heads, dim)).transpose(1, 2)
        g = config.linear_lower_bound * torch.sigmoid(self.A_log.exp().view(-1, 1, 1) * g)
        beta = torch.sigmoid(self.b_proj(x).float()).mT.unsqueeze(-1)
        with torch.autocast(x.device.type, enabled=False):
            out = decayed_delta_rule(q, k, v, g, beta).transpose(1, 2)
        gate = self.g_b_proj(self.g_a_proj(x)).float().unflatten(-1, (heads, dim))
        return self.o_proj((self.o_norm(out) * torch.sigmoid(gate)).flatten(2))


class LatentAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        heads, dim, hidden = config.num_attention_heads, config.qk_nope_head_dim, config.hidden_size
        self.q_a_proj = linear(hidden, config.q_lora_rank)
        self.q_a_layernorm = Norm(config.q_lora_rank, config.rms_norm_eps)
        self.q_b_proj = linear(config.q_lora_rank, heads * dim)
        self.kv_a_proj_with_mqa = linear(hidden, config.kv_lora_rank)
        self.kv_a_layernorm = Norm(config.kv_lora_rank, config.rms_norm_eps)
        self.kv_b_proj = linear(config.kv_lora_rank, heads * (dim + config.v_head_dim))
        self.o_proj = linear(heads * config.v_head_dim, hidden)

    def forward(self, x):
        config = self.config
        heads, dim = config.num_attention_heads, config.qk_nope_head_dim
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).unflatten(-1, (heads, dim)).transpose(1, 2)
        both = self.kv_b_proj(self.kv_a_layernorm(self.kv_a_proj_with_mqa(x)))
        k, v = both.unflatten(-1, (heads, -1)).transpose(1, 2).split((dim, config.v_head_dim), dim=-1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = linear(config.hidden_size, config.intermediate_size)
        self.up_proj = linear(config.hidden_size, config.intermediate_size)
        self.down_proj = linear(config.intermediate_size, config.hidden_size)

    def forward(self, x):
        gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(F.silu(gate.clamp(max=10)) * up.clamp(-10, 10))


class Layer(nn.Module):
    """Each branch reads a sum of the streams and is written to all of them, by numbers of the token."""

    def __init__(self, config, index):
        super().__init__()
        self.config = config
        n, hidden = config.hc_mult, config.hidden_size
        for site in ("attn", "ffn"):
            setattr(self, f"hc_{site}_fn", nn.Parameter(torch.randn((2 + n) * n, n * hidden) * 0.02))
            base = torch.zeros((2 + n) * n)
            base[:n] = -torch.tensor(n - 1.0).log()
            base[2 * n :] = 3 * torch.eye(n).flatten()
            setattr(self, f"hc_{site}_base", nn.Parameter(base))
            setattr(self, f"hc_{site}_scale", nn.Parameter(torch.full((3,), 0.2)))
        self.input_layernorm = Norm(hidden, config.rms_norm_eps)
        self.self_attn = DeltaRule(config) if config.has_delta_rule(index) else LatentAttention(config)
        self.post_attention_layernorm = Norm(hidden, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def numbers(self, x, site):
        config, n = self.config, self.config.hc_mult
        f = x.flatten(2)
        f = f * torch.rsqrt(f.square().mean(-1, keepdim=True) + config.rms_norm_eps)
        m = F.linear(f, getattr(self, f"hc_{site}_fn")).split((n, n, n * n), dim=-1)
        base, scale = getattr(self, f"hc_{site}_base").split((n, n, n * n)), getattr(self, f"hc_{site}_scale")
        pre = torch.sigmoid(m[0] * scale[0] + base[0]) + config.hc_eps
        post = 2 * torch.sigmoid(m[1] * scale[1] + base[1])
        # Tokens last: sums of four numbers of each are then sums of rows.
        rows = (m[2] * scale[2] + base[2]).flatten(0, 1).T.unflatten(0, (n, n))
        mix = torch.softmax(rows, dim=1) + config.hc_eps
        mix = mix / (mix.sum(0, keepdim=True) + config.hc_eps)
        for _ in range(config.hc_sinkhorn_iters - 1):
            mix = mix / (mix.sum(1, keepdim=True) + config.hc_eps)
            mix = mix / (mix.sum(0, keepdim=True) + config.hc_eps)
        mix = mix.permute(2, 0, 1).unflatten(0, x.shape[:2])
        return pre, post, mix

    def forward(self, x):
        for site, norm, branch in (("attn", self.input_layernorm, self.self_attn), ("ffn", self.post_attention_layernorm, self.mlp)):
            with torch.autocast(x.device.type, enabled=False):
                pre, post, mix = self.numbers(x, site)
                read = norm((pre.unsqueeze(-1) * x).sum(2))
            out = branch(read).float()
            x = post.unsqueeze(-1) * out.unsqueeze(2) + mix.mT @ x
        return x


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)


class Streams(nn.Module):
    """The head shares the embedding's weights."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and "hc_" not in name:
                depth = (2 * config.num_hidden_layers) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
                nn.init.normal_(weight, std=0.02 * depth)

    def hidden(self, ids):
        """What the head reads, of ids [batch, tokens], tokens a multiple of CHUNK."""
        x = self.model.embed_tokens(ids).unsqueeze(2).expand(-1, -1, self.config.hc_mult, -1)
        for layer in self.model.layers:
            x = layer(x)
        return self.model.norm(x.mean(2))

    def logits(self, ids):
        return F.linear(self.hidden(ids), self.model.embed_tokens.weight)
