import base64

import numpy as np
import openai
import pytest

import rudder_client
from rudder_client import (ArrayError, Capture, CaptureError, ConflictError, FieldError, IgnoredFieldsError, KeyRefusedError,
                           NotFoundError, RequestError, RudderError, ServerError, SteeringVectors, ops)
from rudder_client.packing import pack

CHAT = [{"role": "user", "content": "Hello."}]


def completion(text="", ids=(), prompt_ids=(1, 2, 3), **more):
    choice = {"index": 0, "text": text, "finish_reason": "length", "token_ids": list(ids), "prompt_token_ids": list(prompt_ids)}
    return {"id": "cmpl-1", "choices": [choice], "usage": {}, **more}


def test_a_request_has_what_was_asked_and_nothing_else(scripted):
    scripted.answer = lambda *_: (200, completion("text", [7, 8]), {})
    client = scripted.client(api_key="secret")
    answer = client.generate("Hi", steering=ops.add("resid_post.1", [1.0]), capture=Capture("resid_post"), max_tokens=2,
                             structured_outputs={"regex": "a*"})
    method, path, body, key = scripted.requests[-1]
    assert (method, path, key) == ("POST", "/v1/completions", "Bearer secret")
    assert body == {"model": "tiny", "prompt": "Hi", "return_token_ids": True, "max_tokens": 2,
                    "structured_outputs": {"regex": "a*"}, "steering": [ops.add("resid_post.1", [1.0]).to_json()],
                    "capture": Capture("resid_post").to_json()}
    assert answer.text == "text" and answer.token_ids.tolist() == [7, 8]
    assert answer.tokens_at(np.array([2, 3])).tolist() == [3, 7]
    with pytest.raises(CaptureError, match="response"):
        answer.cache  # the answer has none


def test_messages_are_a_chat_and_numbers_are_tokens(scripted):
    chat = {"id": "c", "choices": [{"message": {"content": None}, "finish_reason": "tool_calls"}], "prompt_token_ids": [4]}
    scripted.answer = lambda method, path, body: (200, chat if "chat" in path else completion(), {})
    client = scripted.client()
    answer = client.generate(CHAT)
    assert scripted.requests[-1][1] == "/v1/chat/completions" and scripted.requests[-1][2]["messages"] == CHAT
    assert answer.text == "" and answer.prompt_token_ids.tolist() == [4]
    client.generate(np.array([5, 6]))
    assert scripted.requests[-1][2]["prompt"] == [5, 6]
    for prompt in ([], ["a", "b"], [1, "a"], [True], [1.5]):
        with pytest.raises(ArrayError, match="prompt"):
            client.generate(prompt)
    with pytest.raises(ArrayError, match="stream"):
        client.generate("a", stream=True)


def test_run_with_cache_reads_and_does_not_write(scripted):
    rows = {"positions": [0, 1, 2], "rows": {"resid_post": {**pack(np.ones((3, 2))), "layer_indices": [5, 5, 5]}}}
    results = {"response": {"status": "ok", "error": None, "payload": rows}}
    scripted.answer = lambda *_: (200, completion("Hi", capture_results=results), {})
    answer, cache = scripted.client().run_with_cache("Hi", "blocks.5.hook_resid_post")
    body = scripted.requests[-1][2]
    assert body["max_tokens"] == 0 and body["echo"] is True and body["capture"]["response"]["positions"] == "all_prompt"
    assert cache["resid_post.5"].shape == (3, 2)
    scripted.client().run_with_cache("Hi", "resid_post", max_tokens=4, positions="all")
    assert scripted.requests[-1][2]["max_tokens"] == 4 and "echo" not in scripted.requests[-1][2]
    results["response"] = {"status": "partial_error", "error": "2 rows are lost", "payload": rows}
    with pytest.raises(CaptureError, match="2 rows are lost"):
        scripted.client().run_with_cache("Hi", "blocks.5.hook_resid_post")


def test_each_choice_has_its_capture(scripted):
    def choice(norm):
        payload = {"positions": [2], "norms": {"resid_post.5": [norm]}}
        return {"text": "", "finish_reason": "stop",
                "capture_results": {"response": {"status": "ok", "error": None, "payload": payload}}}

    scripted.answer = lambda *_: (200, {"id": "c", "choices": [choice(1), choice(2)]}, {})
    answer = scripted.client().generate("Hi", n=2)
    assert [c.capture().norms["blocks.5.hook_resid_post"].tolist() for c in answer.choices] == [[1], [2]]


