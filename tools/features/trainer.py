"""Trains a dictionary of features on rows: a sparse autoencoder where a row is to give itself, a transcoder where it is
to give another row.

The activation is batch top-k (Bussmann et al., 2024): of a batch, the k values a row that are largest over all rows and
features are kept; the dictionary that is written has one threshold instead, the mean of the smallest kept value. The loss
is Matryoshka's (Bussmann et al., 2025): prefixes of the features have to do on their own, so that what is general comes
first and is not split up. Features that have not been active for a while learn what the others leave (Gao et al., 2024)."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file


@dataclass
class Settings:
    features: int = 2048
    k: int = 24
    prefixes: tuple = (1 / 32, 1 / 8, 1 / 2)  # shares of the features that have to do on their own, beside all
    rate: float = 1e-3
    warm_up: int = 200  # steps
    decay: float = 0.3  # share of the training, at its end, in which the rate falls to 0
    silent_rows: int = 400_000  # a feature that was not active in so many rows counts as dead
    revived: int = 64  # values a row that dead features may have
    reviving: float = 1 / 32  # weight of their loss


class Trainer:
    """`inputs` and `outputs` [rows, width] are the first rows: they give means and scales. The same tensor for both makes
    an autoencoder."""

    def __init__(self, inputs, outputs, settings, seed=0):
        self.settings = settings
        device = inputs.device
        draw = torch.Generator().manual_seed(seed)
        # Rows are brought to the mean length sqrt(width), so that one rate fits every layer of every model.
        self.input_scale = math.sqrt(inputs.shape[1]) / inputs.float().norm(dim=1).mean().item()
        self.output_scale = math.sqrt(outputs.shape[1]) / outputs.float().norm(dim=1).mean().item()
        decoder = F.normalize(torch.randn(settings.features, outputs.shape[1], generator=draw), dim=1).to(device)
        encoder = decoder.clone() if inputs.shape == outputs.shape else F.normalize(
            torch.randn(settings.features, inputs.shape[1], generator=draw), dim=1).to(device)
        mean = inputs.float().mean(dim=0) * self.input_scale
        self.encoder = encoder.requires_grad_()
        self.encoder_bias = (-encoder.detach() @ mean).requires_grad_()
        self.decoder = decoder.requires_grad_()
        self.output_bias = (outputs.float().mean(dim=0) * self.output_scale).requires_grad_()
        parameters = [self.encoder, self.encoder_bias, self.decoder, self.output_bias]
        self.optimizer = torch.optim.Adam(parameters, lr=settings.rate, betas=(0.9, 0.99))
        self.silent = torch.zeros(settings.features, device=device)
        self.threshold = torch.zeros((), device=device)
        self.steps = 0

    def learning_rate(self, done):
        """Of a training of which the share `done` is behind it."""
        fall = min(1.0, (1 - done) / self.settings.decay)
        return self.settings.rate * min(1.0, (self.steps + 1) / self.settings.warm_up) * fall

    def step(self, inputs, outputs, done):
        """One step on rows; returns the share of the outputs' variance that is not explained, as a tensor."""
        settings = self.settings
        x, y = inputs.float() * self.input_scale, outputs.float() * self.output_scale
        values = F.relu(x @ self.encoder.T + self.encoder_bias)
        smallest = values.detach().flatten().topk(settings.k * len(x), sorted=False).values.min()
        features = torch.where(values >= smallest, values, 0)
        variance = (y - y.mean(dim=0)).square().sum()
        loss, error = self._reconstruction_loss(features, y, variance)
        loss = loss + settings.reviving * self._revival_loss(values, error.detach(), variance)
        loss.backward()
        self._forget_growth()
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(done)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            self.decoder.copy_(F.normalize(self.decoder, dim=1))
            active = (features > 0).any(dim=0)
            self.silent = torch.where(active, 0, self.silent + len(x))
            keep = 0.0 if self.steps == 0 else 0.99
            self.threshold.copy_(keep * self.threshold + (1 - keep) * smallest)
        self.steps += 1
        return error.detach().square().sum() / variance

    def _reconstruction_loss(self, features, y, variance):
        """The mean over the prefixes, and what all features leave."""
        total, begin, out = 0.0, 0, self.output_bias
        ends = [*(int(share * self.settings.features) for share in self.settings.prefixes), self.settings.features]
        for end in ends:
            out = out + features[:, begin:end] @ self.decoder[begin:end]
            total, begin = total + (y - out).square().sum() / variance, end
        return total / len(ends), y - out

    def _revival_loss(self, values, error, variance):
        dead = (self.silent > self.settings.silent_rows).nonzero().flatten()
        if len(dead) == 0:
            return 0.0
        revived = values[:, dead]
        kept = revived.topk(min(self.settings.revived, len(dead)), dim=1)
        sparse = torch.zeros_like(revived).scatter(1, kept.indices, kept.values)
        return (error - sparse @ self.decoder[dead]).square().sum() / variance

    def _forget_growth(self):
        """Takes from the decoder's gradient what would change the rows' lengths, which stay 1."""
        along = (self.decoder.grad * self.decoder.detach()).sum(dim=1, keepdim=True)
        self.decoder.grad -= along * self.decoder.detach()

    @torch.no_grad()
    def dictionary(self):
        """What was learnt, in units of the rows themselves and rounded to bf16: decoder rows have length 1, so the value of
        a feature is the length of what it adds."""
        scale = self.input_scale / self.output_scale
        tensors = {
            "encoder": (self.encoder * scale).bfloat16(), "encoder_bias": self.encoder_bias / self.output_scale,
            "decoder": self.decoder.bfloat16(), "output_bias": self.output_bias / self.output_scale,
            "threshold": (self.threshold / self.output_scale).reshape(1)}
        return Dictionary({name: tensor.detach().clone() for name, tensor in tensors.items()})


