#!/usr/bin/env python3
"""What an fp8 cache, and queries rounded beside it, cost a trained model (docs/adr/0069-e4m3-queries.md).

    query_precision.py MODEL [SUITES] [--cases N] [--out FILE.json]
    query_precision.py --synthetic

Of each case of the suites the model in float32 answers the prompt; then every way to round attention predicts the tokens of
prompt and answer, all of whose queries are rounded (as of a prompt). Says the KL of the predicted distributions from those
of float32 in nats and how often the likeliest token is the same, of the answers' tokens, which the model has learnt, and of
the prompts', which it has not; and how the answers score. Where the answer would differ it is generated, else it is the one
of float32. --synthetic: one layer's attention by random queries and keys with outliers."""

import argparse
import itertools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import score
import torch
from attention_rounding import ROUNDINGS, attend, cut_scores, softmax_weights
from evaluate import LONGEST, SUITES
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
import asynct  # noqa: E402,F401  registers the architecture

CASES = {"addition": 60, "recall": 40, "json": 40, "story": 20, "chat": 40, "long": 20}
SEEDS = 8


class Attention(nn.Module):
    """Stands for a layer's attention, of a softmax or of a gate, and keeps keys and values as they are stored."""

    def __init__(self, original):
        super().__init__()
        self.original = original
        self.rounding = ROUNDINGS["float32"]
        self.stored = None

    def weigh(self, products):
        if hasattr(self.original, "weights"):
            return self.original.weights(products), 1.0
        return softmax_weights(products)

    def run(self, x, rope):
        own = self.original
        dim = own.config.head_dim
        q, k, v = (p(x).unflatten(-1, (-1, dim)).transpose(1, 2) for p in (own.q_proj, own.k_proj, own.v_proj))
        if hasattr(own, "q_norm"):
            q, k = own.q_norm(q), own.k_norm(k)
        q, k = apply_rotary_pos_emb(q, k, *rope)
        new = [self.rounding.cache(t) for t in (k, v)]
        self.stored = new if self.stored is None else [torch.cat(pair, 2) for pair in zip(self.stored, new)]
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in self.stored)
        out = attend(q, k, v, dim**-0.5, self.rounding, self.weigh)
        if hasattr(own, "fir_gamma"):
            out = own.fir_gamma[:, None, None] * out
        return own.o_proj(out.transpose(1, 2).flatten(2))

    def forward(self, x=None, rope=None, hidden_states=None, position_embeddings=None, **_):
        if x is not None:
            return self.run(x, rope)
        return self.run(hidden_states, position_embeddings), None


class Model:
    def __init__(self, folder):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.ends = set(self.model.generation_config.eos_token_id)
        self.is_gated = self.model.config.model_type == "asynct"
        self.attentions = []
        for layer in self.model.model.layers:
            layer.self_attn = Attention(layer.self_attn)
            self.attentions.append(layer.self_attn)

    def begin(self, rounding):
        for attention in self.attentions:
            attention.rounding, attention.stored = rounding, None

    @torch.inference_mode()
    def logits(self, ids):
        """Of the next tokens of a text, behind those that were given since begin()."""
        stored = self.attentions[0].stored
        first = 0 if stored is None else stored[0].shape[2]
        x = self.model.model.embed_tokens(torch.tensor([ids]))
        rope = self.model.model.rotary_emb(x, torch.arange(first, first + len(ids))[None])
        for layer in self.model.model.layers:
            x = layer(x, rope) if self.is_gated else layer(x, position_embeddings=rope)
        return self.model.lm_head(self.model.model.norm(x))[0]

    def generate(self, prompt, rounding, longest):
        """The likeliest tokens up to one that ends the answer, which is included."""
        self.begin(rounding)
        answer = []
        ids = prompt
        while len(answer) < longest and not (answer and answer[-1] in self.ends):
            ids = [self.logits(ids)[-1].argmax().item()]
            answer += ids
        return answer

    def prompt_of(self, case):
        text = self.tokenizer.apply_chat_template(case["messages"], add_generation_prompt=True, tokenize=False)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def answer_of(self, case, ids):
        is_ended = ids[-1] in self.ends
        text = self.tokenizer.decode(ids[:-1] if is_ended else ids, clean_up_tokenization_spaces=False)
        return {"id": case["id"], "text": text, "finish_reason": "stop" if is_ended else "length"}


def kl(reference, other):
    """KL(reference || other) of each row of logits, in nats."""
    p, q = (t.double().log_softmax(-1) for t in (reference, other))
    return (p.exp() * (p - q)).sum(-1)


