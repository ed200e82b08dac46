#!/usr/bin/env python3
"""The log-probabilities of a text as Hugging Face transformers computes them, in the format of `rudder eval perplexity --save-logprobs
--parse-special` (docs/eval.md): an oracle of `rudder eval`, and a reference for models that are compared with transformers itself.

    .venv-models/bin/python tools/golden/eval_reference.py FOLDER TEXT OUT.safetensors [--windows rolling|halves|strided] [--window 512]
        [--stride 256] [--top 20] [--dtype float32]

It prints, as JSON, the perplexity, and with --beside OTHER.npy (what --save-all wrote: log-probabilities of the whole vocabulary, float32)
KL of all of it from the other.
"""

import argparse
import json
import os

os.environ.update(TQDM_DISABLE="1", HF_HUB_OFFLINE="1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast  # noqa: E402


def windows_of(count, kind, window, stride, prefix):
    """(tokens of the text, whether the prefix stands before or in place of the first, first scored position)"""
    if kind == "rolling":
        yield range(0, min(window, count)), "before" if prefix is not None else "", 0 if prefix is not None else 1
        done = min(window, count)
        while done < count:
            end = min(done + window, count)
            yield range(end - window - 1, end), "", done
            done = end
    elif kind == "halves":
        for begin in range(0, count // window * window, window):
            yield range(begin, begin + window), "in place" if prefix is not None else "", begin + window // 2 + 1
    else:
        begin, done = 0, 1
        while done < count:
            end = min(begin + window, count)
            yield range(begin, end), "", done
            begin, done = begin + stride, end


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    for name in ("folder", "text", "out"):
        parser.add_argument(name)
    parser.add_argument("--windows", default="rolling")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--stride", type=int, default=0)
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--save-all", default="")
    parser.add_argument("--beside", default="")
    asked = parser.parse_args()

    tokenizer = PreTrainedTokenizerFast.from_pretrained(asked.folder)
    rolling = asked.windows == "rolling"
    ids = tokenizer(open(asked.text).read(), add_special_tokens=not rolling).input_ids
    written = tokenizer("").input_ids
    prefix = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if not rolling:
        prefix = written[0] if written and written[0] == tokenizer.bos_token_id else None
    model = AutoModelForCausalLM.from_pretrained(asked.folder, dtype=getattr(torch, asked.dtype), attn_implementation="eager").eval()

    every, positions = [], []
    for span, how, first in windows_of(len(ids), asked.windows, asked.window, asked.stride, prefix):
        part = [ids[i] for i in span]
        if how == "before":
            part = [prefix] + part
        elif how:
            part[0] = prefix
        scored = span.stop - first
        logits = model(torch.tensor([part])).logits[0, -scored - 1 : -1]
        every.append(torch.log_softmax(logits.float(), -1))
        positions += range(first, span.stop)
    every = torch.cat(every)
    own = every[torch.arange(len(positions)), torch.tensor([ids[i] for i in positions])]
    top = every.topk(min(asked.top, every.shape[1]))
    tensors = {
        "tokens": np.array(ids, "<i4"),
        "positions": np.array(positions, "<i4"),
        "logprobs": own.numpy(),
        "top_tokens": top.indices.numpy().astype("<i4"),
        "top_logprobs": top.values.contiguous().numpy(),
    }
    said = {"format": "rudder.logprobs", "version": 1, "model": asked.folder, "windows": asked.windows, "window": asked.window,
            "stride": asked.stride, "prefix": -1 if prefix is None else prefix}
    save_file(tensors, asked.out, metadata={key: str(value) for key, value in said.items()})
    report = {"perplexity": float(torch.exp(-own.double().mean())), "num_tokens": len(positions)}
    if asked.save_all:
        np.save(asked.save_all, every.numpy())
    if asked.beside:
        other = torch.from_numpy(np.load(asked.beside))
        kl = torch.cat([(p.double().exp() * (p.double() - q.double())).sum(-1) for p, q in zip(other.split(64), every.split(64))])
        report |= {"kl": kl.mean().item(), "kl_p99": torch.quantile(kl, 0.99).item(),
                   "first_choice": (every.argmax(-1) == other.argmax(-1)).double().mean().item()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
