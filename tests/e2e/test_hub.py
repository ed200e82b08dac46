"""From a name to a folder: `rudder pull` and `rudder serve ORG/NAME`, with huggingface_hub as the judge of the cache that
they share."""

import fcntl
import json
import os
import re
import signal
import time

import httpx2
import pytest

from conftest import wait_for
from fake_hub import COMMIT
from hub_home import NAME, SERVED, big_files, demo_files, home  # noqa: F401


def test_a_pull_has_what_a_server_needs_and_nothing_else(home):
    folder = home.pull(NAME)
    assert folder == home.repository / "snapshots" / COMMIT
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())
    assert files == sorted([*SERVED, "additional_chat_templates/tools.jinja"])
    for file in files:
        assert (folder / file).read_bytes() == home.hub.repositories[NAME].files[file]
        assert (folder / file).is_symlink() and not os.path.isabs(os.readlink(folder / file))
    assert (home.repository / "refs" / "main").read_text() == COMMIT
    assert not home.hub.requests(r"\.bin|\.py|README|params")
    assert not list(home.repository.rglob("*.incomplete"))


def test_a_gguf_file_is_named_by_its_quantisation(home):
    files = {"x-Q4_K_M.gguf": b"GGUF four", "x-Q8_0-00001-of-00002.gguf": b"GGUF one", "x-Q8_0-00002-of-00002.gguf": b"GGUF two",
             "config.json": b"{}", "mmproj-x-Q8_0.gguf": b"GGUF eye"}
    home.hub.add("org/x-GGUF", files)
    path = home.pull("org/x-GGUF:q4_k_m")
    assert path.name == "x-Q4_K_M.gguf" and path.read_bytes() == files[path.name]
    assert not home.hub.requests("Q8_0|config.json")
    path = home.pull("org/x-GGUF:Q8_0")
    assert path.name == "x-Q8_0-00001-of-00002.gguf"
    assert (path.parent / "x-Q8_0-00002-of-00002.gguf").read_bytes() == b"GGUF two"
    home.hub.seen.clear()
    assert home.pull("org/x-GGUF:Q8_0") == path and not home.hub.requests("/resolve/")
    assert "GGUF weights alone; name one" in home.refused("org/x-GGUF")


def test_a_second_pull_fetches_nothing(home):
    home.pull(NAME)
    home.hub.seen.clear()
    home.pull(NAME)
    assert not home.hub.requests("/resolve/") and len(home.hub.seen) == 1
    home.hub.seen.clear()
    home.pull(NAME, "--revision", COMMIT)
    assert not home.hub.seen


def test_the_hubs_own_tool_reads_what_was_pulled(home):
    folder = home.pull(NAME)
    found = home.python(f"""
import huggingface_hub as h, json
print(json.dumps([h.snapshot_download({NAME!r}, local_files_only=True), h.try_to_load_from_cache({NAME!r}, 'config.json'),
                  h.hf_hub_download({NAME!r}, 'model.safetensors')]))""", HF_HUB_OFFLINE="1")
    assert json.loads(found) == [str(folder), str(folder / "config.json"), str(folder / "model.safetensors")]
    scanned = home.python("""
import huggingface_hub as h, json
c = h.scan_cache_dir()
print(json.dumps([[str(w) for w in c.warnings], [[r.repo_id, r.repo_type, r.size_on_disk, [[v.commit_hash, sorted(v.refs)]
      for v in r.revisions]] for r in c.repos]]))""")
    size = sum((folder / file).stat().st_size for file in [*SERVED, "additional_chat_templates/tools.jinja"])
    assert json.loads(scanned) == [[], [[NAME, "model", size, [[COMMIT, ["main"]]]]]]


def test_a_pull_reads_what_the_hubs_own_tool_fetched(home):
    theirs = home.python(f"import huggingface_hub as h; print(h.snapshot_download({NAME!r}))")
    home.hub.seen.clear()
    assert str(home.pull(NAME)) == theirs
    assert not home.hub.requests("/resolve/")
    ours = json.loads(home.run("models", "--json").stdout)
    assert [row["model"] for row in ours] == [NAME] and ours[0]["snapshots"][0]["refs"] == ["main"]


def test_what_the_hubs_own_tool_began_is_made_whole(home):
    home.python(f"import huggingface_hub as h; h.hf_hub_download({NAME!r}, 'config.json')")
    listed = json.loads(home.run("models", "--json").stdout)
    assert listed[0]["snapshots"][0]["missing"] == "model.safetensors"
    refused = home.run("info", NAME, HF_HUB_OFFLINE="1")
    assert refused.returncode == 1 and "no model.safetensors" in refused.stderr
    folder = home.pull(NAME)
    assert (folder / "model.safetensors").exists() and (folder / "tokenizer.json").exists()


