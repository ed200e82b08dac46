"""Makes tests/steering/experts.json: what transformers answers in float32 from tiny mixtures of experts whose routers are steered. A router's
logits get a bias, and experts are activated and deactivated as SteerMoE does (arXiv 2509.09660): log-softmax, max + .01, min - .01. Where a
router chooses by other scores than its logits (sigmoids and a correction), the scores of the choice are changed, and weights stay. The rest of
each router is transformers' own code.

    expert_steering.py OUT.json        # tests/steering/experts.json; needs torch, transformers, safetensors
"""

import json
import pathlib
import sys
from unittest import mock

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests/golden"
TOKENS = 12
TOP = 4
MARGIN = 0.01
LEAST_GAP = 2e-4  # between what is chosen and what is not
# Of each checkpoint: layers with experts, how many, and the elements of `steering` but for biases.
CASES = {
    "qwen3-moe": dict(layers=[1, 2], experts=9, maps=[dict(layers="all", activate=[7], deactivate=[0, 3])]),
    "gpt-oss": dict(layers=[0, 1, 2, 3], experts=6, maps=[dict(layers=[0, 2], activate=[5]), dict(layers=3, activate=[1, 4], deactivate=[2])]),
    "glm4-moe": dict(layers=[1, 2], experts=8, maps=[dict(layers=1, activate=[6], deactivate=[1, 4]), dict(layers=2, deactivate=[5, 7, 2])]),
}


def chosen_first_and_last(scores, one):
    out = scores.clone()
    least, most = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    for expert in one.get("activate", []):
        out[:, expert] = (most + MARGIN)[:, 0]
    for expert in one.get("deactivate", []):
        out[:, expert] = (least - MARGIN)[:, 0]
    return out


def is_of(one, layer):
    return one["layers"] == "all" or layer == one["layers"] or (isinstance(one["layers"], list) and layer in one["layers"])


class Steered:
    """A router's forward with its logits, or the scores that it chooses by, changed; notes what is chosen."""

    def __init__(self, router, layer, bias, maps, seen):
        self.router, self.layer, self.bias, self.seen = router, layer, bias, seen
        self.maps = [one for one in maps if is_of(one, layer)]
        self.forward = router.forward

    def __call__(self, hidden):
        router = self.router
        flat = hidden.reshape(-1, hidden.shape[-1]).float()
        logits = torch.nn.functional.linear(flat, router.weight.float(), getattr(router, "bias", None)) + self.bias
        correction = getattr(router, "e_score_correction_bias", None)
        if correction is None:
            for one in self.maps:
                logits = chosen_first_and_last(torch.log_softmax(logits, -1), one)
        else:
            choice = logits.sigmoid() + correction
            for one in self.maps:
                choice = chosen_first_and_last(choice, one)
            router.e_score_correction_bias = choice - logits.sigmoid()
        with mock.patch("torch.nn.functional.linear", lambda *args: logits):
            out = self.forward(hidden)
        if correction is not None:
            router.e_score_correction_bias = correction
        self.seen[self.layer] = out[2].tolist()
        ranked = (logits if correction is None else choice).sort(-1, descending=True).values
        k = out[2].shape[-1]
        gap = (ranked[:, k - 1] - ranked[:, k]).min().item()
        assert correction is not None or gap > LEAST_GAP, f"layer {self.layer}: experts {gap} apart"
        return out


def answer(name, about):
    folder = ROOT / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
    torch.manual_seed(len(name))
    prompt = load_file(folder / "golden.safetensors")["prompt_ids"].tolist()
    with torch.no_grad():
        plain = torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1].double(), 0)
    steering, seen = [], {}
    for layer in about["layers"]:
        bias = (0.83 * torch.randn(about["experts"])).tolist()
        steering.append({"op": "add", "site": "router_logits", "layers": layer, "vector": bias, "scale": 0.7})
        mlp = model.model.layers[layer].mlp
        router = mlp.router if hasattr(mlp, "router") else mlp.gate
        bias_row = torch.tensor(bias, dtype=torch.float32) * 0.7
        router.forward = Steered(router, layer, bias_row, about["maps"], seen)
    steering += [{"op": "experts", "site": "router_logits", **one} for one in about["maps"]]
    told = {"checkpoint": name, "steering": steering, "prompt": prompt, "tokens": [], "top": []}
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = model(torch.tensor([prompt + told["tokens"]])).logits[0, -1]
            best = torch.log_softmax(logits.double(), 0).topk(TOP)
            assert best.values[0] - best.values[1] > 1e-3, "two tokens are about as likely"
            changed = (plain[best.indices] - best.values).abs().max()
            assert told["tokens"] or changed > 0.1, "steering changes next to nothing"
            told["tokens"].append(best.indices[0].item())
            told["top"].append([[token, value] for token, value in zip(best.indices.tolist(), best.values.tolist())])
    told["experts"] = {str(layer): chosen for layer, chosen in seen.items()}
    return told


def main():
    answers = [answer(name, about) for name, about in CASES.items()]
    pathlib.Path(sys.argv[1]).write_text(json.dumps(answers))
    for told in answers:
        print(told["checkpoint"], len(told["prompt"]), told["tokens"])


if __name__ == "__main__":
    main()
