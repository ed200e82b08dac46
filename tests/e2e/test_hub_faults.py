"""Models by name where something is wrong: the transfer, the access, or the hub itself."""

import json
import signal
import subprocess
import time

import pytest

from conftest import PATIENCE_S, wait_for
from fake_hub import COMMIT, fake_hub, git_hash
from hub_home import BIG, NAME, SERVED, Home, big_files, certificate, demo_files, home  # noqa: F401

# Faults of the transfer.

def test_ranges_are_fetched_side_by_side(home):
    home.hub.add(NAME, big_files())
    home.hub.fault(".", host="storage", times=99, delay_s=0.002)
    folder = home.pull(NAME)
    assert (folder / "model.safetensors").read_bytes() == big_files()["model.safetensors"]
    asked = {seen["range"] for seen in home.hub.requests(".", "storage")}
    assert asked == {"bytes=0-67108863", f"bytes=67108864-{BIG - 1}"}


def test_a_cut_goes_on_where_it_was(home):
    data = demo_files()["model.safetensors"]
    home.hub.fault(".", host="storage", times=2, cut_after=len(data) // 3)
    folder = home.pull(NAME)
    assert (folder / "model.safetensors").read_bytes() == data
    firsts = [int(seen["range"].split("=")[1].split("-")[0]) for seen in home.hub.requests(".", "storage")]
    assert firsts == [0, len(data) // 3, 2 * (len(data) // 3)]


def test_a_killed_pull_goes_on_where_it_was(home):
    home.hub.add(NAME, big_files())
    home.hub.fault(".", host="storage", times=99, delay_s=0.1)
    killed = home.start("pull", NAME)
    ranges = home.repository / "blobs"
    wait_for(lambda: any("rudder-ranges" in path.name and sum(map(int, path.read_text().split()[3:])) > 8 << 20
                         for path in ranges.glob("*-ranges.incomplete")), "bytes of the model")
    killed.kill()
    killed.communicate()
    assert not home.snapshots()
    home.hub.faults.clear()
    home.hub.seen.clear()
    folder = home.pull(NAME)
    assert (folder / "model.safetensors").read_bytes() == big_files()["model.safetensors"]
    first = home.hub.requests(".", "storage")[0]["range"]
    assert int(first.split("=")[1].split("-")[0]) > 0


def test_ctrl_c_ends_the_download_of_a_server(home):
    home.hub.add(NAME, big_files())
    home.hub.fault(".", host="storage", times=99, delay_s=30)  # a MiB: it does not end by itself
    server = home.start("serve", NAME, "--port", "0")
    wait_for(lambda: home.hub.requests(".", "storage"), "the download")
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=PATIENCE_S)
    assert server.returncode == -signal.SIGINT
    assert not home.snapshots()


@pytest.mark.parametrize("without_ranges_at", ["first", "later"])
def test_a_server_without_ranges_sends_it_whole(home, without_ranges_at):
    home.hub.add(NAME, big_files())
    data = big_files()["model.safetensors"]
    home.hub.without_ranges = True
    if without_ranges_at == "later":
        home.hub.fault(".", host="storage", cut_after=50 << 20)
    folder = home.pull(NAME)
    assert (folder / "model.safetensors").read_bytes() == data


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 500}, {"status": 429, "headers": {"Retry-After": "1"}}])
@pytest.mark.parametrize("where", ["/api/models/.*/revision", "/tree/", "/resolve/[^/]*/config.json"])
def test_passing_faults_are_tried_again(home, fault, where):
    home.hub.fault(where, times=2, **fault)
    start = time.monotonic()
    home.pull(NAME)
    if "headers" in fault:
        assert time.monotonic() - start >= 2  # as it asked


def test_a_fault_that_stays_is_told(home):
    home.hub.fault("/revision/", times=99, status=503)
    assert "503" in home.refused(NAME)
    home.hub.faults.clear()
    home.hub.fault("/resolve/.*tokenizer.json", times=99, status=500)
    assert "500" in home.refused(NAME)
    assert not home.snapshots() and not (home.repository / "refs").exists()