def test_a_name_is_served(home):
    server = home.start("serve", NAME, "--port", "0")
    try:
        line = next(line for line in server.stdout if "Serving" in line)
        assert line.startswith(f"Serving {NAME} on ")
        url = re.search(r"on (http://[\d.]+:\d+)", line)[1]
        answer = httpx2.post(url + "/v1/chat/completions", timeout=60, json={
            "model": NAME, "temperature": 0, "messages": [{"role": "user", "content": "What is 12 + 30?"}]})
        assert "42" in answer.json()["choices"][0]["message"]["content"]
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


@pytest.mark.parametrize("command", [("info",), ("tokenize", "--text", "one"),
                                     ("generate", "--prompt", "Once", "--max-tokens", "2")])
def test_every_command_takes_a_name(home, command):
    done = home.run(command[0], NAME, *command[1:])
    assert done.returncode == 0, done.stderr
    assert home.snapshots() == [COMMIT]


def test_revisions_are_branches_tags_and_commits(home):
    other = "f" * 40
    home.hub.repositories[NAME].revisions |= {"refs/pr/3", "v1.0"}
    for revision in ("refs/pr/3", "v1.0"):
        home.pull(NAME, "--revision", revision)
        assert (home.repository / "refs" / revision).read_text() == COMMIT
    assert "no revision 'v2'" in home.refused(NAME, "--revision", "v2")
    assert "no revision" in home.refused(NAME, "--revision", other)
    for wrong in ("../main", "a b", "/etc", ""):
        assert "revision" in home.refused(NAME, "--revision", wrong)
    assert home.snapshots() == [COMMIT]


def test_a_branch_that_moved_is_followed_and_the_old_state_stays(home):
    home.pull(NAME)
    home.hub.add(NAME, {**demo_files(), "config.json": demo_files()["config.json"] + b" "}, commit="b" * 40)
    home.hub.seen.clear()
    home.pull(NAME)
    assert (home.repository / "refs" / "main").read_text() == "b" * 40
    assert home.snapshots() == [COMMIT, "b" * 40]
    assert len(home.hub.requests("/resolve/")) == 1  # blobs that are the same are not fetched again


def test_offline_takes_the_cache_and_says_what_it_lacks(home):
    words = home.refused(NAME, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in words and f"rudder pull {NAME}" in words
    folder = home.pull(NAME)
    home.hub.seen.clear()
    assert home.pull(NAME, HF_HUB_OFFLINE="1") == folder
    assert not home.hub.seen


def test_a_hub_that_is_gone_leaves_the_cache(home):
    folder = home.pull(NAME)
    done = home.run("pull", NAME, HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 0 and done.stdout.strip() == str(folder)
    assert "cannot be reached" in done.stderr and "taking what the cache has" in done.stderr


# Several processes, and the cache as people see it.

def test_two_pulls_at_once_fetch_once(home):
    home.hub.add(NAME, big_files(8 << 20))
    home.hub.fault(".", host="storage", times=99, delay_s=0.1)
    both = [home.start("pull", NAME) for _ in range(2)]
    out = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], out
    assert out[0][0] == out[1][0] and len(home.hub.requests(".", "storage")) == 1


def test_a_pull_waits_for_the_hubs_own_tool(home):
    etag = home.hub.repositories[NAME].etag("model.safetensors")
    lock = home.cache / ".locks" / "models--org--demo" / f"{etag}.lock"
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = home.start("pull", NAME)
        time.sleep(1)
        assert waiting.poll() is None and not home.hub.requests(".", "storage")
    out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 0 and "another process" in err


def test_models_lists_and_removes(home):
    assert "0 models" in home.run("models").stdout
    home.pull(NAME)
    table = home.run("models").stdout
    assert NAME in table and f"main ({COMMIT[:8]})" in table and "1 models" in table
    removed = home.run("models", "remove", NAME)
    assert removed.returncode == 0 and f"{NAME} removed" in removed.stdout
    assert not home.repository.exists() and "0 models" in home.run("models").stdout
    for wrong in ((NAME,), ("../x",), ("org/none",)):
        assert home.run("models", "remove", *wrong).returncode == 1
    assert home.run("models", "forget").returncode == 2


def test_a_model_that_is_fetched_is_not_removed(home):
    home.hub.add(NAME, big_files(8 << 20))
    home.hub.fault(".", host="storage", times=99, delay_s=0.3)
    pulling = home.start("pull", NAME)
    wait_for(lambda: home.hub.requests(".", "storage"), "the download")
    refused = home.run("models", "remove", NAME)
    assert refused.returncode == 1 and "another process fetches" in refused.stderr
    assert pulling.wait(60) == 0
    assert home.snapshots() == [COMMIT]
