"""Start, refusal, drain, memory pressure: the server as an operator sees it."""

import signal
import threading

import httpx2
import openai
import pytest
from conftest import PACED, Server, long_request, run_rudder, serving, wait_for

STORY = [{"role": "user", "content": "Tell me a happy story about a garden."}]


def test_api_key_guards(tmp_path):
    with serving("--api-key", "sesame") as server:
        with pytest.raises(openai.AuthenticationError):
            server.client(api_key="wrong").models.list()
        assert server.client(api_key="sesame").models.list().data
        assert httpx2.get(server.url + "/health").status_code == 200


def test_sigterm_lets_streams_finish():
    server = Server(*PACED)
    client = server.client()
    model = client.models.list().data[0].id
    texts = []

    def read():
        stream = client.chat.completions.create(model=model, messages=STORY, stream=True, temperature=0,
                                                max_tokens=300, extra_body={"ignore_eos": True})
        texts.append([c.choices[0].finish_reason for c in stream if c.choices][-1])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: httpx2.get(server.url + "/load").json()["server_load"] == 4, "all four are answered")
    server.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(60)
    assert texts == ["length"] * 4
    assert server.stop() == 0


def test_full_queue_is_503_with_retry_after():
    with serving(*PACED, "--max-num-queued-reqs", "1", "--max-num-seqs", "1") as server:
        def post():
            return httpx2.post(server.url + "/v1/completions", json={"prompt": "Once", "max_tokens": 2}, timeout=60)

        with long_request(server):
            wait_for(lambda: server.metric("rudder:num_requests_running") == 1, "one runs")
            with long_request(server):
                wait_for(lambda: server.metric("rudder:num_requests_waiting") == 1, "one waits")
                for refused in (post(), post()):
                    assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
                    assert refused.json()["error"]["code"]
        wait_for(lambda: server.metric("rudder:num_requests_running") == 0, "both are gone")
        assert post().status_code == 200


def test_tight_memory_gives_the_same_answers():
    def stories(server):
        client = server.client()
        model = client.models.list().data[0].id
        texts = [None] * 12

        def ask(i):
            texts[i] = client.completions.create(model=model, prompt=f"Story {i}: once", temperature=1, seed=i,
                                                 max_tokens=200, extra_body={"ignore_eos": True}).choices[0].text

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return texts, server.metric("rudder:num_preemptions_total")

    with serving() as roomy:
        expected, _ = stories(roomy)
    # 12 sequences of 200 tokens want about 160 blocks; 48 force preemption.
    with serving(*PACED, "--kv-cache-memory-bytes", "3M", "--max-model-len", "512") as tight:
        found, preemptions = stories(tight)
    assert preemptions > 0
    assert found == expected


def test_dry_run_prints_the_memory_budget_and_exits():
    done = run_rudder("serve", "--dry-run")
    assert done.returncode == 0
    assert "KV" in done.stdout and "weights" in done.stdout.lower()


def test_unknown_flag_is_refused_with_a_hint():
    done = run_rudder("serve", "--max-num-seq", "4")
    assert done.returncode == 2
    assert "--max-num-seqs" in done.stderr