def test_a_wait_that_nobody_waits_is_told(home):
    home.hub.fault("/revision/", times=99, status=429, headers={"Retry-After": "3600"})
    start = time.monotonic()
    assert "too many requests" in home.refused(NAME)
    assert time.monotonic() - start < 10


def test_a_stalled_transfer_counts_as_cut(home):
    home.hub.fault("/resolve/.*tokenizer.json", delay_s=8)
    home.hub.fault(".", host="storage", delay_s=8, cut_after=1)
    start = time.monotonic()
    home.pull(NAME, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("path", ["model.safetensors", "config.json"])
def test_wrong_bytes_are_never_published(home, path):
    repository = home.hub.repositories[NAME]
    repository.listed_hash[path] = "0" * len(repository.etag(path))
    words = home.refused(NAME)
    assert path in words and "hash" in words and "0" * 40 in words
    assert not home.snapshots() and not (home.repository / "refs").exists()
    assert not (home.repository / "blobs" / repository.etag(path)).exists()
    repository.listed_hash.clear()
    home.pull(NAME)


def test_wrong_sizes_are_told(home):
    repository = home.hub.repositories[NAME]
    real = len(repository.files["model.safetensors"])
    for path, lie in (("model.safetensors", real + 7), ("model.safetensors", real - 7), ("config.json", 3)):
        repository.listed_size = {path: lie}
        words = home.refused(NAME)
        assert path in words and f"lists {lie} bytes" in words
        for blob in (home.repository / "blobs").glob("*.rudder.incomplete"):
            assert blob.stat().st_size <= max(lie, real)
    assert not home.snapshots()


def test_the_disk_is_looked_at_first(home):
    home.hub.repositories[NAME].listed_size = {"model.safetensors": 1 << 42}
    words = home.refused(NAME)
    assert "4096" in words and "iB free" in words and "HF_HUB_CACHE" in words
    assert not home.hub.requests(".", "storage")


# Who may read what.

def test_a_token_goes_to_the_hub_alone(home):
    home.hub.repositories[NAME].private = True
    home.pull(NAME, HF_TOKEN="hf_right")
    assert {seen["token"] for seen in home.hub.requests(".", "hub")} == {"Bearer hf_right"}
    stored = home.hub.requests(".", "storage")
    assert stored and {seen["token"] for seen in stored} == {None}


def test_a_token_comes_from_the_files_of_the_hubs_tool(home):
    home.hub.repositories[NAME].private = True
    (home.cache.parent).mkdir(parents=True, exist_ok=True)
    (home.cache.parent / "token").write_text("hf_right\n")
    home.pull(NAME)


def test_refusals_say_what_to_do(home):
    repository = home.hub.repositories[NAME]
    repository.gated = True
    assert "is gated" in (words := home.refused(NAME)) and "HF_TOKEN" in words
    assert "has no access" in (words := home.refused(NAME, HF_TOKEN="hf_right")) and f"{home.hub.url}/{NAME}" in words
    repository.gated = "granted"
    home.pull(NAME, HF_TOKEN="hf_right")
    assert "does not take the token in HF_TOKEN" in home.refused("org/other", HF_TOKEN="hf_wrong")
    assert "no repository org/none" in (words := home.refused("org/none")) and "HF_TOKEN" in words
    assert "no repository org/none" in home.refused("org/none", HF_TOKEN="hf_right")
    done = home.run("info", "org/none")
    assert done.returncode == 1 and "there is no folder 'org/none'" in done.stderr
    assert "hf_" not in done.stderr


def test_a_renamed_repository_is_found_and_told(home):
    home.hub.add("new/name", demo_files())
    home.hub.repositories[NAME].renamed_to = "new/name"
    done = home.run("pull", NAME)
    assert done.returncode == 0, done.stderr
    assert "is called new/name today" in done.stderr
    assert home.snapshots() == [COMMIT]


def test_what_is_no_model_of_ours_is_told(home):
    for files, word in (({"pytorch_model.bin": b"x", "config.json": b"{}"}, "never loaded"),
                        ({"a-Q4_K_M.gguf": b"x"}, "GGUF"), ({"README.md": b"x"}, "no weights")):
        home.hub.add("org/odd", files)
        assert word in home.refused("org/odd")
    assert "no GGUF file whose name ends with 'Q4_K_M'" in home.refused("org/demo:Q4_K_M")
    assert not home.hub.requests(r"resolve/.*\.(bin|gguf)")
    for wrong in ("a/b/c", "../x", "https://huggingface.co/org/demo", "a--b/c"):
        assert "name" in home.refused(wrong)


# What a hostile hub does.

def extra(path, **fields):
    return {"type": "file", "path": path, "size": 2, "oid": git_hash(b"{}"), **fields}


@pytest.mark.parametrize("path", ["../escape.json", "/tmp/escape.json", "a/../../escape.json", "x//y.json", "./x.json"])
def test_paths_cannot_leave_the_folder(home, path):
    home.hub.repositories[NAME].listing_extra = [extra(path)]
    assert "leaves the repository's folder" in home.refused(NAME)
    assert not home.snapshots() and not list(home.cache.parent.parent.rglob("escape.json"))


def test_backslashes_and_control_characters_are_passed_over(home):
    home.hub.repositories[NAME].listing_extra = [extra("..\\escape.json"), extra("a\nb.json"), extra("x\x1b[2J.json")]
    folder = home.pull(NAME)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*SERVED, "additional_chat_templates"])


