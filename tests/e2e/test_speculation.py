"""A server that speculates beside one that does not: the same answers, and what is told of it."""

import concurrent.futures
import json
import os
import random
import re
import shutil

import pytest
from conftest import DEMO, run_rudder, serving
from dictionary import write_tensors

STORY = "Tell me a happy story about a boat."
EDIT = next(json.loads(line) for line in (DEMO / "eval" / "json.jsonl").open())["messages"][0]["content"]
DRAFT = DEMO.parent / "demo-draft"
HEAD = DEMO.parent / "demo-eagle"
MEDUSA = DEMO.parent / "demo-medusa"
# Of a folder of heads or an assistant, as the manual names them.
METHODS_OF_HEADS = re.findall(r"`(\w+)`", re.search(
    r"`--speculative-method` \| `method` \| .*?`draft_model`(.*?);",
    (DEMO.parent.parent / "docs" / "speculation.md").read_text())[1])
OTHER = DEMO.parent.parent / "tests" / "golden" / "llama3"  # a model without a tokenizer


def draft_config(folder, method="draft_model", **more):
    return ["--speculative-config", json.dumps({"method": method, "model": str(folder), **more})]


def suffix_config(**more):
    return ["--speculative-config", json.dumps({"method": "suffix", "suffix_decoding_max_spec_factor": 4.0,
                                                "suffix_decoding_max_cached_requests": 100, **more})]


# 16 drafts, the likeliest by odds that fall with rank and depth.
TREE = ("[(0,), (1,), (2,), (0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (1, 0, 0), "
        "(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0)]")

REQUESTS = [
    dict(messages=[{"role": "user", "content": STORY}], temperature=0, max_tokens=120),
    dict(messages=[{"role": "user", "content": EDIT}], temperature=0, max_tokens=60),
    dict(messages=[{"role": "user", "content": STORY}], temperature=1, seed=5, max_tokens=80, logprobs=True, top_logprobs=2),
    dict(messages=[{"role": "user", "content": STORY}], temperature=0.7, seed=6, n=3, max_tokens=60, presence_penalty=0.5,
         frequency_penalty=0.2),
    dict(messages=[{"role": "user", "content": STORY}], temperature=0.8, seed=7, max_tokens=80, stop=["the", "."]),
    dict(messages=[{"role": "user", "content": EDIT}], temperature=0.8, seed=8, max_tokens=60,
         response_format={"type": "json_object"}),
    # Few tokens to choose from: nearly everything repeats.
    dict(messages=[{"role": "user", "content": STORY}], temperature=0.9, seed=9, max_tokens=150,
         extra_body={"allowed_token_ids": [265, 266, 267], "ignore_eos": True}),
]
KINDS = {
    "ngram": ["--speculative-method", "ngram", "--prompt-lookup-min", "1", "--prompt-lookup-max", "3"],
    "ngram_gpu": ["--speculative-method", "ngram_gpu", "--prompt-lookup-min", "1", "--prompt-lookup-max", "3"],
    "suffix": suffix_config(suffix_decoding_use_tree_spec=False),
    "suffix_tree": suffix_config(suffix_decoding_use_tree_spec=True, suffix_decoding_min_token_prob=0.02),
    "draft_model": ["--speculative-method", "draft_model", "--speculative-model", DRAFT, "--num-speculative-tokens", "4"],
    "draft_model_tree": draft_config(DRAFT, speculative_token_tree=TREE),
    "eagle3": draft_config(HEAD, "eagle3"),
    "eagle3_tree": draft_config(HEAD, "eagle3", speculative_token_tree=TREE),
    "medusa": draft_config(MEDUSA, "medusa"),
    "medusa_tree": draft_config(MEDUSA, "medusa", speculative_token_tree=TREE),
}


def answer(server, model, request):
    choices = server.client().chat.completions.create(model=model, **request).choices
    return [(c.message.content, c.finish_reason, str(c.logprobs)) for c in choices]


@pytest.fixture(scope="module")
def plain(server, model):
    return [answer(server, model, request) for request in REQUESTS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adaptive", ["--speculative-adaptive", "--no-speculative-adaptive"])
def test_answers_are_those_without(plain, model, kind, adaptive):
    with serving(*KINDS[kind], adaptive) as server:
        for request, expected in zip(REQUESTS, plain, strict=True):
            assert answer(server, model, request) == expected
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda i: answer(server, model, REQUESTS[i % len(REQUESTS)]), range(21)))
        for i, got in enumerate(together):
            assert got == plain[i % len(REQUESTS)]
        if adaptive == "--no-speculative-adaptive":
            accepted = server.metric("rudder:spec_decode_num_accepted_tokens_total")
            assert accepted > 100
            assert server.metric("rudder:spec_decode_num_accepted_tokens_per_pos_total") == accepted
            assert server.metric("rudder:spec_decode_num_draft_tokens_total") > accepted
            assert server.metric("rudder:spec_decode_num_drafts_total") > 0


