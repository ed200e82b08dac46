"""LoRA adapters with engines in processes of their own: what a process is told is what the front read, however the files change,
and a process that takes the place of another has it again."""

import concurrent.futures
import os
import pathlib
import shutil
import signal
import threading

import pytest
from conftest import PACED, PATIENCE_S, serving, wait_for
from test_adapters import ADAPTERS, FLAGS, GOLDEN, ask, load, unload
from test_engine_process import APART, engines_of, events, health

PROMPT = GOLDEN["tone"][0]["prompt"]


def kill_engine(server):
    """Kills the engine's process; another one answers when this returns."""
    (before,) = engines_of(server)
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: engines_of(server) not in ([], [before]) and health(server).status_code == 200, "another is there")


def copy(name, to):
    return pathlib.Path(shutil.copytree(ADAPTERS / name, to, dirs_exist_ok=True))


def tokens_of(name):
    return GOLDEN[name][0]["tokens"]


def asked(server, adapter):
    return ask(server, PROMPT, adapter)[0]


@pytest.mark.parametrize("flags", [(), ("--data-parallel-size", "2")])
def test_files_may_change_when_they_are_read(tmp_path, flags):
    """Of a module and of one that was loaded over HTTP: gone before any request names them."""
    module, loaded = copy("tone", tmp_path / "module"), copy("mood", tmp_path / "loaded")
    with serving(*APART, *flags, *FLAGS[:-1], f"tone={module}", "--lora-root", str(tmp_path)) as server:
        assert load(server, "mood", loaded).status_code == 200
        shutil.rmtree(module)
        copy("tone", loaded)
        for _ in range(3):
            assert asked(server, "tone") == tokens_of("tone")
            assert asked(server, "mood") == tokens_of("mood")
        if flags:
            return
        kill_engine(server)
        assert asked(server, "mood") == tokens_of("mood")
        assert asked(server, "tone") == tokens_of("tone")
        assert unload(server, "mood").status_code == 200
        kill_engine(server)
        assert asked(server, "tone") == tokens_of("tone")
        assert server.metric("rudder:engine_process_crashes_total") == 2, "by kills alone"


def test_dora_outlives_an_engine(tmp_path):
    folder = copy("voice", tmp_path / "voice")
    with serving(*APART, *FLAGS, "--lora-root", str(tmp_path)) as server:
        assert load(server, "voice", folder).status_code == 200
        shutil.rmtree(folder)
        kill_engine(server)
        assert asked(server, "voice") == tokens_of("voice")


def test_a_request_keeps_its_version_in_the_next_process(tmp_path):
    """Its name gets other content while it runs, or waits; then its process ends, and the next one serves it again."""
    folder = copy("tone", tmp_path / "voice")
    with serving(*APART, *PACED, *FLAGS, "--max-num-seqs", "2", "--lora-root", str(tmp_path)) as server, \
            concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert load(server, "voice", folder).status_code == 200
        started = threading.Event()
        stream = pool.submit(events, server, started, prompt=PROMPT, model="voice", max_tokens=600)
        assert started.wait(PATIENCE_S)
        old = [pool.submit(asked, server, "voice") for _ in range(2)]
        wait_for(lambda: server.metric("rudder:num_requests_running") + server.metric("rudder:num_requests_waiting") == 3, "all are there")
        copy("mood", folder)
        assert load(server, "voice", folder, load_inplace=True).status_code == 200
        kill_engine(server)
        assert stream.result(PATIENCE_S)[1]["code"] == "unavailable"
        assert [each.result(PATIENCE_S) for each in old] == [tokens_of("tone")] * 2
        assert asked(server, "voice") == tokens_of("mood")
