"""Makes tests/adapters: LoRA adapters of the demo model as Hugging Face peft writes them, with random matrices, and what transformers
and peft answer with each in float32: greedy tokens and the log-probabilities of each step's likeliest ones.

    adapters.py OUT_DIR        # tests/adapters; needs torch, transformers, peft
"""

import json
import pathlib
import shutil
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPTS = ["Once upon a time there was a", "27 + 58 =", "The sea was calm and"]
TOKENS = 21
TOP = 4
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "tone": dict(config=LoraConfig(r=5, lora_alpha=7, target_modules=ALL, layers_to_transform=[1, 6]), dtype=torch.bfloat16, size=0.11),
    "mood": dict(config=LoraConfig(r=3, lora_alpha=11, target_modules=["q_proj", "v_proj", "down_proj"], layers_to_transform=[0, 7],
                                   use_rslora=True, rank_pattern={r"layers\.7\.mlp\.down_proj": 6}, alpha_pattern={"v_proj": 4}),
                 dtype=torch.float32, size=0.12),
    "voice": dict(config=LoraConfig(r=4, lora_alpha=9, target_modules=ALL, layers_to_transform=[2, 5], use_dora=True), dtype=torch.float32,
                  size=0.09),
}


def base_model():
    return AutoModelForCausalLM.from_pretrained(ROOT / "models/demo", dtype=torch.float32).eval()


def answers(model, tokenizer):
    out = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        told = {"prompt": ids, "tokens": [], "top": []}
        with torch.no_grad():
            for _ in range(TOKENS):
                logits = model(torch.tensor([ids + told["tokens"]])).logits[0, -1]
                best = torch.log_softmax(logits.double(), 0).topk(TOP)
                told["tokens"].append(best.indices[0].item())
                told["top"].append([[token, value] for token, value in zip(best.indices.tolist(), best.values.tolist())])
        out.append(told)
    return out


def main():
    folder = pathlib.Path(sys.argv[1])
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "models/demo/tokenizer.json"))
    golden = {"base": answers(base_model(), tokenizer)}
    for number, (name, made) in enumerate(ADAPTERS.items()):
        torch.manual_seed(41 + number)
        model = get_peft_model(base_model(), made["config"])
        with torch.no_grad():
            for key, weight in model.named_parameters():
                if "lora_magnitude" in key:
                    weight.mul_(1 + 0.21 * torch.randn_like(weight))
                elif "lora_" in key:
                    weight.normal_(std=made["size"]).copy_(weight.to(made["dtype"]))
        golden[name] = answers(model, tokenizer)
        for weight in (weight for key, weight in model.named_parameters() if "lora_" in key):
            weight.data = weight.data.to(made["dtype"])
        model.save_pretrained(folder / name)
        (folder / name / "README.md").unlink(missing_ok=True)
        shutil.rmtree(folder / name / ".cache", ignore_errors=True)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
