"""What can go wrong at the start ends it with a reason, in time."""

import os
import re
import shutil
import subprocess

import pytest

from conftest import BINARY, DEMO, is_instrumented, run_rudder, serving

FILES = {"--config": [], "--ssl-certfile": ["--ssl-keyfile", "KEY"], "--ssl-keyfile": ["--ssl-certfile", "KEY"], "--api-key-file": [],
         "--steering-api-key-file": [], "--chat-template": [], "--steering-module": []}


@pytest.mark.parametrize("flag", FILES)
def test_a_named_pipe_does_not_hang_it(tmp_path, flag):
    pipe, key = tmp_path / "pipe", tmp_path / "key.pem"
    os.mkfifo(pipe)
    key.write_text("no key\n")
    others = [str(key) if word == "KEY" else word for word in FILES[flag]]
    value = f"a={pipe}" if flag == "--steering-module" else str(pipe)
    more = ["--enable-steering"] if flag == "--steering-module" else []
    done = run_rudder("serve", "--port", "0", flag, value, *others, *more, timeout=60)
    assert done.returncode in (1, 2) and "pipe" in done.stderr, done.stderr


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/"])
def test_a_device_or_a_folder_is_no_file_of_flags(path):
    for flag in (["--config", path], [f"--config={path}"]):
        done = run_rudder("serve", "--port", "0", *flag, timeout=60)
        assert done.returncode in (1, 2) and "not a regular file" in done.stderr, done.stderr


@pytest.mark.parametrize("kind", ["pipe", "file", "missing"])
@pytest.mark.parametrize("flag, others", [("--lora-root", ["--enable-lora"]), ("--weights-root", []),
                                          ("--dictionary-root", ["--enable-steering"]),
                                          ("--capture-spill-dir", ["--capture-memory-mb", "4"])])
def test_folders_that_are_looked_into_later_are_there(tmp_path, flag, others, kind):
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "file":
        path.write_text("")
    done = run_rudder("serve", "--port", "0", flag, path, *others, timeout=60)
    assert done.returncode in (1, 2) and str(path) in done.stderr and "no such folder" in done.stderr.replace("there is no", "no such"), done.stderr


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.jinja", "chat_template.json", "generation_config.json",
                                  "config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "dangling"])
def test_what_is_no_file_of_a_model_is_named(tmp_path, file, kind):
    """Files that a model may lack, too: a link of a cache whose file is gone is not a file that is not there."""
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    (model / file).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(model / file)
    elif kind == "folder":
        (model / file).mkdir()
    else:
        (model / file).symlink_to("/dev/zero" if kind == "device" else tmp_path / "gone")
    done = run_rudder("generate", model, "--prompt", "Hello", "--max-tokens", 1, timeout=60)
    assert done.returncode == 1 and file in done.stderr, done.stderr


def test_keys_may_come_through_a_pipe_that_a_shell_opened():
    command = f"exec {BINARY} serve --port 0 --api-key-file <(echo a-key)"
    process = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert any(re.search("on http://", line) for line in process.stdout)
    finally:
        process.terminate()
        process.wait(60)


def mapped_bytes():
    """Of the binary's segments, as the kernel maps them: with the CUDA backend several times what it is without."""
    lines = subprocess.run(["readelf", "-lW", BINARY], capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(int(line.split()[5], 16) for line in lines if line.split()[:1] == ["LOAD"])


@pytest.mark.skipif(is_instrumented(), reason="sanitizers reserve terabytes of addresses")
def test_no_room_for_threads_or_memory_is_told():
    """From too little to begin with up to enough: it starts, or says why it does not, and never aborts."""
    seen = set()
    # What the binary itself does not fit in, the kernel ends before its first instruction.
    least = mapped_bytes() >> 20
    for mib in (16, 32, 64, 120, 180, 240, 360, 500, 800, 1200, 2400, 4800):
        mib += least
        command = f"ulimit -v {mib * 1024}; exec {BINARY} generate --prompt Hello --max-tokens 1 --threads 4"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
        assert done.returncode in (0, 1, 2, 127), (mib, done.returncode, done.stderr)
        assert done.returncode == 0 or done.stderr, mib
        seen.add(done.returncode)
    assert 0 in seen and 1 in seen, seen


@pytest.mark.skipif(is_instrumented(), reason="sanitizers reserve terabytes of addresses")
def test_a_server_without_room_for_its_threads_says_so():
    for mib in (150, 200, 250, 300, 400, 500, 600, 800, 1200, 2000, 3000, 4500, 8000):
        command = f"ulimit -v {mib * 1024}; exec timeout -s TERM 20 {BINARY} serve --port 0 --grammar-threads 8"
        process = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started = any("on http://" in line for line in process.stdout)
        if started:
            process.terminate()
        error = process.communicate(timeout=60)[1]
        assert started or process.returncode in (1, 2, 127), (mib, process.returncode, error)
        assert started or error, mib
        if started:
            return
    pytest.fail("it never started")


def test_a_server_without_room_for_its_descriptors_says_so():
    """From too few to begin with up to enough: what is told names the limit that is to be raised."""
    told = 0
    for count in (4, 5, 6, 7, 8, 9, 16, 32):
        command = f"ulimit -n {count}; exec timeout -s TERM 60 {BINARY} serve --port 0"
        process = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started = any("on http://" in line for line in process.stdout)
        if started:
            process.terminate()
        error = process.communicate(timeout=60)[1]
        if started:
            assert told > 0
            return
        last = error.splitlines()[-1]
        assert process.returncode in (1, 127), (count, process.returncode, error)
        if "Too many open files" in last:
            assert "ulimit -n" in error and "ulimit -v" not in last, (count, error)
            told += 1
    pytest.fail("it never started")


def test_help_fits_a_screen():
    lines = run_rudder("--help").stdout.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    for word in ("Serve", "Steering", "serve", "generate", "bench", "vectors"):
        assert any(word in line for line in lines)


def test_a_long_wait_is_bounded_by_default():
    with serving() as server:
        assert float(server.settings()["max-queue-seconds"]) == 60
