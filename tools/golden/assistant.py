#!/usr/bin/env python3
"""Makes a tiny assistant of the golden Gemma 4 and writes what Hugging Face's own generator of candidates guesses with it.

    tools/golden/assistant.py tests/golden/gemma4 tests/draft_heads/gemma4-assistant tests/draft_heads/assistant.json

The assistant is trained on the model's language (language.py), on rows and KV of the model itself, so that it guesses with
margins. A case is the model's state behind `ids`, the last of which ran as a single token: of a window so many keys are
then left as the window has. `logits` has, of each guess, its own logit and those of TOLD. Cases in which two tokens are
nearly as likely are left out. Assisted generation must give the plain greedy text.
"""

import argparse
import hashlib
import json
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache, Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

import language
from make_golden import initialise, versions

GUESSES = 4
TOLD = [50, 100, 200]
MIN_MARGIN = 0.05
STEPS, BATCH, LEARNING_RATE = 800, 24, 4e-3
LENGTH = 120


def make_config(model):
    text = model.config
    sliding = text.per_layer_config["sliding_attention"]
    full = text.per_layer_config["full_attention"]
    return Gemma4AssistantConfig(
        backbone_hidden_size=text.hidden_size,
        text_config=Gemma4TextConfig(
            vocab_size=text.vocab_size,
            hidden_size=40,
            intermediate_size=56,
            rms_norm_eps=0.0113,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=sliding.num_key_value_heads,
            head_dim=sliding.head_dim,
            global_head_dim=full.head_dim,
            num_global_key_value_heads=full.num_key_value_heads,
            attention_k_eq_v=True,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            sliding_window=text.sliding_window,
            max_position_embeddings=text.max_position_embeddings,
            rope_parameters=text.rope_parameters,
            hidden_size_per_layer_input=0,
            vocab_size_per_layer_input=0,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        ),
    )


class Case:  # as make_golden.initialise wants one
    family = "gemma4_text"

    def __init__(self, config):
        self.config = {"hidden_size": config.text_config.hidden_size, "tie_word_embeddings": True}


@torch.no_grad()
def state_behind(model, ids):
    """Of the model behind `ids` [B, T]: what it gives for the last token, run alone."""
    cache = DynamicCache(config=model.config)
    if ids.shape[1] > 1:
        model(ids[:, :-1], past_key_values=cache, use_cache=True)
    return model(
        ids[:, -1:], past_key_values=cache, use_cache=True, output_hidden_states=True, return_shared_kv_states=True
    )


def train(model, assistant, spoken):
    """Each step: a length, sentences of which it comes behind, and the likelihood of what follows, guess by guess."""
    parameters = [p for p in assistant.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: min(1.0, (s + 1) / 50) * (1.0 - s / STEPS))
    random = torch.Generator().manual_seed(7)
    embed = model.get_input_embeddings()
    for _ in range(STEPS):
        length = int(torch.randint(2, LENGTH - GUESSES, (1,), generator=random))
        ids = spoken.sentences(BATCH, length + GUESSES + 1)
        outputs = state_behind(model, ids[:, :length])
        row, loss = outputs.hidden_states[-1], 0.0
        position = torch.full((BATCH, 1), length)
        for guess in range(GUESSES):
            token = ids[:, length + guess : length + guess + 1]
            made = assistant(
                inputs_embeds=torch.cat([embed(token).detach(), row], dim=-1),
                position_ids=position,
                shared_kv_states=outputs.shared_kv_states,
            )
            row = made.last_hidden_state
            loss = loss + torch.nn.functional.cross_entropy(made.logits[:, 0], ids[:, length + guess + 1])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()
    return loss.item() / GUESSES


@torch.no_grad()
def guesses_behind(model, assistant, ids):
    """The model's next token, the guesses behind it, some of their logits, and the least margin of all these choices."""
    outputs = state_behind(model, torch.tensor([ids]))
    top = outputs.logits[0, -1].topk(2)
    known = torch.tensor([[*ids, top.indices[0].item()]])
    config = model.generation_config
    config.max_length = len(ids) + 64
    assistant.generation_config.num_assistant_tokens = GUESSES
    generator = SinglePositionMultiTokenCandidateGenerator(
        input_ids=known,
        assistant_model=assistant,
        target_model_input_embeddings=model.get_input_embeddings(),
        generation_config=config,
        model_kwargs={},
        eos_token_id=torch.tensor([-1]),
    )
    made, logits = generator.get_candidates(
        known, model_kwargs={}, model_outputs=outputs, is_first_iteration=False, n_last_matches=0
    )
    margins = logits[0].topk(2).values
    least = min((top.values[0] - top.values[1]).item(), (margins[:, 0] - margins[:, 1]).min().item())
    guess = made[0, known.shape[1] :].tolist()
    told = [[round(row[i].item(), 5) for i in (token, *TOLD)] for token, row in zip(guess, logits[0])]
    return known[0, -1].item(), guess, told, least


def check_generation(model, assistant, prompt):
    """Text with the assistant is the text without."""
    ids = torch.tensor([prompt])
    options = dict(max_new_tokens=48, do_sample=False, eos_token_id=None, pad_token_id=0)
    plain = model.generate(ids, **options)
    assisted = model.generate(ids, assistant_model=assistant, **options)
    assert plain.tolist() == assisted.tolist(), "assisted generation gives another text"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("assistant", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    seed = json.loads((args.model / "meta.json").read_text())["seed"]
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    spoken = language.Language(seed)
    config = make_config(model)
    torch.manual_seed(seed)
    assistant = Gemma4AssistantForCausalLM(config).eval()
    assistant.set_attn_implementation("eager")
    initialise(assistant, Case(config), seed)
    print("loss", train(model, assistant, spoken))
    shutil.rmtree(args.assistant, ignore_errors=True)
    assistant.to(torch.bfloat16).save_pretrained(args.assistant)
    (args.assistant / "generation_config.json").unlink(missing_ok=True)
    weights = hashlib.sha256((args.model / "model.safetensors").read_bytes()).hexdigest()[:16]
    (args.assistant / "meta.json").write_text(json.dumps({**versions(), "model": weights}, indent=2) + "\n")
    assistant = Gemma4AssistantForCausalLM.from_pretrained(
        args.assistant, dtype=torch.float32, attn_implementation="eager"
    ).eval()

    cases, left_out, right = [], 0, 0
    for length in [2, 3, 5, 8, 12, 15, 16, 17, 18, 19, 24, 31, 32, 33, 34, 47, 48, 49, 64, 80, 96, 110] * 3:
        ids = spoken.sentences(1, length)[0].tolist()
        token, guess, logits, margin = guesses_behind(model, assistant, ids)
        if margin < MIN_MARGIN:
            left_out += 1
            continue
        text = [*ids, token]
        for guessed in guess:
            if guessed != guesses_behind(model, assistant, text)[0]:
                break
            right += 1
            text.append(guessed)
        cases.append(json.dumps({"ids": ids, "next": token, "guess": guess, "logits": logits}, separators=(",", ":")))
    for _ in range(6):
        check_generation(model, assistant, spoken.sentences(1, 40)[0].tolist())
    args.out.write_text("[\n" + ",\n".join(cases) + "\n]\n")
    print(len(cases), "cases,", left_out, "left out,", right / max(len(cases), 1), "guesses right a case")


if __name__ == "__main__":
    main()
