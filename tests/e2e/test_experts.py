"""Steering of experts through the real server: what maps make the routers choose, in one batch and alone, on ranks, in stages, in chunks,
beside drafts and from cached prefixes; captures of routers, and the answers' routed_experts; what is refused."""

import base64
import concurrent.futures
import io
import json
import os
import shutil
import sys

import httpx2
import numpy as np
import pytest

from conftest import DEMO, ROOT, serving

sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))

from rudder_client import Capture, FileCapture, Rudder, ops, read_capture  # noqa: E402
from rudder_client.safetensors_file import write_safetensors  # noqa: E402

LAYERS, EXPERTS, CHOSEN, HIDDEN, WIDTH, VOCAB = 3, 9, 3, 64, 48, 2560  # layer 0 is dense
FLAGS = ("--dtype", "float32", "--enable-steering", "--max-model-len", "512")
PROMPT = "A small boat sails over the sea, and a big whale swims below it."
MAP = {"op": "experts", "site": "router_logits", "layers": "all", "activate": [7], "deactivate": [0, 3]}
BIAS = [((i * 5) % 7 - 3) * 0.9 for i in range(EXPERTS)]
STEERINGS = [None, MAP, {**MAP, "activate": [2, 5], "deactivate": [8]},
             {"op": "add", "site": "router_logits", "layers": [1, 2], "vector": BIAS, "scale": 1.3},
             [{"op": "add", "site": "router_logits", "layers": 2, "vector": BIAS}, {**MAP, "select": {"phase": "decode"}}],
             {"op": "add", "site": "resid_post", "layers": 1, "vector": [0.3] * HIDDEN}]


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    """A random Qwen 3 mixture of experts with the demo's tokenizer."""
    folder = tmp_path_factory.mktemp("moe") / "model"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder / name)
    config = json.loads((ROOT / "tests/golden/qwen3-moe/config.json").read_text())
    config.update(hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_local_experts=EXPERTS, num_experts=EXPERTS, head_dim=16,
                  num_experts_per_tok=CHOSEN, moe_intermediate_size=WIDTH, intermediate_size=96, vocab_size=VOCAB, dtype="float32",
                  bos_token_id=0, eos_token_id=2)
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(11)
    tensors = {}

    def add(name, *shape, size=0.2):
        tensors[name] = (random.normal(size=shape) * size).astype(np.float32)

    add("model.embed_tokens.weight", VOCAB, HIDDEN, size=1)
    add("lm_head.weight", VOCAB, HIDDEN, size=0.3)
    tensors["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, rows in (("q", 64), ("k", 32), ("v", 32)):
            add(f"{at}self_attn.{name}_proj.weight", rows, HIDDEN)
        add(f"{at}self_attn.o_proj.weight", HIDDEN, 64)
        for norm in ("self_attn.q_norm", "self_attn.k_norm"):
            tensors[f"{at}{norm}.weight"] = np.ones(16, np.float32)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{norm}.weight"] = np.ones(HIDDEN, np.float32)
        mlps = [f"{at}mlp."] if layer == 0 else [f"{at}mlp.experts.{expert}." for expert in range(EXPERTS)]
        for mlp in mlps:
            width = 96 if layer == 0 else WIDTH
            add(f"{mlp}gate_proj.weight", width, HIDDEN)
            add(f"{mlp}up_proj.weight", width, HIDDEN)
            add(f"{mlp}down_proj.weight", HIDDEN, width, size=0.4)
        if layer > 0:
            add(f"{at}mlp.gate.weight", EXPERTS, HIDDEN, size=0.4)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("captures")


@pytest.fixture(scope="module")
def running(moe, root):
    with serving(*FLAGS, "--capture-memory-mb", "8", "--capture-consumer", f"filesystem:root={root},shard_age_ms=50", model=moe) as server:
        yield server


def post(server, body, path="/v1/completions", status=200):
    answer = httpx2.post(server.url + path, json=body, timeout=120)
    assert answer.status_code == status, answer.text
    return answer.json()


def ask(server, steering=None, **fields):
    steered = {} if steering is None else {"steering": steering}
    body = {"prompt": PROMPT, "max_tokens": 10, "temperature": 0, "ignore_eos": True, "logprobs": 2, "return_token_ids": True, **fields}
    return post(server, {**body, **steered})


def experts_of(choice):
    return np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])), allow_pickle=False)


