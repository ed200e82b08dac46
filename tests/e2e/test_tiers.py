"""Cached prefixes behind the KV cache: answers are those of a server without, hits are told by tier, also after a
restart, and files that are damaged are misses."""

import os

from conftest import run_rudder, serving

SMALL = ("--device", "cpu", "--threads", "1", "--max-num-seqs", "2", "--max-num-batched-tokens", "64", "--max-model-len",
         "192", "--kv-cache-memory-bytes", "1M")
CHATS = [f"Chat {i}: " + " ".join(f"item {i * 7 + k} is {k * i % 13}" for k in range(12)) for i in range(12)]


def metric(server, name, tier=""):
    return sum(value for key, value in server.metrics().items()
               if key.split("{")[0].endswith(name) and f'tier="{tier}"' in (key if tier else 'tier=""'))


def ask(server, text):
    answer = server.client().completions.create(model=server.client().models.list().data[0].id, prompt=text, max_tokens=4,
                                                temperature=0, logprobs=1)
    choice = answer.choices[0]
    details = answer.usage.prompt_tokens_details
    by_tier = getattr(details, "cached_tokens_details", None) or {}
    assert not by_tier or sum(by_tier.values()) == details.cached_tokens
    return (choice.text, choice.logprobs.token_logprobs), by_tier


def rounds(server, count=3):
    answers, host, storage = [], 0, 0
    for _ in range(count):
        for chat in CHATS:
            answer, by_tier = ask(server, chat)
            answers.append(answer)
            host += by_tier.get("host", 0)
            storage += by_tier.get("storage", 0)
    return answers, host, storage


def test_tiers_are_found_again_and_change_no_answer(tmp_path):
    folder = tmp_path / "records"
    tiers = ("--kv-host-gib", "0.03", "--kv-disk-dir", str(folder), "--kv-disk-gib", "1", "--kv-store-uses", "1",
             "--kv-fetch", "always")
    with serving(*SMALL) as server:
        plain, host, storage = rounds(server)
        assert host == storage == 0
    with serving(*SMALL, *tiers) as server:
        with_tiers, host, _ = rounds(server)
        assert with_tiers == plain
        assert host > 0
        assert metric(server, "kv_tier_hit_tokens_total", "host") == host
        assert metric(server, "kv_tier_records", "disk") > 0
        refused = run_rudder("serve", *SMALL, *tiers)
        assert refused.returncode != 0 and "kv-disk-dir" in refused.stderr
    assert os.stat(folder / "secret").st_mode & 0o077 == 0
    with serving(*SMALL, *tiers) as server:
        after, _, storage = rounds(server, 1)
        assert after == plain[: len(after)]
        assert storage > 0
        assert metric(server, "kv_tier_hit_tokens_total", "disk") == storage
    for file in folder.glob("*.kv"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with serving(*SMALL, *tiers) as server:
        after, _, storage = rounds(server, 1)
        assert after == plain[: len(after)]
        assert storage == 0
        assert metric(server, "kv_tier_bad_records_total") > 0


def test_what_does_not_go_together_is_refused_by_name(tmp_path):
    for flags, name in ((("--kv-disk-dir", str(tmp_path / "d")), "kv-disk-dir"),
                        (("--kv-host-gib", "1", "--kv-disk-gib", "1"), "kv-disk-gib"),
                        (("--kv-offloading-size", "1", "--no-enable-prefix-caching"), "kv-host-gib"),
                        (("--kv-host-gib", "1", "--tensor-parallel-size", "2"), "kv-host-gib")):
        refused = run_rudder("serve", *SMALL, *flags)
        assert refused.returncode != 0
        assert name in refused.stderr, refused.stderr