def test_usage_tells_and_a_request_may_go_without(model):
    with serving(*KINDS["ngram"], "--no-speculative-adaptive") as server:
        def usage(**fields):
            extra = {**REQUESTS[-1]["extra_body"], **fields}
            return server.client().chat.completions.create(model=model, **{**REQUESTS[-1], "extra_body": extra}).usage
        assert usage(disable_spec_decode=True).completion_tokens_details is None
        assert usage(disable_spec_decode=True).completion_tokens_details is None
        assert server.metric("rudder:spec_decode_num_drafts_total") == 0
        details = usage().completion_tokens_details
        assert details.accepted_prediction_tokens > 20


def test_published_names_of_medusa_heads(plain, model, tmp_path):
    heads = shutil.copytree(MEDUSA, tmp_path / "heads")
    (heads / "model.safetensors").rename(heads / "medusa_lm_head.safetensors")
    with serving("--speculative-method", "medusa", "--speculative-model", heads, "--no-speculative-adaptive") as server:
        assert answer(server, model, REQUESTS[0]) == plain[0]
        assert server.metric("rudder:spec_decode_num_draft_tokens_total") > 50


@pytest.mark.parametrize("kind", ["draft_model", "eagle3", "medusa"])
def test_a_tree_accepts_more_than_its_chain(model, kind):
    tokens_a_step = []
    for shape in [kind, f"{kind}_tree"]:
        with serving(*KINDS[shape], "--no-speculative-adaptive") as server:
            num_tokens = accepted = 0
            for request in REQUESTS[:3]:
                usage = server.client().chat.completions.create(model=model, **request).usage
                num_tokens += usage.completion_tokens
                accepted += usage.completion_tokens_details.accepted_prediction_tokens
            tokens_a_step.append(num_tokens / (num_tokens - accepted))
    assert tokens_a_step[1] > tokens_a_step[0] > 1.5


@pytest.fixture(scope="module")
def eagle(tmp_path_factory):
    """An EAGLE head that nobody trained: its guesses are those of its formula (draft_head_golden_test), hardly ever right."""
    folder = tmp_path_factory.mktemp("eagle")
    demo = json.loads((DEMO / "config.json").read_text())
    hidden, q, kv, width = demo["hidden_size"], 64, 32, 32
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": width,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "hidden_act": "silu",
        "vocab_size": demo["vocab_size"], "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}))
    rng = random.Random("eagle")
    shapes = {"fc.weight": [hidden, 2 * hidden], "fc.bias": [hidden], "layers.0.self_attn.q_proj.weight": [q, hidden],
              "layers.0.self_attn.k_proj.weight": [kv, hidden], "layers.0.self_attn.v_proj.weight": [kv, hidden],
              "layers.0.self_attn.o_proj.weight": [hidden, q], "layers.0.post_attention_layernorm.weight": [hidden],
              "layers.0.mlp.gate_proj.weight": [width, hidden], "layers.0.mlp.up_proj.weight": [width, hidden],
              "layers.0.mlp.down_proj.weight": [hidden, width]}
    write_tensors(folder / "model.safetensors", {
        name: (shape, [rng.uniform(-0.1, 0.1) for _ in range(shape[0] * (shape[1:] or [1])[0])])
        for name, shape in shapes.items()})
    return folder


