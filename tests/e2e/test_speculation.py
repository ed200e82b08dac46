"""A server that speculates beside one that does not: the same answers, and what is told of it."""

import concurrent.futures
import json
import shutil

import pytest
from conftest import DEMO, run_rudder, serving

STORY = "Tell me a happy story about a boat."
EDIT = next(json.loads(line) for line in (DEMO / "eval" / "json.jsonl").open())["messages"][0]["content"]
DRAFT = DEMO.parent / "demo-draft"
HEAD = DEMO.parent / "demo-eagle"
MEDUSA = DEMO.parent / "demo-medusa"
OTHER = DEMO.parent.parent / "tests" / "golden" / "llama3"  # a model without a tokenizer


def draft_config(folder, method="draft_model", **more):
    return ["--speculative-config", json.dumps({"method": method, "model": str(folder), **more})]


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
    "suffix": ["--speculative-config", json.dumps({"method": "suffix", "suffix_decoding_max_spec_factor": 2.0,
                                                   "suffix_decoding_max_cached_requests": 100})],
    "draft_model": ["--speculative-method", "draft_model", "--speculative-model", DRAFT, "--num-speculative-tokens", "4"],
    "eagle3": draft_config(HEAD, "eagle3"),
    "medusa": draft_config(MEDUSA, "medusa"),
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


def test_metrics_are_silent_without(server):
    assert not [name for name in server.metrics() if "spec_decode" in name]


@pytest.mark.parametrize("flags, named", [
    (["--speculative-config", '{"method": "ngram", "model": "x"}'], "speculative-config.model"),
    (["--speculative-config", '{"method": "lookahead"}'], "speculative-config.method"),
    (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 1000}'],
     "speculative-config.num_speculative_tokens"),
    (["--speculative-config", '{"method": "ngram"}', "--prompt-lookup-max", "3"], "speculative-config"),
    (["--speculative-config", '{"method": "draft_model"}'], "speculative-config.model"),
    (draft_config("/nowhere"), "speculative-config.model"),
    (draft_config(OTHER), "speculative-config.model"),
    (draft_config(DRAFT, num_speculative_tokens=129), "speculative-config.num_speculative_tokens"),
    ([*draft_config(DRAFT), "--pipeline-parallel-size", "2"], "speculative-config.model"),
    (["--speculative-config", '{"method": "eagle3"}'], "speculative-config.model"),
    (draft_config("/nowhere", "eagle3"), "speculative-config.model"),
    (draft_config(DRAFT, "eagle3"), "speculative-config.model"),  # a model, no head
    (["--load-format", "dummy", "--like", "llama-3.1-8b", *draft_config(HEAD, "eagle3")], "speculative-config.model"),
    (draft_config(HEAD, "eagle3", num_speculative_tokens=129), "speculative-config.num_speculative_tokens"),
    ([*draft_config(HEAD, "eagle3"), "--tensor-parallel-size", "2"], "tensor-parallel-size"),
    ([*draft_config(HEAD, "eagle3"), "--pipeline-parallel-size", "2"], "speculative-config.model"),
    (["--speculative-config", '{"method": "medusa"}'], "speculative-config.model"),
    (draft_config(HEAD, "medusa"), "speculative-config.model"),  # another kind of head
    (["--load-format", "dummy", "--like", "llama-3.1-8b", *draft_config(MEDUSA, "medusa")], "speculative-config.model"),
    (draft_config(MEDUSA, "medusa", num_speculative_tokens=5), "speculative-config.num_speculative_tokens"),
    ([*draft_config(MEDUSA, "medusa"), "--tensor-parallel-size", "2"], "tensor-parallel-size"),
    ([*draft_config(MEDUSA, "medusa"), "--pipeline-parallel-size", "2"], "speculative-config.model"),
    (["--prompt-lookup-max", "3"], "speculative-method"),
    (["--speculative-model", DRAFT], "speculative-method"),
    (["--speculative-method", "eagle3"], "speculative-config.model"),
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
