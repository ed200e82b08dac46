"""/v1/embeddings: against what Hugging Face transformers computed, and as clients ask for them.

The answers of tests/golden are logits, and logits are the head times the states that embeddings pool: with more rows of
the head than a state has numbers, equal logits mean equal states.
"""

import base64
import json
import math
import os
import pathlib
import struct

import httpx2
import openai
import pytest

from conftest import ROOT, serving

GOLDEN = ROOT / "tests" / "golden"


def read_safetensors(path):
    """{name: (shape, values)} of f32, bf16 and i32 tensors."""
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, info in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        data = raw[8 + size + begin:8 + size + end]
        if info["dtype"] == "BF16":
            widened = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
            values = struct.unpack(f"<{len(data) // 2}f", widened)
        else:
            values = struct.unpack(f"<{len(data) // 4}{'f' if info['dtype'] == 'F32' else 'i'}", data)
        tensors[name] = (info["shape"], values)
    return tensors


def byte_tokenizer(vocab_size):
    """Ids are what these tests send; a model cannot be served without a tokenizer."""
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": {chr(0x100 + i): i for i in range(vocab_size)}, "merges": []}}


@pytest.fixture(scope="module", params=["qwen3", "llama3"])
def golden(request, tmp_path_factory):
    """A served golden checkpoint with its prompt, Hugging Face's logits and the head."""
    folder = tmp_path_factory.mktemp(request.param)
    source = GOLDEN / request.param
    for name in ("config.json", "model.safetensors"):
        os.symlink(source / name, folder / name)
    answers = read_safetensors(source / "golden.safetensors")
    (rows, width), head = read_safetensors(source / "model.safetensors")["model.embed_tokens.weight"]
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer(rows)))
    (count, vocab), logits = answers["logits"]
    assert vocab == rows > width
    with serving("--dtype", "float32", "--device", "cpu", "--kv-cache-memory-bytes", "16M",
                 "--max-num-batched-tokens", "16", model=folder) as server:
        yield {"server": server, "ids": list(answers["prompt_ids"][1]),
               "head": [head[i * width:(i + 1) * width] for i in range(rows)],
               "logits": [logits[i * vocab:(i + 1) * vocab] for i in range(count)]}