def said(answer):
    """What does not depend on when the answer was made."""
    return [{key: value for key, value in choice.items() if key != "stop_reason"} for choice in answer["choices"]]


def everything(server, **fields):
    return [said(ask(server, steering, **fields)) for steering in STEERINGS]


def test_experts_are_chosen_first_and_last(running):
    plain = ask(running, return_routed_experts=True)
    before = experts_of(plain["choices"][0])
    prompt, new = plain["usage"]["prompt_tokens"], plain["usage"]["completion_tokens"]
    assert before.dtype == np.int16 and before.shape == (prompt + new - 1, LAYERS, CHOSEN)
    assert (before[:, 0] == -1).all() and (before[:, 1:] >= 0).all() and (before < EXPERTS).all()
    assert {0, 3} & set(before[:, 1:].flatten().tolist()) and not (before[:, 1:, 0] == 7).all()
    steered = ask(running, MAP, return_routed_experts=True)
    after = experts_of(steered["choices"][0])
    assert (after[:, 1:, 0] == 7).all()
    assert not {0, 3} & set(after[:, 1:].flatten().tolist())
    assert steered["choices"][0]["token_ids"] != plain["choices"][0]["token_ids"]
    assert steered["choices"][0]["logprobs"] != plain["choices"][0]["logprobs"]
    late = experts_of(ask(running, {**MAP, "select": {"phase": "decode"}}, return_routed_experts=True)["choices"][0])
    assert np.array_equal(late[:prompt], before[:prompt]) and (late[prompt:, 1:, 0] == 7).all()


def test_captured_logits_say_what_is_chosen(running):
    rows = {"response": {"sites": {"router_logits": [1, 2], "routed_experts": [1, 2]}, "positions": "all"}}
    for point in ("pre", "post"):
        answer = ask(running, MAP, capture={"response": {**rows["response"], "point": point}}, return_routed_experts=True)
        packs = answer["capture_results"]["response"]["payload"]["rows"]
        assert packs["router_logits"]["dtype"] == "float32" and packs["routed_experts"]["dtype"] == "int16"
        logits = np.frombuffer(base64.b64decode(packs["router_logits"]["data"]), np.float32).reshape(-1, 2, EXPERTS)
        chosen = np.frombuffer(base64.b64decode(packs["routed_experts"]["data"]), np.int16).reshape(-1, 2, CHOSEN)
        assert np.array_equal(chosen, experts_of(answer["choices"][0])[:, 1:])
        if point == "pre":
            log = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
            wanted = log.copy()
            wanted[..., 7] = log.max(-1) + 0.01
            wanted[..., [0, 3]] = log.min(-1)[..., None] - 0.01
        else:
            assert np.abs(logits - wanted).max() < 1e-5
            assert np.array_equal(chosen, np.argsort(-logits, -1, kind="stable")[..., :CHOSEN])


def test_a_batch_is_each_request_alone(running):
    alone = everything(running, return_routed_experts=True)
    assert len({json.dumps(answer) for answer in alone}) == len(STEERINGS)
    with concurrent.futures.ThreadPoolExecutor(len(STEERINGS)) as pool:
        for _ in range(2):
            together = list(pool.map(lambda steering: said(ask(running, steering, return_routed_experts=True)), STEERINGS))
            assert together == alone


