"""Steering through the real server: what it changes, what it must not change, and what it answers to bad input."""

import base64
import concurrent.futures
import json
import math
import random
import struct

import httpx2
import openai
import pytest

from conftest import serving, wait_for

HIDDEN, LAYERS = 256, 8
FLAGS = ("--enable-steering", "--max-steering-rows", "8", "--capture-memory-mb", "8")
PROMPT = "The quick brown fox is asked to sit down. " * 6
MAX_TOKENS = 24
CHAT = [{"role": "user", "content": "Tell me a story about a boat."}]


def vector(seed, norm=400.0):
    rng = random.Random(seed)
    values = [rng.gauss(0, 1) for _ in range(HIDDEN)]
    length = math.sqrt(sum(v * v for v in values))
    # As f32, so that lists and packed bytes say the same.
    return list(struct.unpack(f"<{HIDDEN}f", struct.pack(f"<{HIDDEN}f", *(v / length * norm for v in values))))


def pack(values, layer):
    data = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
    return {"dtype": "float32", "shape": [1, len(values)], "layer_indices": [layer], "data": data}


def add(values, layer=3, **more):
    return {"steering": {"op": "add", "site": "resid_post", "layers": [layer], "vector": values, **more}}


@pytest.fixture(scope="module")
def steered_server():
    with serving(*FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(steered_server):
    return steered_server.client()


@pytest.fixture(scope="module")
def name(client):
    return client.models.list().data[0].id


def ids(client, name, extra=None, prompt=PROMPT, **more):
    """Token ids of a completion. Sampled: so a small change of the logits shows."""
    options = {"max_tokens": MAX_TOKENS, "temperature": 1, "seed": 1, **more}
    answer = client.completions.create(model=name, prompt=prompt,
                                       extra_body={"return_token_ids": True, "ignore_eos": True, **(extra or {})},
                                       **options)
    return answer.choices[0].token_ids, answer


def test_steered_unsteered_steered_through_the_prefix_cache(client, name):
    extra = add(vector(1))
    first, _ = ids(client, name, extra)
    plain, _ = ids(client, name)
    again, answer = ids(client, name, extra)
    plain_again, plain_answer = ids(client, name)
    other, _ = ids(client, name, add(vector(2)))
    assert first == again and plain == plain_again
    assert len({tuple(first), tuple(plain), tuple(other)}) == 3
    # Each found its own blocks, and only those.
    assert answer.usage.prompt_tokens_details.cached_tokens > 32
    assert plain_answer.usage.prompt_tokens_details.cached_tokens > 32


def test_decode_only_steering_shares_the_prompt(client, name):
    prompt = "Once upon a time in a small house by the sea, " * 5
    ids(client, name, prompt=prompt)
    steered, answer = ids(client, name, add(vector(3), select={"phase": "decode"}), prompt=prompt)
    plain, plain_answer = ids(client, name, prompt=prompt)
    assert steered != plain
    assert steered[0] == plain[0]  # sampled from the prompt's last token, which is not steered
    cached = answer.usage.prompt_tokens_details.cached_tokens
    assert cached == plain_answer.usage.prompt_tokens_details.cached_tokens > 32


def test_inline_packed_named_and_tiers_are_one(steered_server, client, name):
    values = vector(4)
    httpx2.post(steered_server.url + "/v1/steering/modules",
                json={"name": "four", "steering_vectors": {"resid_post": {"3": values}}}).raise_for_status()
    forms = [
        add(values),
        {"steering_vectors": {"resid_post": {"3": values}}},
        {"steering_vectors": {"post_block": {"3": {"vector": [v / 2 for v in values], "scale": 2}}}},
        {"steering_vectors": {"resid_post": pack(values, 3)}},
        {"prefill_steering_vectors": {"resid_post": {"3": values}},
         "decode_steering_vectors": {"resid_post": {"3": values}}},
        {"steering": {"name": "four"}},
        {"steering_name": "four"},
    ]
    expected, _ = ids(client, name, forms[0])
    for form in forms[1:]:
        assert ids(client, name, form)[0] == expected, form.keys()
    assert expected != ids(client, name)[0]


def test_nothing_asked_is_nothing_done(client, name):
    plain, _ = ids(client, name)
    zero = [0.0] * HIDDEN
    for extra in ({"steering": []}, {"steering_vectors": {}}, {"steering": None}, {"capture": None},
                  add(zero), add(vector(5), scale=0)):
        assert ids(client, name, extra)[0] == plain, extra.keys()


def test_steered_and_unsteered_at_once(client, name):
    prompts = [f"Story number {i} is about a boat and a {word}." for i, word in
               enumerate(("dog", "cat", "hen", "fish", "cow", "goat"))]
    alone = [ids(client, name, prompt=p)[0] for p in prompts]
    steered_alone = [ids(client, name, add(vector(10 + i)), prompt=p)[0] for i, p in enumerate(prompts)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        for _ in range(2):
            plain = [pool.submit(ids, client, name, None, p) for p in prompts]
            # More programs than the table has rows: some wait, none runs without.
            steered = [pool.submit(ids, client, name, add(vector(10 + i)), p) for i, p in enumerate(prompts)]
            more = [pool.submit(ids, client, name, add(vector(100 + i))) for i in range(6)]
            assert [f.result()[0] for f in plain] == alone
            assert [f.result()[0] for f in steered] == steered_alone
            assert len({tuple(f.result()[0]) for f in more}) == 6


def test_streaming_and_chat_are_steered_too(client, name):
    messages = [{"role": "user", "content": "Tell me a short story about a dog."}]

    def text(extra, stream):
        answer = client.chat.completions.create(model=name, messages=messages, max_tokens=32, temperature=1, seed=1,
                                                stream=stream, extra_body=extra)
        if not stream:
            return answer.choices[0].message.content
        return "".join(c.choices[0].delta.content or "" for c in answer if c.choices)

    extra = add(vector(6))
    assert text(extra, True) == text(extra, False) != text({}, False) == text({}, True)
    only_user = add(vector(6), select={"roles": ["user"]})
    assert text(only_user, False) not in (text(extra, False), text({}, False))


def test_global_steering(steered_server, client, name):
    plain, _ = ids(client, name)
    values = vector(7)
    answer = httpx2.post(steered_server.url + "/v1/steering/set",
                         json={"vectors": {"resid_post": {"3": values}}}).raise_for_status().json()
    assert answer["hook_points"] == ["resid_post"] and answer["layers_updated"] == [3]
    steered, _ = ids(client, name)
    assert httpx2.get(steered_server.url + "/v1/steering").json()["global"]
    httpx2.post(steered_server.url + "/v1/steering/clear", json={}).raise_for_status()
    assert steered == ids(client, name, add(values))[0] != plain
    assert ids(client, name)[0] == plain


def test_modules_come_and_go(steered_server, client, name):
    url = steered_server.url + "/v1/steering/modules"
    module = {"name": "going", "steering_vectors": {"resid_post": {"3": vector(8)}}}
    httpx2.post(url, json=module).raise_for_status()
    listed = httpx2.get(url).json()
    assert "going" in [m["name"] for m in listed["modules"]] and listed["count"] == len(listed["modules"])
    assert httpx2.post(url, json={**module, "steering_vectors": {"resid_post": {"3": vector(9)}}}).status_code == 409
    expected, _ = ids(client, name, {"steering_name": "going"}, max_tokens=200)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(ids, client, name, {"steering_name": "going"}, max_tokens=200)
        while not running.done() and steered_server.metric("rudder:num_requests_running") == 0:
            pass
        httpx2.delete(url + "/going").raise_for_status()
        assert running.result()[0] == expected  # it had resolved the name
    with pytest.raises(openai.NotFoundError):
        ids(client, name, {"steering_name": "going"})
    assert httpx2.delete(url + "/going").status_code == 404
    httpx2.post(url + "/register", json=module).raise_for_status()
    httpx2.post(url + "/unregister", json={"name": "going"}).raise_for_status()
    assert httpx2.post(url + "/unregister", json={"name": "going"}).status_code == 404


BAD = {
    "wrong width": (add(vector(1)[:-1]), "steering"),
    "unknown site": ({"steering": {**add(vector(1))["steering"], "site": "resid_postt"}}, "steering"),
    "layer out of range": (add(vector(1), layer=LAYERS), "steering"),
    "unknown op": ({"steering": {**add(vector(1))["steering"], "op": "ad"}}, "steering"),
    "unknown parameter": (add(vector(1), strenght=2), "steering"),
    "huge scale": (add(vector(1), scale=1e300), "steering"),
    "not a vector": (add({"values": []}), "steering"),
    "truncated base64": ({"steering_vectors": {"resid_post": {**pack(vector(1), 3), "data": "AAA"}}},
                         "steering_vectors"),
    "shape overflow": ({"steering_vectors": {"resid_post": {**pack(vector(1), 3), "shape": [1 << 40, 1 << 40]}}},
                       "steering_vectors"),
    "shape and data differ": ({"steering_vectors": {"resid_post": {**pack(vector(1), 3), "shape": [2, HIDDEN]}}},
                              "steering_vectors"),
    "duplicate layers": ({"steering_vectors": {"resid_post": {"3": vector(1), "03": vector(2)}}}, "steering_vectors"),
    "roles of no chat": (add(vector(1), select={"roles": ["user"]}), "steering"),
    "no object": ({"steering": 7}, "steering"),
    "unknown consumer": ({"capture": {"nobody": {"sites": {"resid_post": [1]}}}}, "capture"),
    "unknown capture site": ({"capture": {"response": {"sites": {"resid": [1]}}}}, "capture"),
    "captured layer out of range": ({"capture": {"response": {"sites": {"resid_post": [LAYERS]}}}}, "capture"),
}


def test_bad_input_is_answered_and_hurts_nobody(steered_server, client, name):
    expected, _ = ids(client, name, add(vector(20)), max_tokens=400)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for round_ in range(2):
            background = pool.submit(ids, client, name, add(vector(20)), max_tokens=400)
            for case, (extra, field) in BAD.items():
                with pytest.raises(openai.BadRequestError) as refused:
                    ids(client, name, extra)
                error = refused.value.body
                assert error["type"] == "invalid_request_error", case
                assert error["param"].startswith(field), (case, error)
                assert error["message"], case
            for text in ("NaN", "Infinity", "1e999"):
                body = json.dumps({"model": name, "prompt": "a", **add("X")}).replace('"X"', f"[{text}]")
                answer = httpx2.post(steered_server.url + "/v1/completions", content=body,
                                     headers={"content-type": "application/json"})
                assert answer.status_code == 400, text
            nan = base64.b64encode(struct.pack(f"<{HIDDEN}f", *([math.nan] * HIDDEN))).decode()
            with pytest.raises(openai.BadRequestError):
                ids(client, name, {"steering_vectors": {"resid_post": {**pack(vector(1), 3), "data": nan}}})
            with pytest.raises(openai.NotFoundError):
                ids(client, name, {"steering_name": "nobody"})
            assert background.result()[0] == expected, round_
    assert steered_server.metric("rudder:steering_rows") == 8
    in_use = 'rudder:steering_rows{model_name="%s",engine="0",state="in_use"}' % name
    wait_for(lambda: steered_server.metrics()[in_use] == 0, "the vectors of requests are given back")


def test_without_the_flag_steering_is_refused_not_ignored(server, model):
    client = server.client()
    for extra, field in ((add(vector(1)), "steering"), ({"steering_name": "x"}, "steering_name"),
                         ({"capture": {"response": {"sites": {"resid_post": [1]}}}}, "capture")):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model=model, prompt="a", max_tokens=1, extra_body=extra)
        assert refused.value.body["param"] == field
        assert "--" in refused.value.body["message"]
    assert httpx2.get(server.url + "/v1/steering").status_code == 400


def test_admin_key_and_modules_from_files(tmp_path):
    path = tmp_path / "mood.json"
    path.write_text(json.dumps({"steering_vectors": {"resid_post": {"3": vector(30)}}}))
    with serving(*FLAGS, "--steering-module", f"mood={path}", "--api-key", "user", "--steering-api-key", "admin") as s:
        client = s.client(api_key="user")
        name = client.models.list().data[0].id
        assert ids(client, name, {"steering_name": "mood"})[0] == ids(client, name, add(vector(30)))[0]
        assert s.client(api_key="user")  # users may ask, not change
        for key, status in (("user", 401), ("admin", 200)):
            answer = httpx2.post(s.url + "/v1/steering/clear", json={}, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == status


def test_tokens_by_id_and_special_ones(steered_server, client, name):
    tokens = httpx2.post(steered_server.url + "/tokenize", json={"messages": CHAT}).json()["tokens"]
    special = [i for i, token in enumerate(tokens) if token in (0, 1, 2)]
    assert len(special) >= 3

    def steered_tokens(**select):
        body = {"messages": CHAT, **add(vector(8), select=select)}
        return httpx2.post(steered_server.url + "/v1/chat/completions/render", json=body).json()["steered_tokens"]

    assert steered_tokens() == [[0, None]]
    assert steered_tokens(phase="prefill") == [[0, len(tokens)]]
    assert steered_tokens(token_ids=[1]) == [[i, i + 1] for i, token in enumerate(tokens) if token == 1]
    assert steered_tokens(token_ids=[1], special=False) == []
    plain = steered_tokens(special=False)
    covered = [i for begin, end in plain for i in range(begin, len(tokens) if end is None else end)]
    assert covered == [i for i in range(len(tokens)) if i not in special] and plain[-1][1] is None
    assert httpx2.post(steered_server.url + "/v1/chat/completions/render", json={"messages": CHAT}).json()["steered_tokens"] == []

    # The same as a window of those tokens.
    def told(**select):
        return client.chat.completions.create(model=name, messages=CHAT, temperature=0, max_tokens=12,
                                              extra_body=add(vector(8, 4000.0), select=select)).choices[0].message.content

    newline = tokens[-1]  # of the template; the prompt's last token is one of several
    windows = [[i, i + 1] for i, token in enumerate(tokens) if token == newline]
    assert len(windows) > 1 and told(token_ids=[newline]) == told(prompt=windows) != told(prompt=[[-2, -1]])