STATUSES = {400: (FieldError, openai.BadRequestError), 401: (KeyRefusedError, openai.AuthenticationError),
            404: (NotFoundError, openai.NotFoundError), 409: (ConflictError, openai.ConflictError),
            413: (RequestError, openai.APIStatusError), 500: (ServerError, openai.InternalServerError),
            503: (ServerError, openai.InternalServerError)}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("call", [lambda c: c.generate("a"), lambda c: c.modules.list(), lambda c: c.modules.delete("a"),
                                  lambda c: c.modules.register("a", "b"), lambda c: c.embed("a"), lambda c: c.to_tokens("a")])
def test_refusals_have_a_type_and_a_path(scripted, status, call):
    error = {"message": "has 2 elements", "type": "invalid_request_error", "param": "steering[1].vector", "code": "invalid_value"}
    scripted.answer = lambda *_: (status, {"error": error}, {})
    kind, of_openai = STATUSES[status]
    with pytest.raises(kind) as refused:
        call(scripted.client())
    assert type(refused.value) is kind and isinstance(refused.value, of_openai) and isinstance(refused.value, RudderError)
    assert refused.value.path == "steering[1].vector" and refused.value.code == "invalid_value"
    assert str(refused.value) == "steering[1].vector: has 2 elements"


def test_a_refusal_may_have_no_path(scripted):
    scripted.answer = lambda *_: (503, {"error": {"message": "full", "type": "x", "param": None, "code": "overloaded"}}, {})
    with pytest.raises(ServerError) as refused:
        scripted.client().generate("a")
    assert refused.value.path == "" and str(refused.value) == "full"


def test_ignored_fields_are_an_error(scripted):
    scripted.answer = lambda *_: (200, completion(), {"x-rudder-ignored-fields": "temprature, stream_options.x"})
    with pytest.raises(IgnoredFieldsError) as refused:
        scripted.client().generate("a", temprature=0)
    assert refused.value.fields == ["temprature", "stream_options.x"]


def test_modules_use_the_steering_key(scripted):
    module = {"name": "mood", "source": "request", "ops": [
        {"site": "resid_post", "layer": 5, "op": "add", "scale": 1, "norm": 2.5, "phase": "all"}]}
    scripted.answer = lambda method, path, body: (200, {"modules": [module], "count": 1} if method == "GET" else module, {})
    client = scripted.client(api_key="user", steering_api_key="admin")
    made = client.modules.register("mood", SteeringVectors({"resid_post.5": [1.0]}), replace=True)
    method, path, body, key = scripted.requests[-1]
    assert (method, path, key) == ("POST", "/v1/steering/modules", "Bearer admin") and body["replace"] is True
    assert made.ops[0].point.hook_name == "blocks.5.hook_resid_post" and made.ops[0].norm == 2.5
    assert [m.name for m in client.modules.list()] == ["mood"] and scripted.requests[-1][3] == "Bearer user"
    client.modules.delete("a/b c")
    assert scripted.requests[-1][:2] == ("DELETE", "/v1/steering/modules/a%2Fb%20c") and scripted.requests[-1][3] == "Bearer admin"


def test_embeddings_keep_the_order_of_the_inputs(scripted):
    def item(index):
        return {"index": index, "embedding": base64.b64encode(np.array([index, 7], dtype="<f4").tobytes()).decode()}

    scripted.answer = lambda *_: (200, {"data": [item(1), item(0)]}, {})
    assert scripted.client().embed(["a", "b"], pooling="mean").tolist() == [[0, 7], [1, 7]]
    assert scripted.requests[-1][2]["pooling"] == "mean"


def test_the_model_is_asked_for_once(scripted):
    def answer(method, path, body):
        return 200, {"data": [{"id": "first"}]} if path == "/v1/models" else completion(), {}

    scripted.answer = answer
    client = rudder_client.Rudder(scripted.url + "/v1/", max_retries=0)
    client.generate("a")
    client.generate("b")
    assert [r[1] for r in scripted.requests] == ["/v1/models", "/v1/completions", "/v1/completions"]
    assert scripted.requests[-1][2]["model"] == "first"
