#!/usr/bin/env python3
"""An edit workload over HTTP: the demo model copies JSON objects with one field changed. Serves it with
and without speculation in turn, with so many clients, and prints the tokens a second of each pair.
Standard library only.

    tools/bench_edits.py --clients 1 --pairs 5 -- --speculative-method ngram
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import statistics
import subprocess
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


def run(server, cases, clients):
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda messages: ask(server.url, messages), cases))
    seconds = time.monotonic() - start
    details = [usage.get("completion_tokens_details") or {} for _, usage in answers]
    return {"texts": [text for text, _ in answers],
            "rate": sum(usage["completion_tokens"] for _, usage in answers) / seconds,
            "accepted": sum(d.get("accepted_prediction_tokens", 0) for d in details),
            "rejected": sum(d.get("rejected_prediction_tokens", 0) for d in details)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--suite", default="json", help="of models/demo/eval")
    parser.add_argument("flags", nargs="+", help="of the server that speculates")
    arguments = parser.parse_args()
    lines = (ROOT / "models" / "demo" / "eval" / f"{arguments.suite}.jsonl").read_text().splitlines()
    cases = [json.loads(line)["messages"] for line in lines[:arguments.cases]]
    plain, drafted = Server([]), Server(arguments.flags)
    gains = []
    try:
        for server in (plain, drafted):
            run(server, cases[:8], arguments.clients)
        for pair in range(arguments.pairs):
            without, with_drafts = (run(server, cases, arguments.clients) for server in (plain, drafted))
            assert without["texts"] == with_drafts["texts"], "speculation changed a text"
            gains.append(with_drafts["rate"] / without["rate"])
            print(f"pair {pair + 1}: {without['rate']:.0f} tok/s without, {with_drafts['rate']:.0f} with: "
                  f"{gains[-1]:.2f} times; accepted {with_drafts['accepted']}, rejected {with_drafts['rejected']}")
    finally:
        plain.stop()
        drafted.stop()
    print(f"median of {len(gains)} pairs: {statistics.median(gains):.2f} times (from {min(gains):.2f} to {max(gains):.2f})")


if __name__ == "__main__":
    main()
