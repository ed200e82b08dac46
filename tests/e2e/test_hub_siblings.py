"""Models by name: siblings of what test_hub.py and test_hub_faults.py draw, over GGUF files, caches that were harmed, limits of
the process, and words of a hostile hub."""

import json
import random
import resource
import shutil
import subprocess
import time
from email.utils import formatdate

import pytest

from conftest import BINARY
from fake_hub import COMMIT, Fault
from hub_home import NAME, SERVED, big_files, demo_files, home  # noqa: F401

GGUF = "org/x-GGUF"


@pytest.fixture
def gguf(home):  # noqa: F811
    home.hub.add(GGUF, {"x-Q4_K_M.gguf": b"GGUF four", "x-Q8_0.gguf": b"GGUF eight", "config.json": b"{}"})
    return home


def fetch_theirs(home, name, file):  # noqa: F811
    return home.python(f"import huggingface_hub as h; print(h.hf_hub_download({name!r}, {file!r}))")


# GGUF files, whichever tool fetched them.

def test_a_gguf_file_of_the_hubs_own_tool_is_taken_where_the_hub_is_not(gguf):
    theirs = fetch_theirs(gguf, GGUF, "x-Q4_K_M.gguf")
    gguf.hub.seen.clear()
    assert str(gguf.pull(f"{GGUF}:q4_k_m", HF_HUB_OFFLINE="1")) == theirs and not gguf.hub.seen
    done = gguf.run("pull", f"{GGUF}:Q4_K_M", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 0 and done.stdout.strip() == theirs and "taking what the cache has" in done.stderr
    assert "no Q8_0" in gguf.refused(f"{GGUF}:Q8_0", HF_HUB_OFFLINE="1")
    ours = gguf.pull(f"{GGUF}:Q8_0")
    assert fetch_theirs(gguf, GGUF, "x-Q8_0.gguf") == str(ours)


def test_models_and_doctor_know_gguf_files(gguf):
    fetch_theirs(gguf, GGUF, "x-Q4_K_M.gguf")
    listed, = json.loads(gguf.run("models", "--json").stdout)
    assert listed["snapshots"][0]["missing"] is None
    offline = {"HF_HUB_OFFLINE": "1"}
    there = gguf.run("doctor", f"{GGUF}:Q4_K_M", "--port", "0", **offline)
    assert "not in the cache" not in there.stdout and "x-Q4_K_M.gguf" in there.stdout  # it is none: that is told
    gone = gguf.run("doctor", f"{GGUF}:Q8_0", "--port", "0", **offline)
    assert gone.returncode == 1 and "not in the cache" in gone.stdout


def test_one_quantisation_is_not_removed_with_all(gguf):
    gguf.pull(f"{GGUF}:Q4_K_M")
    path = gguf.pull(f"{GGUF}:Q8_0")
    refused = gguf.run("models", "remove", f"{GGUF}:Q4_K_M")
    assert refused.returncode == 1 and f"rudder models remove {GGUF}" in refused.stderr
    assert path.exists()
    assert gguf.run("models", "remove", GGUF).returncode == 0 and not path.exists()


# Caches that were harmed.

@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("left", [0, 100])
def test_a_blob_that_was_cut_is_fetched_again(home, file, left):  # noqa: F811
    folder = home.pull(NAME)
    with open((folder / file).resolve(), "r+b") as blob:
        blob.truncate(left)
    home.hub.seen.clear()
    assert home.pull(NAME) == folder
    assert (folder / file).read_bytes() == demo_files()[file]
    assert len(home.hub.requests("/resolve/")) == 1


def test_a_ref_that_cannot_be_written_leaves_nothing(home):  # noqa: F811
    folder = home.pull(NAME)
    ref = home.repository / "refs" / "main"
    ref.unlink()
    ref.mkdir()
    assert home.pull(NAME) == folder
    assert [path.name for path in ref.parent.iterdir()] == ["main"] and not list(home.repository.rglob("*.tmp"))


def test_killed_at_any_time_it_is_whole_or_not_there(home):  # noqa: F811
    rng = random.Random(49)
    files = big_files(8 << 20)
    home.hub.add(NAME, files)
    home.hub.fault(".", host="storage", times=10**6, delay_s=0.02)
    for _ in range(25):
        pulling = home.start("pull", NAME)
        try:
            pulling.communicate(timeout=rng.uniform(0, 0.8))
        except subprocess.TimeoutExpired:
            pulling.kill()
            pulling.communicate()
        for commit in home.snapshots():
            for file in SERVED:
                assert (home.repository / "snapshots" / commit / file).read_bytes() == files[file]
        if home.snapshots() and rng.random() < 0.5:
            shutil.rmtree(home.cache)
    folder = home.pull(NAME)
    assert all((folder / file).read_bytes() == files[file] for file in SERVED)


# Limits of the process.

def test_a_bound_on_files_is_told(home):  # noqa: F811
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = subprocess.run([str(BINARY), "pull", NAME], capture_output=True, text=True, timeout=120, env=home.environment,
                          preexec_fn=limit)
    assert done.returncode == 1 and "File too large" in done.stderr
    assert not home.snapshots()


def test_many_files_need_few_descriptors_to_begin_with(home):  # noqa: F811
    home.hub.add(NAME, {**demo_files(), **{f"c{i}.json": b'{"a":%d}' % i for i in range(200)}})
    home.hub.page_size = 1000

    def limit():
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))

    done = subprocess.run([str(BINARY), "pull", NAME], capture_output=True, text=True, timeout=120, env=home.environment,
                          preexec_fn=limit)
    assert done.returncode == 0, done.stderr


