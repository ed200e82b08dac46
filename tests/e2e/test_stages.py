"""`--pipeline-parallel-size`: two stages answer what one device answers, bit for bit, with everything that crosses stages."""

import concurrent.futures
import os

import httpx2
import pytest

from conftest import serving

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="stages on a CPU need a core each")

FLAGS = ("--enable-steering", "--capture-memory-mb", "8", "--speculative-method", "ngram", "--prompt-lookup-min", "1",
         "--prompt-lookup-max", "3", "--no-speculative-adaptive", "--max-num-batched-tokens", "48")
RAMP = [((i * 37) % 101 - 50) / 50 for i in range(256)]


def asks():
    """Of every kind that crosses stages: capture and lens of early and late layers, steering, grammars, scores."""
    both = {"response": {"sites": {"resid_post": [0, 5], "attn_out": [1, 4]}, "lens": {"layers": [1, 4], "top": 3},
                         "positions": "all", "dtype": "float32"}}
    prompt = "the boat goes over the lake and the boat goes "
    return [
        {"prompt": prompt, "logprobs": 3},
        {"prompt": prompt * 6, "logprobs": 2, "temperature": 0.8, "seed": 7, "repetition_penalty": 1.2},
        {"prompt": "What is 27 + 58?", "capture": both},
        {"prompt": "one two three", "steering": {"op": "add", "site": "resid_post", "layers": [0, 5], "vector": RAMP,
                                                 "scale": 2}, "logprobs": 1, "capture": both},
        {"prompt": "a number:", "structured_outputs": {"regex": "[0-9]{3,5}"}, "logprobs": 1},
        {"prompt": "cats sing about rain", "prompt_logprobs": 2},
        {"prompt": prompt, "n": 3, "temperature": 1, "seed": 3, "logprobs": 1},
    ]


def answers(server):
    def ask(body):
        answer = httpx2.post(server.url + "/v1/completions", timeout=120,
                             json={"max_tokens": 24, "temperature": 0, **body})
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert ("capture" in body) == ("capture_results" in found)
        return found["choices"], found.get("capture_results")

    bodies = asks()
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(ask, bodies))
    return together + [ask(body) for body in bodies]  # the second time from the prefix cache


def test_two_stages_answer_what_one_device_answers():
    with serving(*FLAGS) as alone:
        expected = answers(alone)
    with serving(*FLAGS, "--pipeline-parallel-size", "2") as staged:
        assert answers(staged) == expected
        assert staged.metric("rudder:spec_decode_num_accepted_tokens_total") > 0
