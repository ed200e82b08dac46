"""The same long system prompt twice: the second request finds it cached and costs less."""

import random


def long_system_prompt():
    """Several hundred tokens that no earlier request can have had."""
    rng = random.Random()
    facts = " ".join(f"Room {rng.randint(0, 999)} is painted in colour number {rng.randint(0, 999)}." for _ in range(45))
    return {"role": "system", "content": "You are a careful assistant. " + facts}


def timed(server, model, system, question):
    """(seconds of processor time for the first token, usage)"""
    start = server.processor_seconds()
    answer = server.client().chat.completions.create(model=model, messages=[system, {"role": "user", "content": question}],
                                                     temperature=0, max_tokens=1)
    return server.processor_seconds() - start, answer.usage


def test_second_request_is_cached_and_cheaper(server, model):
    colds, warms = [], []
    for _ in range(5):
        system = long_system_prompt()
        cold, first = timed(server, model, system, "What is 1 + 1?")
        warm, second = timed(server, model, system, "What is 2 + 2?")
        colds.append(cold)
        warms.append(warm)
        assert first.prompt_tokens > 500
        assert first.prompt_tokens_details.cached_tokens < 32
        assert second.prompt_tokens_details.cached_tokens >= second.prompt_tokens - 48
    cold, warm = sorted(colds)[2], sorted(warms)[2]
    assert warm < cold / 2
    print(f"{first.prompt_tokens} prompt tokens: first token for {cold * 1e3:.1f} ms of a core cold, {warm * 1e3:.1f} ms cached")
