#!/usr/bin/env python3
"""Answers the held-out suites with a running Rudder server, greedily, and scores the answers.

    rudder serve models/demo-hp1 --port 8000 &
    tools/demo_model/ask.py models/demo/eval --port 8000 --scores scores.json

Needs only Python's standard library; where there is no transformers model with a cache, it is also the quick way."""

import argparse
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import score

LONGEST = {"addition": 48, "recall": 48, "json": 400, "story": 300, "chat": 400, "long": 48}


def answer(case, args):
    """{"id", "text", "finish_reason"} of a case."""
    body = {"messages": case["messages"], "temperature": 0, "max_tokens": LONGEST[case["task"]]}
    connection = http.client.HTTPConnection(args.host, args.port, timeout=600)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = json.loads(response.read())
    if response.status != 200:
        raise RuntimeError(f"{case['id']}: {response.status} {content}")
    choice = content["choices"][0]
    return {
        "id": case["id"], "text": choice["message"]["content"] or "", "finish_reason": choice["finish_reason"],
        "usage": content["usage"]}


def drafts(answers):
    """How a server that speculates did: the share of its drafts that were right, and tokens a step. {} of one that
    does not."""
    details = [a["usage"].get("completion_tokens_details") or {} for a in answers]
    accepted = sum(d.get("accepted_prediction_tokens", 0) for d in details)
    rejected = sum(d.get("rejected_prediction_tokens", 0) for d in details)
    if accepted + rejected == 0:
        return {}
    tokens = sum(a["usage"]["completion_tokens"] for a in answers)
    return {"accepted": round(accepted / (accepted + rejected), 3), "tokens_a_step": round(tokens / (tokens - accepted), 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--parallel", type=int, default=64)
    parser.add_argument("--limit", type=int, help="cases of each suite")
    parser.add_argument("--scores", type=Path, help="a file for the scores")
    args = parser.parse_args()
    scores = {}
    with ThreadPoolExecutor(args.parallel) as pool:
        for task in LONGEST:
            cases = score.read_jsonl(args.suites / f"{task}.jsonl")[:args.limit]
            answers = list(pool.map(lambda case: answer(case, args), cases))
            found, wrong = score.score(cases, answers)
            scores.update(found)
            speculation = drafts(answers)
            if speculation:
                print(f"{task}: {json.dumps(speculation)}", flush=True)
            print(f"{json.dumps(found)}; wrong: {wrong[:8]}", flush=True)
    if args.scores:
        args.scores.write_text(json.dumps(scores, indent=2) + "\n")


if __name__ == "__main__":
    main()
