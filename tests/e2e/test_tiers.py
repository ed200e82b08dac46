"""Cached prefixes behind the KV cache: answers are those of a server without, hits are told by tier, also after a
restart, and files that are damaged are misses."""

import json
import os
import resource
import shutil

import pytest
from conftest import DEMO, Server, run_rudder, serving
from test_adapters import ADAPTERS
from test_adapters import FLAGS as WITH_ADAPTER
from test_speculation import DRAFT
from test_steering import add, vector

SMALL = ("--device", "cpu", "--threads", "1", "--max-num-seqs", "2", "--max-num-batched-tokens", "64", "--max-model-len",
         "192", "--kv-cache-memory-bytes", "1M")
CHATS = [f"Chat {i}: " + " ".join(f"item {i * 7 + k} is {k * i % 13}" for k in range(12)) for i in range(12)]


def metric(server, name, tier=""):
    return sum(value for key, value in server.metrics().items()
               if key.split("{")[0].endswith(name) and f'tier="{tier}"' in (key if tier else 'tier=""'))


def tiers(folder, *more):
    return ("--kv-host-gib", "0.03", "--kv-disk-dir", str(folder), "--kv-disk-gib", "1", "--kv-store-uses", "1", "--kv-fetch", "always",
            *more)


def ask(server, text, model=None, **more):
    model = model or server.client().models.list().data[0].id
    answer = server.client().completions.create(model=model, prompt=text, max_tokens=4, temperature=0, logprobs=1, extra_body=more)
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
    with serving(*SMALL) as server:
        plain, host, storage = rounds(server)
        assert host == storage == 0
    with serving(*SMALL, *tiers(folder)) as server:
        with_tiers, host, _ = rounds(server)
        assert with_tiers == plain
        assert host > 0
        assert metric(server, "kv_tier_hit_tokens_total", "host") == host
        assert metric(server, "kv_tier_records", "disk") > 0
        refused = run_rudder("serve", *SMALL, *tiers(folder))
        assert refused.returncode != 0 and "kv-disk-dir" in refused.stderr
    assert os.stat(folder / "secret").st_mode & 0o077 == 0
    with serving(*SMALL, *tiers(folder)) as server:
        after, _, storage = rounds(server, 1)
        assert after == plain[: len(after)]
        assert storage > 0
        assert metric(server, "kv_tier_hit_tokens_total", "disk") == storage
    for file in folder.glob("*.kv"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with serving(*SMALL, *tiers(folder)) as server:
        after, _, storage = rounds(server, 1)
        assert after == plain[: len(after)]
        assert storage == 0
        assert metric(server, "kv_tier_bad_records_total") > 0


@pytest.mark.parametrize("method", [("ngram", "--prompt-lookup-min", "1"), ("suffix",)])
def test_guesses_from_the_text_change_nothing(tmp_path, method):
    """Proposers on the host keep no rows, so their sequences go on behind records as others do."""
    drafts = ("--speculative-method", *method, "--num-speculative-tokens", "3", "--no-speculative-adaptive")
    with serving(*SMALL) as server:
        plain, _, _ = rounds(server, 2)
    with serving(*SMALL, *drafts, *tiers(tmp_path / "records")) as server:
        with_tiers, host, _ = rounds(server, 2)
        assert [text for (text, _) in with_tiers] == [text for (text, _) in plain]
        assert host > 0
        server.client().completions.create(model=server.client().models.list().data[0].id, prompt="The fox saw the dog. " * 6,
                                           max_tokens=30, temperature=0)
        assert server.metric("rudder:spec_decode_num_draft_tokens_total") > 0


def test_steering_and_adapters_have_records_of_their_own(tmp_path):
    """One prefix under four programs and adapters in turn, in batch-invariant mode; then another process, which makes the same
    keys of the same programs, adapters and secret."""
    flags = (*SMALL[:-1], "2M", *WITH_ADAPTER, "--enable-steering", "--max-steering-rows", "8", "--batch-invariant")
    kinds = ({}, {"model": "tone"}, add(vector(8)), {"model": "tone", **add(vector(9))})

    def rounds_of_kinds(server, count):
        answers, behind = [], []
        for _ in range(count):
            for chat in CHATS[:4]:
                for kind in kinds:
                    answer, by_tier = ask(server, chat, **kind)
                    answers.append(answer)
                    behind.append(by_tier.get("host", 0) + by_tier.get("storage", 0))
        return answers, behind

    with serving(*flags) as server:
        plain, behind = rounds_of_kinds(server, 2)
        assert not any(behind)
    assert len({str(plain[i]) for i in range(4)}) == 4  # or nothing is shown here
    folder = tmp_path / "records"
    with serving(*flags, *tiers(folder)) as server:
        with_tiers, behind = rounds_of_kinds(server, 2)
        assert with_tiers == plain
        assert not any(behind[:16]) and sum(found > 0 for found in behind[16:]) >= 12, behind
    with serving(*flags, *tiers(folder)) as server:
        after, behind = rounds_of_kinds(server, 1)
        assert after == plain[:16]
        assert sum(found > 0 for found in behind) >= 12, behind


def test_a_killed_process_leaves_nothing_wrong(tmp_path):
    folder = tmp_path / "records"
    with serving(*SMALL) as server:
        plain, _, _ = rounds(server, 1)
    server = Server(*SMALL, *tiers(folder))
    rounds(server, 1)
    server.process.kill()
    server.process.communicate()
    with serving(*SMALL, *tiers(folder)) as server:
        after, _, storage = rounds(server, 1)
        assert after == plain and storage > 0
        assert metric(server, "kv_tier_bad_records_total") == 0


def test_a_full_disk_is_no_error(tmp_path):
    """As where the disk is full: files may not grow beyond half a record."""
    folder = tmp_path / "records"
    with serving(*SMALL) as server:
        plain, _, _ = rounds(server)
    with serving(*SMALL, *tiers(folder)) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        full, host, storage = rounds(server)
        assert full == plain and host > 0 and storage == 0
        assert metric(server, "kv_tier_failed_writes_total") > 0
        assert not list(folder.glob("*.kv*"))
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_records_of_others_are_not_found(tmp_path):
    """Of another secret; of another dtype, rope or mode; of a model of the same name and shape, one row of whose
    embeddings was trained anew."""
    folder, model = tmp_path / "records", tmp_path / "model"
    small = (*SMALL[:-1], "2M")
    shutil.copytree(DEMO, model)
    with serving(*small, *tiers(folder), model=model) as server:
        plain, _, _ = rounds(server, 1)
        assert metric(server, "kv_tier_records", "disk") > 0
    for flags in (("--prefix-key-secret", "another"), ("--dtype", "float32"), ("--rope-theta", "9000"), ("--batch-invariant",)):
        with serving(*small, *tiers(folder, *flags), model=model) as server:
            _, _, storage = rounds(server, 1)
            assert storage == 0, flags
    with serving(*small, *tiers(folder), model=model) as server:
        again, _, storage = rounds(server, 1)
        assert again == plain and storage > 0
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    name, tensor = next((n, t) for n, t in header.items() if "embed_tokens" in n or "tok_embeddings" in n)
    size = tensor["data_offsets"][1] - tensor["data_offsets"][0]
    row = size // tensor["shape"][0]
    begin = 8 + int.from_bytes(data[:8], "little") + tensor["data_offsets"][0] + tensor["shape"][0] // 3 * row
    data[begin : begin + row] = data[begin + row : begin + 2 * row]
    weights.write_bytes(data)
    with serving(*small, *tiers(folder), model=model) as server:
        _, _, storage = rounds(server, 1)
        assert storage == 0, name


def test_what_does_not_go_together_is_refused_by_name(tmp_path):
    for flags, name in ((("--kv-disk-dir", str(tmp_path / "d")), "kv-disk-dir"),
                        (("--kv-host-gib", "1", "--kv-disk-gib", "1"), "kv-disk-gib"),
                        (("--kv-offloading-size", "1", "--no-enable-prefix-caching"), "kv-host-gib"),
                        (("--kv-host-gib", "60000"), "kv-host-gib"),  # more than the machine has
                        (("--kv-host-gib", "1", "--tensor-parallel-size", "2"), "several ranks"),
                        (("--kv-host-gib", "1", "--pipeline-parallel-size", "2"), "several ranks, stages"),
                        (("--kv-host-gib", "1", "--data-parallel-size", "2"), "stages or replicas"),
                        (("--kv-host-gib", "1", "--speculative-method", "draft_model", "--speculative-model", str(DRAFT)),
                         "a model that guesses")):
        refused = run_rudder("serve", *SMALL, *flags)
        assert refused.returncode != 0
        assert name in refused.stderr, refused.stderr
