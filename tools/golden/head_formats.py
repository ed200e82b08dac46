#!/usr/bin/env python3
"""What the format of the output head costs beside an fp8 body: a model of real weights on a text, rounded as products in low precision
round, beside itself in float32 (Hugging Face transformers).

    .venv-models/bin/python tools/golden/head_formats.py FOLDER TEXT TOKENS

The body is wide or fp8: weights by row and the rows that they multiply, token by token (value / (largest / 448) to e4m3). The head is
bf16, fp8 (likewise), int8 by row, or int8 in groups of so many inputs (value / (largest / 127), nearest), the last two with rows in bf16.
It prints, as JSON, of each pair "body head": KL of the whole vocabulary in nats a token, the share of equal first choices, the perplexity.
"""

import json
import os
import sys

os.environ.update(TQDM_DISABLE="1", HF_HUB_OFFLINE="1")

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast  # noqa: E402

WINDOW, ROWS = 512, 128


def scale_of(parts, most):
    return parts.abs().amax(-1, keepdim=True).clamp(min=1e-12) / most


def fp8(rows):
    scale = scale_of(rows, 448)
    return (rows / scale).to(torch.float8_e4m3fn).float() * scale


def int8(rows, group):
    parts = rows.reshape(*rows.shape[:-1], -1, group)
    scale = scale_of(parts, 127)
    return ((parts / scale).round() * scale).reshape(rows.shape)


def bf16(rows):
    return rows.bfloat16().float()


def states_of(model, ids, first):
    """What the head reads for each of the tokens, in windows side by side, each behind `first`."""
    windows = [[first, *ids[begin : begin + WINDOW]] for begin in range(0, len(ids), WINDOW)]
    return torch.cat([model.model(torch.tensor([window])).last_hidden_state[0][:-1] for window in windows])


@torch.no_grad()
def main():
    folder, text, count = sys.argv[1:]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = tokenizer(open(text).read(), add_special_tokens=False).input_ids[: int(count)]
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    weight = model.lm_head.weight.data.clone()
    states = {"wide": states_of(model, ids, first)}
    for module in model.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight = torch.nn.Parameter(fp8(bf16(module.weight.data)), requires_grad=False)
            module.register_forward_pre_hook(lambda _, inputs: (fp8(bf16(inputs[0])), *inputs[1:]))
    states["fp8"] = states_of(model, ids, first)
    stored, width = bf16(weight), weight.shape[1]
    heads = {"bf16": (stored, bf16), "fp8": (fp8(stored), fp8), "int8": (int8(stored, width), bf16)}
    heads |= {f"int8-{group}": (int8(stored, group), bf16) for group in (128, 64, 32) if width % group == 0}
    sums = {}
    for begin in range(0, len(ids), ROWS):
        part = slice(begin, begin + ROWS)
        exact = torch.log_softmax(states["wide"][part] @ weight.T, -1)
        own = torch.tensor(ids[part])
        for body, rows in states.items():
            for head, (rounded, round_row) in heads.items():
                said = torch.log_softmax(round_row(rows[part]) @ rounded.T, -1)
                of = sums.setdefault(f"{body} {head}", [0.0, 0, 0.0])
                of[0] += (exact.exp() * (exact - said)).sum().item()
                of[1] += (exact.argmax(-1) == said.argmax(-1)).sum().item()
                of[2] += said[torch.arange(len(own)), own].sum().item()
    total = len(ids)
    report = {name: {"kl": kl / total, "first_choice": same / total, "perplexity": float(torch.tensor(-own / total).exp())}
              for name, (kl, same, own) in sums.items()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
