"""Models by name: siblings of what test_hub.py and test_hub_faults.py draw, over GGUF files, caches that were harmed, limits of
the process, and words of a hostile hub."""

import http.client
import json
import random
import resource
import select
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import BINARY
from fake_hub import COMMIT, Fault, Host, fake_hub
from hub_home import NAME, SERVED, Home, big_files, certificate, demo_files, home  # noqa: F401

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


def test_a_dynamic_quantisation_is_taken_for_another_only_where_that_is_known(home):  # noqa: F811
    home.hub.add(GGUF, {"x-Q4_K_XL.gguf": b"GGUF four", "x-UD-Q4_K_XL.gguf": b"GGUF dynamic", "x-UD-Q2_K_XL.gguf": b"GGUF two"})
    fetch_theirs(home, GGUF, "x-UD-Q4_K_XL.gguf")
    offline = {"HF_HUB_OFFLINE": "1"}
    assert "no Q4_K_XL" in home.refused(f"{GGUF}:Q4_K_XL", **offline)
    assert home.pull(f"{GGUF}:UD-Q4_K_XL", **offline).name == "x-UD-Q4_K_XL.gguf"
    assert home.pull(f"{GGUF}:Q4_K_XL").name == "x-Q4_K_XL.gguf"
    assert home.pull(f"{GGUF}:Q2_K_XL").name == "x-UD-Q2_K_XL.gguf"  # nothing else can be meant
    assert home.pull(f"{GGUF}:Q2_K_XL", **offline).name == "x-UD-Q2_K_XL.gguf"
    assert home.pull(f"{GGUF}:Q4_K_XL", **offline).name == "x-Q4_K_XL.gguf"
    doctor = home.run("doctor", f"{GGUF}:Q2_K_XL", "--port", "0", **offline)
    assert "not in the cache" not in doctor.stdout, doctor.stdout


# Where a listing goes on, and proxies.

def test_a_listing_goes_on_at_another_host_without_the_token(home):  # noqa: F811
    """As a mirror's does, which hands on the hub's own addresses; huggingface_hub follows it too."""
    pages = home.hub.hosts[1]
    pages.host_name = "pages"  # another origin that answers as the hub
    home.hub.hosts.append(Host(home.hub, "storage"))
    home.hub.storage_url, home.hub.listing_url = home.hub.hosts[2].url, pages.url
    path = home.pull(NAME, HF_TOKEN=home.hub.token)
    assert {file.name for file in path.iterdir() if file.is_file()} == set(SERVED)
    asked = home.hub.requests("/tree/", "pages")
    assert asked and all(request["token"] is None for request in asked)
    assert all(request["token"] for request in home.hub.requests("/tree/", "hub"))


def test_a_listing_does_not_leave_the_web_nor_go_round(home):  # noqa: F811
    for link, word in [("file:///etc/passwd", "only http and https"), ("gopher://127.0.0.1/x", "only http and https")]:
        home.hub.listing_url = link
        assert word in home.refused(NAME)


class Proxy(BaseHTTPRequestHandler):
    """Of both kinds: whole addresses, and tunnels."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        if self.server.refuses:
            return self.send_answer(self.server.refuses, [], b"")
        url = urllib.parse.urlsplit(self.path)
        to = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        to.request("GET", f"{url.path}?{url.query}", headers={k: v for k, v in self.headers.items() if k != "Proxy-Connection"})
        answer = to.getresponse()
        self.send_answer(answer.status, answer.getheaders(), answer.read())

    def send_answer(self, status, headers, body):
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_CONNECT(self):
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        if self.server.refuses:
            return self.send_answer(self.server.refuses, [], b"")
        host, port = self.path.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=60) as to:
            self.wfile.write(b"HTTP/1.1 200 tunnel\r\nX-Error-Message: of the proxy\r\n\r\n")
            while True:
                readable, _, _ = select.select([self.connection, to], [], [], 60)
                for end in readable:
                    data = end.recv(1 << 16)
                    if not data:
                        self.close_connection = True
                        return
                    (to if end is self.connection else self.connection).sendall(data)


@pytest.fixture
def proxy():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads, server.seen, server.refuses = True, [], None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"])
def test_a_proxy_is_asked_for_addresses_without_tls(home, proxy, variable):  # noqa: F811
    path = home.pull(NAME, NO_PROXY="", **{variable: proxy.url})
    assert (path / "model.safetensors").read_bytes() == demo_files()["model.safetensors"]
    assert len(proxy.seen) >= len(home.hub.seen) > 3


@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
def test_no_proxy_is_asked_for_hosts_that_have_none(home, proxy, variable):  # noqa: F811
    others = {"NO_PROXY": "", "HTTP_PROXY": proxy.url, "http_proxy": proxy.url}
    home.pull(NAME, **{**others, variable: "example.org,127.0.0.1"})
    assert not proxy.seen


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "ALL_PROXY"])
def test_tls_goes_through_a_tunnel_and_the_token_is_not_shown_there(tmp_path, certificate, proxy, variable):  # noqa: F811
    with fake_hub(certificate) as hub:
        hub.add(NAME, demo_files())
        home = Home(hub, tmp_path)  # noqa: F811
        home.pull(NAME, SSL_CERT_FILE=str(certificate[0]), HF_TOKEN=hub.token, NO_PROXY="", **{variable: proxy.url})
        assert {method for method, _, _ in proxy.seen} == {"CONNECT"}
        assert not any("Authorization" in headers for _, _, headers in proxy.seen)


def test_a_proxy_that_refuses_is_told_as_one(home, tmp_path, certificate, proxy):  # noqa: F811
    proxy.refuses = 407
    said = home.refused(NAME, NO_PROXY="", HTTP_PROXY=proxy.url, HF_TOKEN=home.hub.token)
    assert "proxy" in said and "407" in said, said
    with fake_hub(certificate) as hub:
        hub.add(NAME, demo_files())
        said = Home(hub, tmp_path).refused(NAME, SSL_CERT_FILE=str(certificate[0]), NO_PROXY="", HTTPS_PROXY=proxy.url)
        assert "407" in said and "cannot be reached" in said, said


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
