"""`rudder doctor`: what would make a start fail, told before."""

import os
import socket

import pytest

from conftest import DEMO, run_rudder
from hub_home import NAME, home  # noqa: F401


def test_doctor_says_that_a_start_works():
    done = run_rudder("doctor", "--port", "0", "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    for subject in ("cpu", "memory", "descriptors", "driver", "port", "cache", "libcurl", "hub", "model"):
        assert any(line.split()[1] == subject for line in done.stdout.splitlines() if len(line.split()) > 1), subject
    assert "FAILS" not in done.stdout and "would work" in done.stdout


def test_doctor_names_what_makes_a_start_fail(tmp_path):
    (tmp_path / "empty").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cases = [(("--port", port), "port", "in use"), (("--host", "no.such.host.invalid", "--port", 0), "port", "no address"),
                 ((tmp_path / "empty", "--port", 0), "model", "model.safetensors"),
                 (("/no/such/folder", "--port", 0), "model", "/no/such/folder"),
                 (("org/name:Q4_K_M", "--port", 0), "model", "GGUF"),
                 ((DEMO, "--max-model-len", 1 << 30, "--port", 0), "model", "max-model-len"),
                 (("--ssl-certfile", tmp_path / "none", "--ssl-keyfile", DEMO / "config.json", "--port", 0), "tls", "no file")]
        if not os.path.exists("/dev/nvidiactl"):
            cases.append((("--device", "cuda", "--port", 0), "driver", "no NVIDIA driver"))
        for flags, subject, word in cases:
            done = run_rudder("doctor", *flags)
            failing = [line for line in done.stdout.splitlines() if line.startswith("FAILS")]
            assert done.returncode == 1 and any(line.split()[1] == subject and word in line for line in failing), (
                flags, done.stdout, done.stderr)
            assert "would fail" in done.stdout


def test_doctor_fetches_nothing(home):  # noqa: F811
    done = home.run("doctor", NAME, "--port", "0")
    assert done.returncode == 0 and "a start fetches it first" in done.stdout and not home.hub.seen
    offline = home.run("doctor", NAME, "--port", "0", HF_HUB_OFFLINE="1")
    assert offline.returncode == 1 and "HF_HUB_OFFLINE" in offline.stdout
    home.pull(NAME)
    home.hub.seen.clear()
    done = home.run("doctor", NAME, "--port", "0", HF_HUB_OFFLINE="1")
    assert done.returncode == 0 and f"{NAME}: " in done.stdout and not home.hub.seen


@pytest.mark.parametrize("variable", [{"HF_ENDPOINT": "file:///x"}, {"HF_TOKEN": "a b"}])
def test_a_wrong_variable_is_a_note(home, variable):  # noqa: F811
    done = home.run("doctor", "--port", "0", **variable)
    assert done.returncode == 0 and next(iter(variable)) in done.stdout