def test_prefixes_are_shared_among_equal_maps_alone(running):
    prompt = "The lighthouse keeper counted every wave that came in from the dark and cold sea, one after another, all night."

    def cached(steering):
        return ask(running, steering, prompt=prompt)["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(None) == 0
    whole = cached(None)
    assert whole >= 16
    assert cached(MAP) == 0 and cached(MAP) == whole
    assert cached({**MAP, "activate": [6]}) == 0
    assert cached({**MAP, "select": {"phase": "decode"}}) == whole


@pytest.mark.parametrize("flags", [("--max-num-batched-tokens", "7"), ("--pipeline-parallel-size", "2"), ("--no-enable-prefix-caching",),
                                   ("--kv-cache-memory-bytes", "80k", "--max-num-seqs", "4", "--max-model-len", "96"),
                                   ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}')],
                         ids=["chunks", "stages", "no prefixes", "preempted", "drafts"])
def test_nothing_else_changes_an_answer(running, moe, flags):
    alone = everything(running)
    with serving(*FLAGS, *flags, model=moe) as server:
        with concurrent.futures.ThreadPoolExecutor(len(STEERINGS)) as pool:
            assert list(pool.map(lambda steering: said(ask(server, steering)), STEERINGS)) == alone


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks on a CPU need a core each")
def test_ranks_choose_alike(running, moe):
    with serving(*FLAGS, "--tensor-parallel-size", "2", "--capture-memory-mb", "8", model=moe) as server:
        for steering in STEERINGS:
            one, two = (ask(at, steering, return_routed_experts=True)["choices"][0] for at in (running, server))
            assert two["token_ids"] == one["token_ids"]
            assert np.array_equal(experts_of(two), experts_of(one))


def test_every_api_carries_it(running):
    said_by = {}
    for name, path, body in (
            ("chat", "/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}),
            ("responses", "/v1/responses", {"input": PROMPT, "max_output_tokens": 8}),
            ("messages", "/v1/messages", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8})):
        model = running.client().models.list().data[0].id
        texts = []
        for steering in (None, MAP):
            answer = post(running, {"model": model, "temperature": 0, **body, **({} if steering is None else {"steering": steering})}, path)
            texts.append(json.dumps(answer.get("choices") or answer.get("output") or answer.get("content")))
        said_by[name] = texts
        wrong = post(running, {"model": model, **body, "steering": {**MAP, "activate": [9]}}, path, 400)
        assert "expert 9 of layer 1" in json.dumps(wrong) and "steering.activate[0]" in json.dumps(wrong)
        if name != "chat":
            refused = post(running, {"model": model, **body, "return_routed_experts": True}, path, 400)
            assert "return_routed_experts" in json.dumps(refused)
    assert all(one != two for one, two in said_by.values()), said_by


def test_chat_choices_and_streams_have_the_field(running):
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6, "temperature": 1, "seed": 4, "n": 2, "return_routed_experts": True,
            "steering": MAP}
    choices = post(running, body, "/v1/chat/completions")["choices"]
    arrays = [experts_of(choice) for choice in choices]
    assert len(arrays) == 2 and all((array[:, 1:, 0] == 7).all() for array in arrays)
    start = len(arrays[0]) - 6
    later = post(running, {**body, "routed_experts_prompt_start": start}, "/v1/chat/completions")["choices"]
    for choice, whole in zip(later, arrays, strict=True):
        assert np.array_equal(experts_of(choice), whole[start:])
    with httpx2.stream("POST", running.url + "/v1/chat/completions", json={**body, "stream": True}, timeout=120) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    told = [choice for event in events for choice in event["choices"] if "routed_experts" in choice]
    assert len(told) == 2 and all(choice["finish_reason"] for choice in told)
    for choice in told:
        assert np.array_equal(experts_of(choice), arrays[choice["index"]])
    plain = post(running, {**body, "return_routed_experts": False}, "/v1/chat/completions")
    assert all("routed_experts" not in choice for choice in plain["choices"]) and "capture_results" not in plain


def test_the_client_names_them(running, root):
    client = Rudder(running.url, max_retries=0)
    answer = client.generate(PROMPT, steering=ops.experts(layers="all", activate=[7], deactivate=[0, 3]), max_tokens=4, ignore_eos=True,
                             capture=[Capture(["router_logits.1", "blocks.2.mlp.hook_expert_indices"], positions={"from": 2}),
                                      FileCapture(["router_logits.1", "routed_experts.2"], positions="all", tag="experts")],
                             return_routed_experts=True)
    experts = answer.choices[0].routed_experts
    assert (experts[:, 1:, 0] == 7).all()
    assert np.array_equal(answer.cache["routed_experts.2"], experts[2:, 2])
    assert answer.cache["router_logits.1"].shape == (len(experts) - 2, EXPERTS)
    files = read_capture(root, answer.capture("filesystem").paths)
    assert np.array_equal(files["routed_experts.2"], experts[:, 2])
    assert np.array_equal(files["router_logits.1"][2:], answer.cache["router_logits.1"])
    about = json.loads((root / next(path for path in answer.capture("filesystem").paths if path.endswith("1_router_logits.json"))).read_text())
    assert about["dtype"] == "float32" and about["shape"][1] == EXPERTS


