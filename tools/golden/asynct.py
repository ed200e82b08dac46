"""AsyncT in PyTorch: the reference of Rudder's `asynct` architecture, registered with transformers.

Attention without a softmax, norms without a sum over the row. With s the scaled scores of a query, r = max(s, 0) where
`fir_relu_pre`, else s, and r = 0 where the query sees no key:

    p_j = clip(s_j - sigma * (r_j + ... + r_(j - fir_k + 1)) / fir_k, *fir_clip)      out = gamma * sum_j p_j v_j
    UClipNorm(x) = gamma * clip(alpha * x, -1, 1)

A norm stands before and after each branch; the MLP is down(max(gate, 0) * up). Written for clearness: float32, no cache.
"""

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3Config
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb


class AsyncTConfig(Qwen3Config):
    model_type = "asynct"
    fir_k: int = 3
    fir_relu_pre: bool = False
    fir_clip: list | tuple = (0.0, 1.0)
    qk_norm_alpha: str = "channel"
    qk_norm_gamma: str = "scalar"
    norm_alpha: str = "scalar"
    norm_gamma: str = "channel"
    hidden_act: str = "relu"


class UClipNorm(nn.Module):
    def __init__(self, width, alpha, gamma):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(width if alpha == "channel" else 1))
        self.gamma = nn.Parameter(torch.ones(width if gamma == "channel" else 1))

    def forward(self, x):
        return self.gamma * torch.clamp(self.alpha * x, -1.0, 1.0)


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.config = config
        self.window = config.sliding_window if config.layer_types[layer] == "sliding_attention" else None
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, heads * dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(heads * dim, config.hidden_size, bias=False)
        self.q_norm = UClipNorm(dim, config.qk_norm_alpha, config.qk_norm_gamma)
        self.k_norm = UClipNorm(dim, config.qk_norm_alpha, config.qk_norm_gamma)
        self.fir_sigma = nn.Parameter(torch.ones(heads))
        self.fir_gamma = nn.Parameter(torch.ones(heads))

    def weights(self, scores):
        c = self.config
        positions = torch.arange(scores.shape[-1], device=scores.device)
        distance = positions[-scores.shape[-2]:, None] - positions[None, :]  # rows are the last tokens
        seen = distance >= 0
        if self.window is not None:
            seen &= distance < self.window
        inputs = scores.clamp(min=0.0) if c.fir_relu_pre else scores
        inputs = nn.functional.pad(inputs * seen, (c.fir_k - 1, 0))
        average = inputs.unfold(-1, c.fir_k, 1).sum(-1) / c.fir_k
        return torch.clamp(scores - self.fir_sigma[:, None, None] * average, *c.fir_clip) * seen

    def forward(self, x, rope):
        c = self.config
        batch, length, _ = x.shape

        def heads(projected):
            return projected.view(batch, length, -1, c.head_dim)

        q = self.q_norm(heads(self.q_proj(x))).transpose(1, 2)
        k = self.k_norm(heads(self.k_proj(x))).transpose(1, 2)
        v = heads(self.v_proj(x)).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k, *rope)
        group = c.num_attention_heads // c.num_key_value_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

        weights = self.weights(q @ k.transpose(-1, -2) * c.head_dim**-0.5)
        out = self.fir_gamma[:, None, None] * (weights @ v)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(self.gate_proj(x).clamp(min=0.0) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()

        def norm():
            return UClipNorm(config.hidden_size, config.norm_alpha, config.norm_gamma)

        self.self_attn, self.mlp = Attention(config, layer), Mlp(config)
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = norm(), norm()

    def forward(self, x, rope):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), rope))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = UClipNorm(config.hidden_size, config.norm_alpha, config.norm_gamma)
        self.rotary_emb = Qwen3RotaryEmbedding(config)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        rope = self.rotary_emb(x, torch.arange(ids.shape[1], device=ids.device)[None])
        for layer in self.layers:
            x = layer(x, rope)
        return self.norm(x)


class AsyncTForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = AsyncTConfig
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = Model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids, **_):
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids)))


AutoConfig.register("asynct", AsyncTConfig)
AutoModelForCausalLM.register(AsyncTConfig, AsyncTForCausalLM)
