#!/usr/bin/env python3
"""Speculation over HTTP: two servers, of which one speculates, answer the same requests in turn; prints the
tokens a second of each pair. The requests are edits, where the demo model copies JSON objects with one field
changed, or with --suite random texts that never repeat. Standard library only.

    tools/bench_edits.py --clients 1 --pairs 5 -- --speculative-method ngram
    tools/bench_edits.py --suite random --clients 1,32 --server-flags "--load-format dummy --like qwen2.5-7b
        --gpu-memory-utilization 0.4" -- --speculative-method ngram
    tools/bench_edits.py --server-flags "FOLDER --served-model-name rudder-demo" -- --speculative-method suffix
        FOLDER is of tools/demo_model/enlarge.py: the demo model's text where a step takes as long as an 8B model's
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import shlex
import statistics
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "build" / "release" / "apps" / "rudder"


class Server:
    def __init__(self, flags):
        self.process = subprocess.Popen([BINARY, "serve", "--port", "0", "--log-level", "warn", *flags],
                                        stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            found = re.search(r"on (http://\S+)\. Try", line)
            if found:
                self.url = found[1]
                return
        raise RuntimeError("the server did not start")

    def stop(self):
        self.process.terminate()
        self.process.wait()


def ask(url, messages):
    body = {"model": "rudder-demo", "messages": messages, "temperature": 0, "max_tokens": 400}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        read = json.load(answer)
    return read["choices"][0]["message"]["content"], read["usage"]


def run(server, cases, pool):
    start = time.monotonic()
    answers = list(pool.map(ask, [server.url] * len(cases), cases))
    seconds = time.monotonic() - start
    details = [usage.get("completion_tokens_details") or {} for _, usage in answers]
    return {"texts": [text for text, _ in answers],
            "rate": sum(usage["completion_tokens"] for _, usage in answers) / seconds,
            "accepted": sum(d.get("accepted_prediction_tokens", 0) for d in details),
            "rejected": sum(d.get("rejected_prediction_tokens", 0) for d in details)}


def run_random(server, arguments, clients, seed):
    """Sampled answers of random weights and random prompts, by `rudder bench serve`."""
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        subprocess.run([BINARY, "bench", "serve", "--base-url", server.url, "--num-prompts", str(2 * clients),
                        "--max-concurrency", str(clients), "--random-output-len", str(arguments.output_len), "--temperature", "1",
                        "--seed", str(seed), "--save-result", result.name], check=True, stdout=subprocess.DEVNULL)
        return json.load(result)["output_throughput"]


def compare_random(arguments, clients, plain, drafted):
    gains = []
    for pair in range(arguments.pairs):
        without, with_drafts = (run_random(server, arguments, clients, pair) for server in (plain, drafted))
        gains.append(with_drafts / without)
        print(f"pair {pair + 1}: {without:.0f} tok/s without, {with_drafts:.0f} with: {gains[-1]:.3f} times", flush=True)
    return gains


def compare_edits(arguments, clients, plain, drafted):
    lines = (ROOT / "models" / "demo" / "eval" / f"{arguments.suite}.jsonl").read_text().splitlines()
    cases = [json.loads(line)["messages"] for line in lines[:arguments.cases]] * arguments.repeat
    with concurrent.futures.ProcessPoolExecutor(clients) as pool:  # a thread of Python would be the bottleneck
        for server in (plain, drafted):
            run(server, cases[:2 * clients], pool)
        return compare_runs(arguments, cases, pool, plain, drafted)


def compare_runs(arguments, cases, pool, plain, drafted):
    gains = []
    for pair in range(arguments.pairs):
        without, with_drafts = (run(server, cases, pool) for server in (plain, drafted))
        same = sum(a == b for a, b in zip(without["texts"], with_drafts["texts"], strict=True))
        assert same == len(cases) or arguments.allow_rounding, "speculation changed a text"
        gains.append(with_drafts["rate"] / without["rate"])
        print(f"pair {pair + 1}: {without['rate']:.0f} tok/s without, {with_drafts['rate']:.0f} with: "
              f"{gains[-1]:.2f} times; accepted {with_drafts['accepted']}, rejected {with_drafts['rejected']}; "
              f"{same} of {len(cases)} texts equal", flush=True)
    return gains


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1", help="how many at once, several numbers in turn")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=1, help="times that each case is asked for")
    parser.add_argument("--suite", default="json", help="of models/demo/eval, or random")
    parser.add_argument("--output-len", type=int, default=128, help="tokens, of random")
    parser.add_argument("--server-flags", default="", help="of both servers")
    parser.add_argument("--allow-rounding", action="store_true",
                        help="texts may differ: on a GPU that is not batch-invariant a draft changes rounding")
    parser.add_argument("flags", nargs="+", help="of the server that speculates")
    arguments = parser.parse_args()
    both = shlex.split(arguments.server_flags)
    servers = []
    try:
        for flags in (both, both + arguments.flags):
            servers.append(Server(flags))
        compare = compare_random if arguments.suite == "random" else compare_edits
        for clients in map(int, arguments.clients.split(",")):
            gains = compare(arguments, clients, *servers)
            print(f"{clients} clients, median of {len(gains)} pairs: {statistics.median(gains):.3f} times "
                  f"(from {min(gains):.3f} to {max(gains):.3f})", flush=True)
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