def embed(server, inputs, **fields):
    answer = httpx2.post(server.url + "/v1/embeddings", json={"input": inputs, **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    return [item["embedding"] for item in answer.json()["data"]]


def expect_logits(head, state, logits):
    for row, wanted in zip(head, logits):
        assert abs(sum(a * b for a, b in zip(row, state)) - wanted) < 2e-3


def test_last_states_are_those_of_hugging_face(golden):
    ids = golden["ids"]
    lengths = [1, 2, 15, 16, 17, 33, len(ids)]  # beside the edges of blocks and of steps (16 tokens each)
    states = embed(golden["server"], [ids[:n] for n in lengths], normalize=False)
    for length, state in zip(lengths, states):
        expect_logits(golden["head"], state, golden["logits"][length - 1])


def test_means_are_those_of_hugging_face_whatever_is_cached(golden):
    ids, logits = golden["ids"], golden["logits"]
    for _ in range(2):  # a cached prefix must not hide positions
        for length in (1, 17, len(ids)):
            state = embed(golden["server"], ids[:length], normalize=False, pooling="mean")[0]
            means = [sum(column) / length for column in zip(*logits[:length])]
            expect_logits(golden["head"], state, means)


def test_what_runs_beside_an_input_does_not_matter(golden):
    ids = golden["ids"]
    alone = embed(golden["server"], ids, pooling="mean")[0]
    many = embed(golden["server"], [ids[i:] + ids[:i] for i in range(12)], pooling="mean")
    assert many[0] == alone


def test_client_reads_numbers_and_base64(server, model):
    client = server.client()
    numbers = client.embeddings.create(model=model, input="The sea was calm.", encoding_format="float")
    assert numbers.object == "list" and numbers.data[0].index == 0
    vector = numbers.data[0].embedding
    assert math.isclose(sum(v * v for v in vector), 1, rel_tol=1e-4)
    assert numbers.usage.prompt_tokens == numbers.usage.total_tokens > 0
    packed = client.embeddings.create(model=model, input="The sea was calm.", encoding_format="base64")
    raw = base64.b64decode(packed.data[0].embedding)
    assert struct.unpack(f"<{len(vector)}f", raw) == pytest.approx(vector)
    # The client's own way: it asks for base64 and gives numbers.
    assert client.embeddings.create(model=model, input="The sea was calm.").data[0].embedding == pytest.approx(vector)


def test_batches_keep_their_order(server, model):
    client = server.client()
    texts = [f"story number {i} about a boat and a river" for i in range(40)]
    together = client.embeddings.create(model=model, input=texts, encoding_format="float").data
    assert [item.index for item in together] == list(range(40))
    for i in (0, 7, 39):
        alone = client.embeddings.create(model=model, input=[texts[i]], encoding_format="float").data[0].embedding
        assert together[i].embedding == pytest.approx(alone, abs=1e-6)


def test_fewer_dimensions_are_normalised_again(server, model):
    client = server.client()
    whole = client.embeddings.create(model=model, input="a boat", encoding_format="float").data[0].embedding
    few = client.embeddings.create(model=model, input="a boat", encoding_format="float",
                                   dimensions=16).data[0].embedding
    scale = math.sqrt(sum(v * v for v in whole[:16]))
    assert few == pytest.approx([v / scale for v in whole[:16]], rel=1e-4)


def test_long_inputs_are_truncated_where_that_is_asked_for(server, model):
    client = server.client()
    ids = httpx2.post(server.url + "/tokenize", json={"prompt": "a boat on the river"}).json()["tokens"]
    whole = client.embeddings.create(model=model, input=[ids[-3:], ids[:3]]).data
    for side, like in (("left", whole[0]), ("right", whole[1])):
        cut = client.embeddings.create(model=model, input=ids, extra_body={"truncate_prompt_tokens": 3, "truncation_side": side,
                                                                           "cache_salt": side, "request_id": "mine"})
        assert cut.usage.prompt_tokens == 3
        assert cut.data[0].embedding == pytest.approx(like.embedding, abs=1e-6)
    far = client.embeddings.create(model=model, input="word " * 20000, extra_body={"truncate_prompt_tokens": -1})
    assert far.usage.prompt_tokens > 1000


def test_texts_token_ids_and_chats_are_inputs(server, model):
    ids = httpx2.post(server.url + "/tokenize", json={"prompt": "a boat"}).json()["tokens"]
    assert embed(server, ids) == embed(server, "a boat") == embed(server, [ids])
    assert len(embed(server, ["a", "b"])) == len(embed(server, [ids, ids])) == 2
    chat = httpx2.post(server.url + "/v1/embeddings", json={"messages": [{"role": "user", "content": "a boat"}]})
    assert chat.status_code == 200 and len(chat.json()["data"]) == 1


@pytest.mark.parametrize("fields, param", [
    ({}, "input"), ({"input": 7}, "input"), ({"input": ""}, "input"), ({"input": []}, "input"),
    ({"input": ["a", 7]}, "input[1]"), ({"input": [[1, -1]]}, "input[0][1]"),
    ({"input": [10**6]}, "input[0]"),
    ({"input": "word " * 20000}, "input"), ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ({"input": "a", "dimensions": 0}, "dimensions"), ({"input": "a", "dimensions": 10**6}, "dimensions"),
    ({"input": "a", "pooling": "max"}, "pooling"), ({"input": "a", "normalize": "yes"}, "normalize"),
])
def test_bad_inputs_are_refused_by_name(server, fields, param):
    answer = httpx2.post(server.url + "/v1/embeddings", json=fields, timeout=30)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text


def test_unknown_model_is_not_found(server):
    with pytest.raises(openai.NotFoundError):
        server.client().embeddings.create(model="no-such-model", input="x")


def test_clients_do_not_capture_with_what_embeddings_have(server, model):
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().completions.create(model=model, prompt="a", max_tokens=1, extra_body={
            "capture": {"response": {"sites": {"final_norm": "all"}}}})
    assert refused.value.param == "capture"


def test_request_steering_and_global_steering_steer_embeddings():
    with serving("--enable-steering", "--steering-memory-mb", "16") as server:
        hidden = len(embed(server, "once upon a time")[0])
        vector = [60.0] + [0.0] * (hidden - 1)
        steering = {"op": "add", "site": "resid_post", "layers": "all", "vector": vector}
        plain = embed(server, "once upon a time")[0]
        steered = embed(server, "once upon a time", steering=steering)[0]
        assert max(abs(a - b) for a, b in zip(plain, steered)) > 0.05
        assert embed(server, "once upon a time")[0] == plain
        done = httpx2.post(server.url + "/v1/steering/set", json={"steering": steering}, timeout=60)
        assert done.status_code == 200, done.text
        assert embed(server, "once upon a time")[0] == steered
        for wrong, where in (({"steering": {"op": "add", "site": "resid_post", "layers": "all", "vector": [1.0]}}, "steering.vector"),
                             ({"capture": {"response": {"sites": {"resid_post": [1]}}}}, "capture")):
            refused = httpx2.post(server.url + "/v1/embeddings", json={"input": "x", **wrong}, timeout=60)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == where, refused.text
    with serving() as server:
        refused = httpx2.post(server.url + "/v1/embeddings", json={"input": "x", "steering_name": "calm"}, timeout=60)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "steering_name", refused.text
