#!/usr/bin/env python3
"""Trains an EAGLE-3 head for the demo model on its corpus, for a fixed time on one CPU core, and writes its folder.

It learns the model's own next tokens, of the tokens that the corpus answers with most, in chains of guesses as it will make
them. Started again with --resume it goes on from the folder's weights."""

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from corpus import encoded
from eagle import Eagle3, HeadConfig, aux_layers
from muon import Muon
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

LONGEST = 384  # tokens of a document that are learnt from
OTHER_TOKENS = 0.1  # the share of the tokens that are not answers which it learns too
CHAIN = 3  # guesses in a row that are learnt
COUNTED = 400_000  # tokens of the corpus that tell which tokens are frequent


def frequent_tokens(tokenizer, count, vocab):
    """The `count` tokens that the corpus has most in answers, ascending, and what share of the answers they are."""
    counts, seen = Counter(), 0
    for ids, mask in encoded(tokenizer, random.Random("frequent")):
        counts.update(i for i, learnt in zip(ids, mask) if learnt)
        seen += len(ids)
        if seen > COUNTED:
            break
    rest = (i for i in range(vocab) if i not in counts)
    best = [i for i, _ in counts.most_common(count)]
    best += [next(rest) for _ in range(count - len(best))]
    return torch.tensor(sorted(best)), sum(counts[i] for i in best) / counts.total()


def batches(tokenizer, rng, tokens):
    """(ids, learnt) of documents of similar lengths, padded: about `tokens` tokens."""
    documents = encoded(tokenizer, rng)
    while True:
        pool = sorted(([d[:LONGEST] for d in next(documents)] for _ in range(128)), key=lambda d: len(d[0]))
        batch, made = [], []
        for ids, mask in pool:
            if batch and (len(batch) + 1) * len(ids) > tokens:
                made.append(batch)
                batch = []
            batch.append((ids, mask))
        made.append(batch)
        rng.shuffle(made)
        for batch in made:
            longest = max(len(ids) for ids, _ in batch)
            pad = lambda values: torch.tensor([list(v) + [0] * (longest - len(v)) for v in values])
            yield pad([ids for ids, _ in batch]), pad([mask for _, mask in batch]).bool(), pad([[1] * len(i) for i, _ in batch]).bool()


def config_of(head, model, layers):
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **asdict(head), "target_hidden_size": model.hidden_size,
        "num_hidden_layers": 1, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
        "bos_token_id": model.bos_token_id, "eos_token_id": model.eos_token_id, "torch_dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(layers), "use_aux_hidden_state": True}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the demo model's folder")
    parser.add_argument("head", type=Path, help="the folder to write")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--plateau", type=float, default=0.4, help="share of the time before the rate decays")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    target = LlamaForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).eval().requires_grad_(False)
    table = target.model.embed_tokens.weight.float()
    layers = aux_layers(target.config.num_hidden_layers)
    head_config = HeadConfig()
    head = Eagle3(head_config)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    chosen, share = frequent_tokens(tokenizer, head_config.draft_vocab_size, head_config.vocab_size)
    print(f"{sum(p.numel() for p in head.parameters())} parameters; {chosen.numel()} tokens are {share:.2%} of the answers", flush=True)
    args.head.mkdir(parents=True, exist_ok=True)
    weights_file = args.head / "model.safetensors"
    if args.resume:
        stored = load_file(str(weights_file))
        chosen = torch.arange(chosen.numel()) + stored.pop("d2t")
        stored.pop("t2d")
        head.load_state_dict({name: weight.float() for name, weight in stored.items()})
    else:
        with torch.no_grad():
            head.lm_head.weight.copy_(table[chosen])
            head.norm.weight.copy_(target.model.norm.weight)
            width = head_config.hidden_size
            head.fc.weight.copy_(torch.cat([0.02 * torch.randn(width, 2 * width), torch.eye(width)], dim=1))
    draft_id = torch.full((head_config.vocab_size,), -1)
    draft_id[chosen] = torch.arange(chosen.numel())
    known = torch.zeros(head_config.vocab_size, dtype=torch.bool)
    known[chosen] = True

    def save():
        weights = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in head.state_dict().items()}
        weights |= {"d2t": chosen - torch.arange(chosen.numel()), "t2d": known}
        save_file(weights, str(weights_file), metadata={"format": "pt"})
        (args.head / "config.json").write_text(json.dumps(config_of(head_config, target.config, layers), indent=2) + "\n")

    matrices = [p for name, p in head.named_parameters() if p.ndim == 2 and name != "lm_head.weight"]
    rest = [p for name, p in head.named_parameters() if p.ndim == 1 or name == "lm_head.weight"]
    optimizers = Muon(matrices, lr=args.lr), torch.optim.AdamW(rest, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    start, step, learnt_tokens, total, right = time.time(), 0, 0, torch.zeros(CHAIN), torch.zeros(CHAIN)
    for ids, mask, real in batches(tokenizer, random.Random(f"eagle {args.seed} {args.resume}"), args.batch_tokens):
        elapsed = (time.time() - start) / (60 * args.minutes)
        if elapsed >= 1:
            break
        decay = 1.0 if elapsed < args.plateau else (1 - elapsed) / (1 - args.plateau)
        for group in [group for optimizer in optimizers for group in optimizer.param_groups]:
            group["lr"] = args.lr * min(1.0, (step + 1) / 30) * decay
        with torch.no_grad():
            out = target(ids, output_hidden_states=True)
            features = torch.cat([out.hidden_states[i] for i in layers], dim=-1)
            logits = out.logits[..., chosen].float()
            best = out.logits.argmax(-1)
        learnt = (mask | (torch.rand(mask.shape) < OTHER_TOKENS)) & real
        tokens = ids.shape[1] - 1 - CHAIN
        embedded = table[ids[:, 1:]].bfloat16()
        loss = 0.0
        # The guess of pass i at row t is of token t + 2 + i, which the model's row t + 1 + i says.
        with torch.autocast("cpu", torch.bfloat16):
            guesses = head.guesses(features[:, :tokens], embedded, CHAIN)
            for i, guessed in enumerate(guesses):
                rows = slice(1 + i, 1 + i + tokens)
                counted = learnt[:, 2 + i:2 + i + tokens] & known[best[:, rows]]
                guessed = guessed[counted].float()
                loss = loss + 0.8**i * F.cross_entropy(guessed, logits[:, rows][counted].softmax(-1))
                total[i] += F.cross_entropy(guessed.detach(), draft_id[best[:, rows][counted]]).item()
                right[i] += (guessed.argmax(-1) == draft_id[best[:, rows][counted]]).float().mean().item()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        head.zero_grad(set_to_none=True)
        step += 1
        learnt_tokens += ids.numel()
        if step % 20 == 0:
            print(f"step {step}  {elapsed:4.0%}  loss {(total / 20).tolist()}  right {(right / 20).tolist()}", flush=True)
            total.zero_()
            right.zero_()
            save()
    save()
    print(f"trained {step} steps, {learnt_tokens} tokens, in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
