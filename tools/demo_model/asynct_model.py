"""A compact AsyncT for training (tools/golden/asynct.py is its reference): attention by a gate of scores, UClipNorm before
and after each branch and of each q and k head, ReGLU. Same size and same batches as model.py's Llama."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from clip_attention import clip_attention
from model import Config, rope_table, rotate
from torch import nn

FILL = 0.7  # rms of alpha * x at the start: clipped at 1, so that a few values are


@dataclass
class AsyncTConfig(Config):
    fir_k: int = 3
    fir_relu_pre: bool = False  # the filter is linear then, and can be applied to the keys
    fir_clip: tuple = (0.0, 1.0)
    norm_alpha: str = "channel"
    norm_gamma: str = "channel"
    qk_norm_alpha: str = "channel"
    qk_norm_gamma: str = "scalar"


class Clip(torch.autograd.Function):
    """clip(x, -1, 1). A value beyond a bound learns only what brings it back, so no channel is stuck there."""

    @staticmethod
    def forward(x):
        return x.clamp(-1, 1)

    @staticmethod
    def setup_context(context, inputs, output):
        context.save_for_backward(inputs[0])

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        stuck = ((x > 1) & (gradient < 0)) | ((x < -1) & (gradient > 0))
        return gradient.masked_fill(stuck, 0)


class UClipNorm(nn.Module):
    """alpha is learnt as its logarithm, so that a step changes it by a share of itself."""

    def __init__(self, width, gammas, gamma):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.zeros(width))
        self.gamma = nn.Parameter(torch.full((gammas,), gamma))

    def forward(self, x):
        return (self.gamma * Clip.apply(self.log_alpha.exp() * x.float())).to(torch.bfloat16)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        width, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(width, heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * config.head_dim, width, bias=False)
        self.q_norm = UClipNorm(config.head_dim, 1, 1.0)
        self.k_norm = UClipNorm(config.head_dim, 1, 1.0)
        self.fir_sigma = nn.Parameter(torch.full((heads,), 0.5))
        self.fir_gamma = nn.Parameter(torch.ones(heads))

    def filtered(self, k, positions):
        """k less sigma times its causal average in its document, for each query head."""
        config = self.config
        average = k
        for back in range(1, config.fir_k):
            average = average + k.roll(back, 0) * (positions >= back)[:, None, None]
        group = config.num_attention_heads // config.num_key_value_heads
        k, average = k.repeat_interleave(group, dim=1), average.repeat_interleave(group, dim=1)
        return k - self.fir_sigma[:, None] * average / config.fir_k

    def forward(self, x, rope, places):
        config = self.config
        q = rotate(self.q_norm(self.q_proj(x).view(-1, config.num_attention_heads, config.head_dim)), *rope)
        k = rotate(self.k_norm(self.k_proj(x).view(-1, config.num_key_value_heads, config.head_dim)), *rope)
        v = self.v_proj(x).view(-1, config.num_key_value_heads, config.head_dim)
        v = v.repeat_interleave(config.num_attention_heads // config.num_key_value_heads, dim=1)
        k = self.filtered(k.float(), places.positions).bfloat16()
        q = q * config.head_dim ** -0.5
        out = clip_attention(q.contiguous(), k.contiguous(), v.contiguous(), places.begin, places.end)
        out = self.fir_gamma.bfloat16()[:, None] * out
        return self.o_proj(out.reshape(x.shape[0], -1))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.relu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config.hidden_size
        branch = 0.1  # of the embedding's rms
        self.input_layernorm = UClipNorm(width, width, 1.0)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = UClipNorm(width, width, branch)
        self.pre_feedforward_layernorm = UClipNorm(width, width, 1.0)
        self.mlp = Mlp(config)
        self.post_feedforward_layernorm = UClipNorm(width, width, branch)

    def forward(self, x, rope, places):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), rope, places))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = UClipNorm(config.hidden_size, config.hidden_size, 0.3)


@dataclass
class Places:
    """[tokens] int32: where each token is in its document, and where in the batch that begins and ends."""

    positions: torch.Tensor
    begin: torch.Tensor
    end: torch.Tensor


class AsyncT(nn.Module):
    """The head shares the embedding's weights."""

    def __init__(self, config):
        super().__init__()
        self.model = Decoder(config)
        cos, sin = rope_table(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        nn.init.normal_(self.model.embed_tokens.weight, std=0.2)

    def logits(self, ids, positions, offsets):
        x = self.model.embed_tokens(ids).bfloat16()
        rope = [table[positions].unsqueeze(1).bfloat16() for table in (self.cos, self.sin)]
        at = torch.arange(ids.shape[0], device=ids.device, dtype=torch.int32)
        end = offsets[torch.searchsorted(offsets, at, right=True)]
        places = Places(positions, (at - positions).int(), end.int())
        for layer in self.model.layers:
            x = layer(x, rope, places)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def forward(self, ids, targets, weights, positions, offsets):
        """The mean loss over the learnt tokens of a batch; to be called under bf16 autocast."""
        losses = F.cross_entropy(self.logits(ids, positions, offsets).float(), targets, reduction="none")
        return (losses * weights).sum() / weights.sum()

    @torch.no_grad()
    def fit_norms(self, ids, positions, offsets):
        """Sets every alpha by what the norm reads of this batch; to be called under bf16 autocast."""

        def fit(norm, inputs):
            norm.log_alpha.fill_((FILL / inputs[0].float().square().mean().sqrt()).log())

        hooks = [m.register_forward_pre_hook(fit) for m in self.modules() if isinstance(m, UClipNorm)]
        self.logits(ids, positions, offsets)
        for hook in hooks:
            hook.remove()


def exported(weights):
    """The tensors as checkpoints name them."""
    return {
        name.replace("log_alpha", "alpha"): weight.exp() if name.endswith("log_alpha") else weight
        for name, weight in weights.items()
    }
