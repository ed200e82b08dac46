"""Medusa heads in PyTorch, with the tensor names that vLLM reads, for training and as a reference.

Head i guesses token t + 2 + i from the row of token t behind the model's final norm. Formulas: arXiv 2401.10774; one output
projection is shared by all heads."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import nn


@dataclass
class MedusaConfig:
    hidden_size: int = 256
    vocab_size: int = 2560
    num_heads: int = 4
    num_hidden_layers: int = 1


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(c.hidden_size, c.hidden_size, bias=False) for _ in range(c.num_hidden_layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class Medusa(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_heads))
        self.lm_heads = nn.ModuleList([nn.Linear(config.hidden_size, config.vocab_size, bias=False)])

    def logits(self, head, rows):
        """rows [..., hidden] behind the final norm: the logits of head `head`, [..., vocab]."""
        return self.lm_heads[0](self.blocks[head](rows))
