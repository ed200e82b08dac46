"""/v1/rerank and /v1/score of a Qwen3-Reranker, beside what transformers makes of the same checkpoint (tools/golden/reranker.py)."""

import json

import httpx2
import jsonschema
import pytest
from conftest import DEMO, ROOT, serving

FOLDER = ROOT / "tests" / "rerankers" / "Qwen3-Reranker-tiny"
CASES = json.loads((FOLDER / "scores.json").read_text())


@pytest.fixture(scope="module")
def server():
    with serving("--dtype", "float32", model=FOLDER) as running:
        yield running


def post(server, path, **body):
    return httpx2.post(server.url + path, json=body, timeout=60)


@pytest.mark.parametrize("case", CASES, ids=[case["query"] for case in CASES])
def test_scores_are_those_of_transformers(server, case):
    asked = {"query": case["query"], "documents": case["documents"], "instruction": case["instruction"]}
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        answer = post(server, path, **asked)
        assert answer.status_code == 200, answer.text
        results = answer.json()["results"]
        told = {each["index"]: each["relevance_score"] for each in results}
        for index, reference in enumerate(case["scores"]):
            assert told[index] == pytest.approx(reference["score"], abs=1e-5)
        assert [each["relevance_score"] for each in results] == sorted(told.values(), reverse=True)
        assert {each["index"]: each["document"]["text"] for each in results} == dict(enumerate(case["documents"]))
    assert answer.json()["usage"]["prompt_tokens"] == sum(each["tokens"] for each in case["scores"])
    for path in ("/v1/score", "/score"):
        answer = post(server, path, text_1=case["query"], text_2=case["documents"], instruction=case["instruction"]).json()
        assert [each["score"] for each in answer["data"]] == [pytest.approx(each["score"], abs=1e-5) for each in case["scores"]]


def test_answers_have_their_schemas(server):
    document = httpx2.get(server.url + "/openapi.json", timeout=60).json()
    for path, body in (("/v1/rerank", {"query": "a", "documents": ["b"]}), ("/v1/score", {"text_1": "a", "text_2": ["b"]})):
        answer = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator({**answer, "components": document["components"]}).validate(post(server, path, **body).json())


def test_the_best_alone_and_without_their_texts(server):
    case = CASES[0]
    answer = post(server, "/v1/rerank", query=case["query"], documents=[{"text": text} for text in case["documents"]], top_n=1,
                  return_documents=False).json()
    best = max(range(len(case["scores"])), key=lambda i: case["scores"][i]["score"])
    assert answer["results"] == [{"index": best, "relevance_score": pytest.approx(case["scores"][best]["score"], abs=1e-5)}]


def test_pairs_and_a_prompt_that_is_cut(server):
    texts = CASES[0]["documents"][:2]
    pairs = post(server, "/v1/score", data_1=[CASES[0]["query"], CASES[0]["query"]], data_2=texts).json()["data"]
    assert [each["score"] for each in pairs] == [pytest.approx(each["score"], abs=1e-5) for each in CASES[0]["scores"][:2]]
    limit = CASES[0]["scores"][2]["tokens"] + 5
    long = "far too long " * 300  # where it is cut, both have the same words
    cut = post(server, "/v1/rerank", query=CASES[0]["query"], documents=[long, long + "by a tail"], truncate_prompt_tokens=limit).json()
    assert cut["usage"]["prompt_tokens"] == 2 * limit
    assert cut["results"][0]["relevance_score"] == pytest.approx(cut["results"][1]["relevance_score"], abs=1e-6)


@pytest.mark.parametrize(("path", "body", "param"), [
    ("/v1/rerank", {"documents": ["a"]}, "query"), ("/v1/rerank", {"query": "a"}, "documents"),
    ("/v1/rerank", {"query": "a", "documents": []}, "documents"), ("/v1/rerank", {"query": "a", "documents": "b"}, "documents"),
    ("/v1/rerank", {"query": ["a"], "documents": ["b"]}, "query"), ("/v1/rerank", {"query": "a", "documents": ["b", 7]}, "documents[1]"),
    ("/v1/rerank", {"query": "a", "documents": ["b", {"image": "x"}]}, "documents[1].text"),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
    ("/v1/rerank", {"query": "a", "documents": ["b", "c " * 4000]}, "documents[1]"),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "truncate_prompt_tokens": 9}, "truncate_prompt_tokens"),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "metadata": {"steering": {"name": "x"}}}, "metadata.steering"),
    ("/v1/score", {"text_1": "a", "text_2": "b", "use_activation": False}, "use_activation"),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "activation": False}, "activation"),
    ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"), ("/v1/score", {"text_1": "a"}, "text_2"),
])
def test_what_is_wrong_is_told_by_its_field(server, path, body, param):
    answer = post(server, path, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_other_models_are_no_rerankers():
    with serving(model=DEMO) as plain:
        for path, body in (("/v1/rerank", {"query": "a", "documents": ["b"]}), ("/v1/score", {"text_1": "a", "text_2": "b"})):
            answer = post(plain, path, **body)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "model", answer.text
            assert "reranker" in answer.json()["error"]["message"]