class Dictionary:
    """The tensors of our own format (docs/features.md), with one threshold."""

    def __init__(self, tensors):
        self.tensors = tensors

    def encode(self, rows):
        """[rows, features] float32."""
        values = rows.float() @ self.tensors["encoder"].float().T + self.tensors["encoder_bias"]
        return torch.where(values > self.tensors["threshold"], F.relu(values), 0)

    def decode(self, features):
        return features @ self.tensors["decoder"].float() + self.tensors["output_bias"]

    def write(self, folder, read, write, model):
        """`read` and `write`: sites with their layer, "mlp_in.4"."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.cpu().contiguous() for name, tensor in self.tensors.items()}, str(folder / "weights.safetensors"))
        written = {} if read == write else {"write": write}
        fields = {"format": "rudder-dictionary", "read": read, **written, "activation": "batchtopk",
                  "weights": "weights.safetensors", "model": model}
        (folder / "dictionary.json").write_text(json.dumps(fields, indent=1) + "\n")


class Quality:
    """Adds up what a dictionary does to rows that it was not trained on."""

    def __init__(self, dictionary):
        self.dictionary = dictionary
        self.rows = self.active = 0
        self.error = self.sum = self.square = 0.0
        self.fired = 0

    @torch.no_grad()
    def add(self, inputs, outputs):
        features = self.dictionary.encode(inputs)
        y = outputs.double()
        self.error += (y - self.dictionary.decode(features)).square().sum().item()
        self.sum, self.square = self.sum + y.sum(dim=0), self.square + y.square().sum().item()
        self.rows, self.active = self.rows + len(y), self.active + (features > 0).sum().item()
        self.fired = self.fired + (features > 0).sum(dim=0)

    def figures(self):
        variance = self.square - (self.sum.square().sum() / self.rows).item()
        return {
            "rows": self.rows, "l0": round(self.active / self.rows, 2),
            "explained_variance": round(1 - self.error / variance, 4),
            "dead_share": round((self.fired == 0).float().mean().item(), 4)}