@pytest.mark.parametrize("fields", [{"oid": "../../x"}, {"oid": "A" * 40}, {"size": -1}, {"size": 1 << 60}, {"size": "2"},
                                    {"lfs": {"oid": "x", "size": 2}}, {"lfs": 1}])
def test_hashes_and_sizes_of_a_listing_are_checked(home, fields):
    home.hub.repositories[NAME].listing_extra = [extra("x.json", **fields)]
    assert "listing" in home.refused(NAME)
    assert not home.snapshots()


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x", ""])
def test_redirects_stay_on_the_web(home, location):
    home.hub.fault("/resolve/.*config.json", times=99, status=302, headers={"Location": location})
    assert "redirect" in home.refused(NAME)
    assert not home.snapshots()


def test_redirects_in_circles_end(home):
    home.hub.fault("/resolve/.*config.json", times=999, status=302, headers={"Location": "config.json"})
    assert "10 times" in home.refused(NAME)


def test_an_index_cannot_name_files_elsewhere(home):
    files = demo_files()
    files.pop("model.safetensors")
    for shard in ("../x.safetensors", "/x.safetensors", "none.safetensors"):
        index = json.dumps({"weight_map": {"a": shard}}).encode()
        home.hub.add(NAME, {**files, "model.safetensors.index.json": index, "model-1.safetensors": b"x"})
        assert "index" in home.refused(NAME)
    assert not home.snapshots()


def test_shards_of_an_index_are_fetched(home):
    files = demo_files()
    index = json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}).encode()
    home.hub.add("org/parts", {"config.json": files["config.json"], "model.safetensors.index.json": index,
                                "m-1.safetensors": b"1", "m-2.safetensors": b"2", "m.fp16-1.safetensors": b"3"})
    folder = home.pull("org/parts")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "m-1.safetensors", "m-2.safetensors",
                                                              "model.safetensors.index.json"]


def test_tls_is_verified_and_not_left(tmp_path, certificate):
    with fake_hub(certificate) as hub:
        hub.add(NAME, demo_files())
        home = Home(hub, tmp_path)
        assert "does not prove who it is" in (words := home.refused(NAME)) and "SSL_CERT_FILE" in words
        trust = {"SSL_CERT_FILE": str(certificate[0])}
        with fake_hub() as plain:
            hub.fault("/resolve/.*config.json", times=99, status=302, headers={"Location": plain.url + "/x"})
            assert "https to http" in home.refused(NAME, **trust)
            assert not plain.seen
        hub.faults.clear()
        home.pull(NAME, **trust)
