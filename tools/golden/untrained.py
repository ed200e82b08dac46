#!/usr/bin/env python3
"""Makes tests/untrained: checkpoints of random weights of families that have no trained model in tests/golden yet, as
`save_pretrained` writes them, and what transformers computes from them in float32 (torch and transformers are needed).

    untrained.py OUT_DIR CASE ...

A case is one of hybrid_cases.py or latent_cases.py. Its mathematics show; in less than float32 nothing would (README.md).
"""

import json
import pathlib
import sys

import torch
from transformers import AutoConfig

from hybrid_cases import HYBRIDS
from latent_cases import LATENTS
from make_golden import forward, gaps_of, greedy, initialise, load, loader_of, store, versions

NUM_GREEDY = 40
SEED = 7


def make(case, out):
    folder = out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.for_model(case.family, **json.loads(json.dumps(case.config)))
    loader = loader_of(case.family)
    model = loader.from_config(config, dtype=torch.float32) if hasattr(loader, "from_config") else loader(config).float()
    initialise(model, case, SEED)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = load(folder)
    prompt = torch.randint(3, 256, (case.prompt_len,), generator=torch.Generator().manual_seed(3)).tolist()
    logits = forward(model, prompt)
    ids, rows = greedy(model, prompt, NUM_GREEDY)
    store(folder, prompt, logits, ids, rows)
    meta = {**versions(), "seed": SEED, "max_len": 152, "min_gap": gaps_of(rows).min().item(), "logits_std": logits.std().item()}
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    for case in HYBRIDS + LATENTS:
        if case.name in sys.argv[2:]:
            make(case, pathlib.Path(sys.argv[1]))


if __name__ == "__main__":
    main()
