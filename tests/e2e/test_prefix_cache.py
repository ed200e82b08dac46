"""The same long system prompt twice: the second request finds it cached and starts sooner."""

import random
import time


def long_system_prompt():
    """Several hundred tokens that no earlier request can have had."""
    rng = random.Random()
    facts = " ".join(f"Room {rng.randint(0, 999)} is painted in colour number {rng.randint(0, 999)}." for _ in range(45))
    return {"role": "system", "content": "You are a careful assistant. " + facts}


def timed(client, model, system, question):
    """(seconds to the first text, usage)"""
    start = time.perf_counter()
    stream = client.chat.completions.create(model=model, messages=[system, {"role": "user", "content": question}],
                                            temperature=0, max_tokens=8, stream=True,
                                            stream_options={"include_usage": True})
    first, usage = None, None
    for chunk in stream:
        if first is None and chunk.choices and chunk.choices[0].delta.content:
            first = time.perf_counter() - start
        usage = chunk.usage or usage
    return first, usage


def test_second_request_is_cached_and_sooner(server, model):
    client = server.client()
    colds, warms = [], []
    for _ in range(5):
        system = long_system_prompt()
        cold, first = timed(client, model, system, "What is 1 + 1?")
        warm, second = timed(client, model, system, "What is 2 + 2?")
        colds.append(cold)
        warms.append(warm)
        assert first.prompt_tokens > 500
        assert first.prompt_tokens_details.cached_tokens < 32
        assert second.prompt_tokens_details.cached_tokens >= second.prompt_tokens - 48
    cold, warm = sorted(colds)[2], sorted(warms)[2]
    assert warm < cold / 2
    print(f"{first.prompt_tokens} prompt tokens: first text after {cold * 1e3:.1f} ms cold, {warm * 1e3:.1f} ms cached")