# What a hub says.

class Answer(Fault):
    """A fault with a body of its own."""

    def __init__(self, pattern, body, **options):
        super().__init__(pattern, times=99, **options)
        self.body = body

    def apply(self, handler):
        handler.send_bytes(self.body, self.status, self.headers)
        return True


@pytest.mark.parametrize("answer", [
    {"status": 200, "body": json.dumps({"sha": COMMIT, "id": "\x1b[2J\x1b]0;x\x07evil"}).encode()},
    {"status": 403, "body": b"", "headers": {"X-Error-Message": "a\x1b[2Jb"}},
    {"status": 302, "body": b"", "headers": {"Location": "http://127.0.0.1:9/\x1b[2J"}},
    {"status": 302, "body": b"", "headers": {"Location": "\x1b[2J://x"}},
])
def test_a_hub_does_not_write_to_the_terminal(home, answer):  # noqa: F811
    home.hub.faults.append(Answer("/revision/", **answer))
    done = home.run("pull", NAME)
    assert "\x1b" not in done.stderr and "\x07" not in done.stderr
    home.hub.faults.clear()
    home.hub.repositories[NAME].listing_extra = [{"type": "file", "path": "x\x1b[2J.json", "size": "no", "oid": "x"}]
    assert "\x1b" not in home.run("pull", NAME).stderr


def test_a_wait_may_be_a_date(home):  # noqa: F811
    home.hub.fault("/revision/", status=429, headers={"Retry-After": formatdate(time.time() + 4, usegmt=True)})
    start = time.monotonic()
    home.pull(NAME)
    assert time.monotonic() - start >= 2.5


@pytest.mark.parametrize("name", ["Retry-After", "RateLimit"])
def test_a_wait_that_no_number_holds_is_told(home, name):  # noqa: F811
    text = "9" * 30
    home.hub.fault("/revision/", times=99, status=429, headers={name: text if name == "Retry-After" else f'"api"; r=0; t={text}'})
    assert "too many requests" in home.refused(NAME)
    assert len(home.hub.seen) == 1


def test_an_address_that_has_expired_is_asked_for_again(home):  # noqa: F811
    home.hub.fault(".", host="storage", times=2, status=403)
    home.pull(NAME)
    assert len(home.hub.requests("/resolve/.*safetensors", "hub")) == 3
    shutil.rmtree(home.cache)
    home.hub.fault(".", host="storage", times=99, status=403)
    assert "the hub's storage refuses model.safetensors" in home.refused(NAME)