class Found:
    def __init__(self):
        self.distances = {"answers": [], "prompts": []}
        self.answers = []

    def add(self, reference, other, prompt_tokens):
        both = torch.stack((kl(reference, other), (reference.argmax(-1) == other.argmax(-1)).double()))
        self.distances["prompts"].append(both[:, :prompt_tokens - 1])
        self.distances["answers"].append(both[:, prompt_tokens - 1:])

    def summary(self, suites):
        result = {}
        for part, distances in self.distances.items():
            found, same = torch.cat(distances, 1)
            result[part] = {"tokens": len(found), "mean": found.mean().item(), "p99": found.quantile(0.99).item(),
                            "max": found.max().item(), "same": same.mean().item()}
        result["right"] = {}
        for task, cases in suites.items():
            names = {c["id"] for c in cases}
            scores, _ = score.score(cases, [a for a in self.answers if a["id"] in names])
            result["right"][task] = scores[task]["right"]
        return result


def measure(model, suites):
    """{name of a rounding: what it costs}."""
    found = {name: Found() for name in ROUNDINGS}
    for task, cases in suites.items():
        began = time.time()
        for case in cases:
            prompt = model.prompt_of(case)
            answer = model.generate(prompt, ROUNDINGS["float32"], LONGEST[task])
            reference = None
            for name, rounding in ROUNDINGS.items():
                model.begin(rounding)
                logits = model.logits(prompt + answer[:-1])
                reference = logits if reference is None else reference
                found[name].add(reference, logits, len(prompt))
                is_same = logits[len(prompt) - 1:].argmax(-1).tolist() == answer
                own = answer if is_same else model.generate(prompt, rounding, LONGEST[task])
                found[name].answers.append(model.answer_of(case, own))
        print(f"{task}: {len(cases)} cases in {time.time() - began:.0f} s", file=sys.stderr, flush=True)
    return {name: f.summary(suites) for name, f in found.items()}


def synthetic(seed, size, outliers, correlation, queries=64, keys=4096, dim=128):
    """{name: squared error of the output, relative to the exact one}. `size` is the mean of |q| |k| / sqrt(dim); q, k or both have
    four channels 20 times the others, about a mean that all tokens share, and heavy tails; each query has a key that points
    the same way where `correlation` is 1."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=random)

    def rows(count, has_outliers):
        if not has_outliers:
            return normal(count, dim)
        channels = normal(dim).exp()
        channels[torch.randperm(dim, generator=random)[:4]] *= 20
        return channels * (normal(dim) + normal(count, dim) * normal(count, 1).mul(0.5).exp())

    q, k, v = rows(queries, "q" in outliers), rows(keys, "k" in outliers), normal(keys, dim)
    along = k[torch.randint(keys, (queries,), generator=random)]
    q = q / q.norm(dim=-1, keepdim=True) + correlation * along / along.norm(dim=-1, keepdim=True)
    k *= 300 / k.abs().max()  # nothing is clipped
    q *= size * dim**0.5 / (q.norm(dim=-1).mean() * k.norm(dim=-1).mean())
    ways = {**ROUNDINGS, "b, sums of fp8 tensor cores": replace(ROUNDINGS["b: a, queries by row"], scores=cut_scores)}
    outs = {name: attend(q, r.cache(k), r.cache(v), dim**-0.5, r, all_keys) for name, r in ways.items()}
    exact = outs.pop("float32")
    return {name: ((out - exact).norm(dim=-1) / exact.norm(dim=-1)).square().mean().item()
            for name, out in outs.items()}


def all_keys(products):
    weights = (products - products.amax(-1, keepdim=True)).exp()
    return weights, weights.sum(-1, keepdim=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("suites", type=Path, nargs="?", help="by default eval/ of the model")
    parser.add_argument("--cases", type=float, default=1, metavar="F", help=f"times as many as {CASES}")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--synthetic", action="store_true")
    args = parser.parse_args()
    torch.set_flush_denormal(True)  # small weights take a CPU long otherwise
    if args.synthetic:
        result = {}
        for case in itertools.product((5, 20, 60), ("none", "q", "k", "q, k"), (0, 1)):
            drawn = [synthetic(seed, *case) for seed in range(SEEDS)]
            errors = {name: sum(d[name] for d in drawn) / SEEDS for name in drawn[0]}
            name = "|q| |k| / sqrt(d) {:2}, outliers {:5} correlation {}".format(*case)
            result[name] = errors
            of_cache = errors["a: fp8 cache"]
            print(f"{name} a {of_cache**0.5:.1e}; squares by that of a:",
                  *(f"{way.split(':')[0]} {error / of_cache:.2f}" for way, error in errors.items()), flush=True)
    else:
        folder = args.suites or args.model / "eval"
        suites = {}
        for task in SUITES:
            cases = score.read_jsonl(folder / f"{task}.jsonl")
            suites[task] = cases[::max(1, round(len(cases) / (args.cases * CASES[task])))]
        result = measure(Model(args.model), suites)
        print("cases", {task: len(cases) for task, cases in suites.items()})
        for name, row in result.items():
            print(name, "right:", list(row["right"].values()))
            for part in ("answers", "prompts"):
                found = row[part]
                print(f"    {part}: mean {found['mean']:.2e} p99 {found['p99']:.2e} max {found['max']:.2e}, "
                      f"same {100 * found['same']:.3f} % of {found['tokens']}")
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
