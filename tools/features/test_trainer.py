"""Checks of the trainer that need no model: rows made of few known directions are taken apart again. Run by hand or by
pytest where torch is."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from trainer import Dictionary, Quality, Settings, Trainer

DIRECTIONS, WIDTH, ACTIVE = 24, 32, 2
SETTINGS = Settings(features=64, k=3, prefixes=(1 / 2,), rate=4e-3, warm_up=20, silent_rows=20_000)


def drawn(count, directions, draw):
    """Rows with ACTIVE of the directions each, beside a mean that all have."""
    which = torch.rand(count, DIRECTIONS, generator=draw).topk(ACTIVE, dim=1).indices
    values = torch.zeros(count, DIRECTIONS).scatter(1, which, 30 + 30 * torch.rand(count, ACTIVE, generator=draw))
    return values @ directions + 5


def trained(outputs_of, steps=600):
    draw = torch.Generator().manual_seed(1)
    directions = F.normalize(torch.randn(DIRECTIONS, WIDTH, generator=draw), dim=1)
    trainer = None
    for step in range(steps):
        inputs = drawn(512, directions, draw)
        outputs = outputs_of(inputs)
        trainer = trainer or Trainer(inputs, outputs, SETTINGS)
        trainer.step(inputs, outputs, step / steps)
    return trainer.dictionary(), drawn(2048, directions, draw), directions


def test_directions_are_found():
    dictionary, rows, directions = trained(lambda inputs: inputs)
    decoder = dictionary.tensors["decoder"].float()
    assert torch.allclose(decoder.norm(dim=1), torch.ones(SETTINGS.features), atol=1e-2)
    best = (directions @ decoder.T).max(dim=1).values
    assert (best > 0.9).float().mean() > 0.8, best
    quality = Quality(dictionary)
    quality.add(rows, rows)
    figures = quality.figures()
    assert figures["explained_variance"] > 0.9 and figures["l0"] < 2 * SETTINGS.k, figures


def test_a_transcoder_gives_other_rows():
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(2)))[0]
    dictionary, rows, _ = trained(lambda inputs: inputs @ turn)
    quality = Quality(dictionary)
    quality.add(rows, rows @ turn)
    assert quality.figures()["explained_variance"] > 0.9, quality.figures()


@pytest.mark.parametrize("write", ["resid_post.5", "mlp_out.5"])
def test_files_hold_what_was_learnt(tmp_path, write):
    tensors = {"encoder": torch.eye(4).bfloat16(), "encoder_bias": torch.zeros(4), "decoder": torch.eye(4).bfloat16(),
               "output_bias": torch.ones(4), "threshold": torch.tensor([0.5])}
    Dictionary(tensors).write(tmp_path, "resid_post.5", write, "m")
    fields = json.loads((tmp_path / "dictionary.json").read_text())
    assert fields.get("write", fields["read"]) == write and fields["activation"] == "batchtopk"
    loaded = Dictionary(load_file(str(tmp_path / "weights.safetensors")))
    rows = torch.tensor([[0.4, 0.6, -1.0, 2.0]])
    assert loaded.encode(rows).tolist() == [[0.0, pytest.approx(0.6), 0.0, 2.0]]
    assert loaded.decode(loaded.encode(rows)).tolist() == [[1.0, pytest.approx(1.6), 1.0, 3.0]]