def test_an_eagle_head_changes_no_answer(plain, model, eagle):
    with serving(*draft_config(eagle, "eagle", num_speculative_tokens=3), "--no-speculative-adaptive") as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda i: answer(server, model, REQUESTS[i % len(REQUESTS)]), range(14)))
        for i, got in enumerate(together):
            assert got == plain[i % len(REQUESTS)]
        assert server.metric("rudder:spec_decode_num_draft_tokens_total") > 1000
    with serving("--speculative-method", "eagle", "--speculative-model", eagle) as server:
        assert answer(server, model, REQUESTS[0]) == plain[0]
    with serving(*draft_config(eagle, "eagle", speculative_token_tree=TREE), "--no-speculative-adaptive") as server:
        for request, expected in zip(REQUESTS, plain, strict=True):
            assert answer(server, model, request) == expected
        assert server.metric("rudder:spec_decode_num_draft_tokens_total") > 1000


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory):
    """The demo model with an MTP head behind its last layer that nobody trained (mtp_golden_test has its formula)."""
    folder = tmp_path_factory.mktemp("with_mtp")
    for file in DEMO.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    own = folder / "model-2.safetensors"
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    config = json.loads((DEMO / "config.json").read_text())
    hidden, q, width = config["hidden_size"], config["num_attention_heads"] * config["head_dim"], config["intermediate_size"]
    kv, prefix = config["num_key_value_heads"] * config["head_dim"], f"model.layers.{config['num_hidden_layers']}."
    rng = random.Random("mtp")
    shapes = {"eh_proj": [hidden, 2 * hidden], "enorm": [hidden], "hnorm": [hidden], "shared_head.norm": [hidden],
              "input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.q_proj": [q, hidden],
              "self_attn.k_proj": [kv, hidden], "self_attn.v_proj": [kv, hidden], "self_attn.o_proj": [hidden, q],
              "mlp.gate_proj": [width, hidden], "mlp.up_proj": [width, hidden], "mlp.down_proj": [hidden, width]}
    write_tensors(own, {f"{prefix}{name}.weight": (shape, [rng.uniform(-0.1, 0.1) for _ in range(shape[0] * (shape[1:] or [1])[0])])
                        for name, shape in shapes.items()})
    names = {file: names_in(folder / file) for file in ("model-1.safetensors", "model-2.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": {name: file for file, found in names.items() for name in found}}))
    return folder


def names_in(file):
    with open(file, "rb") as data:
        header = json.loads(data.read(int.from_bytes(data.read(8), "little")))
    return [name for name in header if name != "__metadata__"]


def test_an_mtp_head_of_the_models_own_changes_no_answer(plain, model, with_mtp):
    flags = ["--served-model-name", model]
    with serving(*flags, "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}', "--no-speculative-adaptive",
                 model=with_mtp) as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda i: answer(server, model, REQUESTS[i % len(REQUESTS)]), range(14)))
        for i, got in enumerate(together):
            assert got == plain[i % len(REQUESTS)]
        assert server.metric("rudder:spec_decode_num_draft_tokens_total") > 1000
    with serving(*flags, "--speculative-method", "mtp", "--tensor-parallel-size", "2", model=with_mtp) as server:
        assert answer(server, model, REQUESTS[0])[0][1] == plain[0][0][1]
    with serving(*flags, model=with_mtp) as server:  # its tensors are passed over where nobody asks for them
        assert answer(server, model, REQUESTS[0]) == plain[0]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="stages on a CPU need a core each")
@pytest.mark.parametrize("kind", ["draft_model", "medusa", "eagle3", "eagle"])
def test_what_guesses_on_the_last_stage_changes_no_answer(plain, model, eagle, kind):
    flags = draft_config(eagle, "eagle") if kind == "eagle" else KINDS[kind]
    with serving(*flags, "--no-speculative-adaptive", "--pipeline-parallel-size", "2") as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda i: answer(server, model, REQUESTS[i % len(REQUESTS)]), range(14)))
        for i, got in enumerate(together):
            assert got == plain[i % len(REQUESTS)]
        assert server.metric("rudder:spec_decode_num_draft_tokens_total") > 500


def test_an_eagle_head_for_another_model_is_refused_by_name(eagle, tmp_path):
    def refusal(flags, change=None):
        head = shutil.copytree(eagle, tmp_path / "head", dirs_exist_ok=True)
        config = json.loads((head / "config.json").read_text())
        (head / "config.json").write_text(json.dumps({**config, **(change or {})}))
        answer = run_rudder("serve", *flags, *draft_config(head, "eagle"), "--port", "0")
        assert answer.returncode != 0 and "speculative-config.model" in answer.stderr
        return answer.stderr

    assert "rows of 256, the model's have 4096" in refusal(["--load-format", "dummy", "--like", "llama-3.1-8b"])
    assert "of 2559 tokens, the model of 2560" in refusal([], {"vocab_size": 2559})
    assert "is no EAGLE head" in refusal([], {"architectures": ["Qwen3ForCausalLM"]})
    assert "tensor 'layers.0.mlp.gate_proj.weight'" in refusal([], {"intermediate_size": 48})
    uneven = refusal(["--tensor-parallel-size", "2"], {"intermediate_size": 33})
    assert "the 33 neurons of layer 0 cannot be divided among 2 ranks" in uneven and "tensor-parallel-size" in uneven


def test_metrics_are_silent_without(server):
    assert not [name for name in server.metrics() if "spec_decode" in name]


