"""What routers and gateways add to requests: headers and fields at their defaults. None of it changes or ends a request."""

import concurrent.futures
import json
import time

import pytest

from conftest import HTTP, PACED, serving

PROMPT = "Once upon a time"

# One header each, as the named program sends it.
HEADERS = {
    "vllm-router, prefill and decode": {"x-request-id": "___prefill_addr_127.0.0.1:1___decode_addr_127.0.0.1:2_0123456789abcdef"},
    "vLLM's rank of a group of engines": {"x-data-parallel-rank": "0"},
    "tracing": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "vendor=1",
                "baggage": "user=1"},
    "Zipkin": {"b3": "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1"},
    "proxies": {"x-forwarded-for": "10.0.0.1, 10.0.0.2", "x-forwarded-proto": "https", "x-forwarded-host": "a.example",
                "forwarded": "for=10.0.0.1;proto=https", "via": "1.1 envoy", "x-real-ip": "10.0.0.1"},
    "Envoy": {"x-envoy-attempt-count": "2", "x-envoy-expected-rq-timeout-ms": "15000",
              "x-envoy-original-path": "/v1/completions"},
    "Gateway API inference extension": {"x-gateway-destination-endpoint": "10.0.0.3:8000",
                                        "x-gateway-inference-objective": "batch",
                                        "x-gateway-model-name-rewrite": "rudder-demo",
                                        "x-gateway-inference-fairness-id": "team"},
    "llm-d": {"x-prefiller-host-port": "10.0.0.4:8000", "x-session-token": "MTAuMC4wLjM6ODAwMA=="},
    "smg": {"x-smg-routing-key": "user", "x-smg-target-worker": "0"},
    "sessions": {"x-session-id": "one", "x-user-id": "two", "x-correlation-id": "three"},
    "vllm-router without a key": {"authorization": "Bearer"},
}

# The defaults that vllm-router, smg and sglang-router write into what they pass on.
FIELDS = {"continue_final_message": False, "skip_special_tokens": True, "ignore_eos": False, "include_reasoning": True,
          "return_hidden_states": False, "no_stop_trim": False, "separate_reasoning": True, "stream_reasoning": True,
          "tool_choice": "auto", "lora_path": None, "session_params": None, "kv_transfer_params": None,
          "stop_token_ids": None, "min_tokens": 0, "regex": None, "ebnf": None, "add_generation_prompt": True}


def ask(server, body, **headers):
    return HTTP.post(server.url + "/v1/completions", json={"prompt": PROMPT, "max_tokens": 4, "temperature": 0, **body},
                     headers=headers)


@pytest.fixture(scope="module")
def plain(server):
    answer = ask(server, {})
    assert answer.status_code == 200
    return answer.json()["choices"]


@pytest.mark.parametrize("habit", HEADERS)
def test_a_header_of_a_router_changes_nothing(server, plain, habit):
    answer = ask(server, {}, **HEADERS[habit])
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == plain
    assert answer.headers["x-request-id"] == HEADERS[habit].get("x-request-id", answer.headers["x-request-id"])


def test_all_headers_at_once(server, plain):
    together = {name: value for headers in HEADERS.values() for name, value in headers.items()}
    assert ask(server, {}, **together).json()["choices"] == plain


def test_the_id_of_a_request_comes_back_in_an_error_and_in_a_stream(server):
    for body, status in (({"max_tokens": -1}, 400), ({"stream": True}, 200)):
        answer = ask(server, body, **{"x-request-id": "of-the-router"})
        assert answer.status_code == status and answer.headers["x-request-id"] == "of-the-router"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_fields_at_their_defaults_change_nothing(server, path):
    body = {"max_tokens": 4, "temperature": 0}
    body |= {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": PROMPT}]}
    answers = [HTTP.post(server.url + path, json=each) for each in (body, body | FIELDS)]
    assert [answer.status_code for answer in answers] == [200, 200], answers[1].text
    first, second = (answer.json()["choices"] for answer in answers)
    assert first == second


def test_one_field_at_its_default_is_accepted(server):
    for name, value in FIELDS.items():
        answer = ask(server, {name: value})
        assert answer.status_code == 200, f"{name}: {answer.text}"


def test_the_legs_of_another_engines_handoff_are_refused_by_name(server):
    """A router that was told that this server hands KV over learns that it does not: nothing is served half."""
    answer = ask(server, {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "kv_transfer_params", answer.text


def test_a_key_is_not_an_empty_one(plain):
    with serving("--api-key", "secret") as guarded:
        assert ask(guarded, {}, authorization="Bearer").status_code == 401
        assert ask(guarded, {}, authorization="Bearer secret").json()["choices"] == plain


def test_a_version_is_a_version(server):
    version = HTTP.get(server.url + "/version").json()["version"]
    assert len([int(part) for part in version.split("-")[0].split("+")[0].split(".")]) == 3, json.dumps(version)


def test_a_priority_orders_and_is_any_whole_number(server, plain):
    for priority in (-5, 0, 7):
        assert ask(server, {"priority": priority}).json()["choices"] == plain


def test_a_picker_that_polls_the_load_sees_it_and_costs_little():
    """llm-d's endpoint picker reads /metrics 20 times a second, under vLLM's names, while requests run."""
    waiting, running, cache = "vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"
    with serving(*PACED, "--metrics-prefix", "vllm", "--max-num-seqs", "2") as server:
        before = server.processor_seconds()
        for _ in range(100):
            server.metrics()
        assert (server.processor_seconds() - before) / 100 <= 0.01  # of a core, for one answer
        seen = []
        body = {"prompt": PROMPT, "max_tokens": 60, "temperature": 1, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            answers = [pool.submit(HTTP.post, server.url + "/v1/completions", json=body, timeout=120) for _ in range(6)]
            while not all(answer.done() for answer in answers):
                values = server.metrics()
                seen.append([sum(v for k, v in values.items() if k.split("{")[0] == name) for name in (waiting, running, cache)])
                time.sleep(0.05)
        assert all(answer.result().status_code == 200 for answer in answers)
        most = [max(values) for values in zip(*seen, strict=True)]
        assert most[0] >= 1 and most[1] == 2 and 0 < most[2] <= 1, most
        assert [server.metric(name) for name in (waiting, running)] == [0, 0]