@pytest.mark.parametrize("steering, path, words", [
    ({**MAP, "layers": [0]}, "steering.layers[0]", "no mixture of experts"),
    ({**MAP, "deactivate": [7]}, "steering.deactivate", "activated too"),
    ({**MAP, "activate": [1, 2, 4, 5]}, "steering.activate", "a token has 3"),
    ({**MAP, "scale": 2}, "steering.scale", "no such field"),
    ({**MAP, "site": "routed_experts"}, "steering.site", "router_logits"),
    ({"op": "add", "site": "router_logits", "layers": 1, "vector": [1.0] * HIDDEN}, "steering.vector", "router_logits of layer 1 has 9"),
    ({"op": "add", "site": "router_logits", "layers": 1, "vector": [1e9] * EXPERTS}, "steering.vector[0]", ""),
    ({"op": "add", "site": "mlp_act", "layers": 1, "vector": [1.0] * WIDTH}, "steering.layers", "no mlp_act")])
def test_what_is_wrong_is_refused_by_name(running, steering, path, words):
    error = post(running, {"prompt": PROMPT, "steering": steering}, status=400)["error"]
    assert error["param"] == path and words in error["message"], error


def test_what_cannot_be_told_is_refused_by_name(running, server, moe):
    error = post(running, {"prompt": PROMPT, "routed_experts_prompt_start": 3}, status=400)["error"]
    assert error["param"] == "routed_experts_prompt_start"
    both = {"prompt": PROMPT, "return_routed_experts": True, "capture": {"routed_experts": {"positions": "all"}}}
    assert post(running, both, status=400)["error"]["param"] == "return_routed_experts"
    with serving("--capture-memory-mb", "8") as dense:
        error = post(dense, {"prompt": "Once", "return_routed_experts": True}, status=400)["error"]
        assert error["param"] == "return_routed_experts" and "no layer of this model is a mixture of experts" in error["message"]
        error = post(dense, {"prompt": "Once", "capture": {"response": {"sites": {"router_logits": [1]}}}}, status=400)["error"]
        assert error["param"] == "capture.response.sites.router_logits[0]" and "no mixture of experts" in error["message"]
    error = post(server, {"prompt": "Once", "return_routed_experts": True}, status=400)["error"]
    assert error["param"] == "return_routed_experts" and "--capture-memory-mb" in error["message"]


@pytest.mark.parametrize("is_mxfp4", (False, True))
def test_dummy_weights_spread_tokens_over_experts(is_mxfp4):
    """Random tokens go many ways in each layer."""
    small = {"hidden_size": 512, "intermediate_size": 192, "num_hidden_layers": 6, "num_attention_heads": 8, "head_dim": 64,
             "num_key_value_heads": 2, "vocab_size": 4096, "layer_types": ["sliding_attention", "full_attention"] * 3}
    if is_mxfp4:
        small["quantization_config"] = {"quant_method": "mxfp4"}
    random = np.random.default_rng(5)
    flags = "--capture-memory-mb", "32", "--load-format", "dummy", "--like", "gpt-oss-20b", "--hf-overrides", json.dumps(small)
    with serving(*FLAGS, *flags) as server:
        rows = []
        for _ in range(32):
            answer = ask(server, prompt=random.integers(300, 4000, 24).tolist(), max_tokens=2, return_routed_experts=True)
            rows.append(experts_of(answer["choices"][0])[23])
    for layer in np.array(rows).transpose(1, 0, 2):  # 4 of 32 experts for 32 tokens: 31.6 evenly
        assert len(set(layer.flatten().tolist())) >= 24