@pytest.mark.parametrize("flags, named", [
    (["--speculative-config", '{"method": "ngram", "model": "x"}'], "speculative-config.model"),
    (["--speculative-config", '{"method": "eagle2"}'], "speculative-config.method"),
    (["--speculative-config", '{"method": "lookahead"}'], "speculative-config.method"),
    (["--speculative-method", "lookahead"], "use suffix or ngram for text that repeats"),
    (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 1000}'],
     "speculative-config.num_speculative_tokens"),
    (["--speculative-config", '{"method": "ngram"}', "--prompt-lookup-max", "3"], "speculative-config"),
    (["--speculative-method", "ngram_gpu", "--multi-step", "2"], "speculative-method"),
    (["--speculative-config", '{"method": "ngram_gpu"}', "--multi-step", "2"], "speculative-config"),
    (["--speculative-config", '{"method": "draft_model"}'], "speculative-config.model"),
    (draft_config("/nowhere"), "speculative-config.model"),
    (draft_config(OTHER), "speculative-config.model"),
    (draft_config(DRAFT, num_speculative_tokens=129), "speculative-config.num_speculative_tokens"),
    (draft_config("/nowhere", "eagle3"), "speculative-config.model"),
    (["--load-format", "dummy", "--like", "llama-3.1-8b", *draft_config(HEAD, "eagle3")], "speculative-config.model"),
    (draft_config(HEAD, "eagle3", num_speculative_tokens=129), "speculative-config.num_speculative_tokens"),
    (draft_config(HEAD, "eagle"), "speculative-config.model"),  # of another kind
    *[(draft_config(DRAFT, method), "speculative-config.model") for method in METHODS_OF_HEADS],  # a model, no head
    (draft_config(HEAD, "medusa"), "speculative-config.model"),  # another kind of head
    (["--load-format", "dummy", "--like", "llama-3.1-8b", *draft_config(MEDUSA, "medusa")], "speculative-config.model"),
    (draft_config(MEDUSA, "medusa", num_speculative_tokens=5), "speculative-config.num_speculative_tokens"),
    (draft_config(MEDUSA, "medusa", speculative_token_tree="[(0,), (1, 0)]"), "speculative-config.speculative_token_tree"),
    (draft_config(MEDUSA, "medusa", speculative_token_tree="[(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0, 0)]"),
     "speculative-config.speculative_token_tree"),  # deeper than there are heads
    ([*draft_config(DRAFT, speculative_token_tree=TREE), "--pipeline-parallel-size", "2"],
     "speculative-config.speculative_token_tree"),
    ([*draft_config(HEAD, "eagle3", speculative_token_tree=TREE), "--pipeline-parallel-size", "2"],
     "speculative-config.speculative_token_tree"),
    (["--speculative-config", '{"method": "ngram", "speculative_token_tree": "[(0,)]"}'],
     "speculative-config.speculative_token_tree"),
    ([*draft_config(MEDUSA, "medusa", speculative_token_tree=TREE), "--pipeline-parallel-size", "2"],
     "speculative-config.speculative_token_tree"),
    ([*suffix_config(suffix_decoding_use_tree_spec=True), "--pipeline-parallel-size", "2"],
     "speculative-config.suffix_decoding_use_tree_spec"),
    (["--load-format", "dummy", "--like", "gemma-2-2b", *suffix_config(suffix_decoding_use_tree_spec=True)],
     "speculative-config.suffix_decoding_use_tree_spec"),
    (["--prompt-lookup-max", "3"], "speculative-method"),
    (["--speculative-model", DRAFT], "speculative-method"),
    (["--speculative-method", "eagle3"], "speculative-config.model"),
    (["--speculative-method", "mtp"], "has no MTP head"),
    (["--speculative-config", '{"method": "mtp", "speculative_token_tree": "[(0,)]"}'],
     "speculative-config.speculative_token_tree"),
    (["--speculative-method", "ngram", "--speculative-model", DRAFT], "speculative-config.model"),
    (["--speculative-method", "medusa", "--speculative-model", MEDUSA, "--num-speculative-tokens", "5"],
     "speculative-config.num_speculative_tokens"),
    (["--speculative-method", "draft_model", "--speculative-model", "/nowhere"], "speculative-config.model"),
    (["--num-speculative-tokens", "129", "--speculative-method", "ngram"], "num-speculative-tokens"),
])
def test_bad_settings_are_refused_by_name(flags, named):
    done = run_rudder("serve", *flags)
    assert done.returncode != 0
    assert named in done.stderr
