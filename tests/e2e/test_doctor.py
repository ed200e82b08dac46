"""`rudder doctor`: what would make a start fail, told before."""

import os
import shutil
import socket
import subprocess

import pytest

from conftest import BINARY, DEMO, is_instrumented, run_rudder
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


@pytest.mark.parametrize("cache", ["file", "link to nothing", "below a file"])
def test_a_cache_that_cannot_be_written_fails_where_a_start_fetches(home, cache):  # noqa: F811
    home.cache.parent.mkdir(parents=True)
    if cache == "link to nothing":
        home.cache.symlink_to(home.cache.parent / "gone")
    else:
        home.cache.write_text("")
    variables = {"HF_HUB_CACHE": str(home.cache / "hub")} if cache == "below a file" else {}
    done = home.run("doctor", NAME, "--port", "0", **variables)
    failing = [line for line in done.stdout.splitlines() if line.startswith("FAILS")]
    assert done.returncode == 1 and len(failing) == 1 and "is not a folder" in failing[0], done.stdout
    assert home.refused(NAME, **variables)
    assert home.run("doctor", "--port", "0", **variables).returncode == 0  # the embedded model is not fetched


@pytest.mark.parametrize("variable", [{"HF_ENDPOINT": "file:///x"}, {"HF_TOKEN": "a b"}])
def test_a_wrong_variable_is_a_note(home, variable):  # noqa: F811
    done = home.run("doctor", "--port", "0", **variable)
    assert done.returncode == 0 and next(iter(variable)) in done.stdout


# A driver of GPUs that are not there: what it answers stands in the environment.
DRIVER = r"""
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
static const char* said(const char* name, const char* otherwise) { const char* v = getenv(name); return v ? v : otherwise; }
int cuInit(unsigned flags) { return atoi(said("FAKE_INIT", "0")); }
int cuDriverGetVersion(int* version) { *version = atoi(said("FAKE_VERSION", "12080")); return 0; }
int cuDeviceGetCount(int* count) { *count = atoi(said("FAKE_COUNT", "1")); return atoi(said("FAKE_COUNT_ERROR", "0")); }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal == atoi(said("FAKE_SILENT", "-1")) ? 999 : 0; }
int cuDeviceGetName(char* name, int size, int device) { strncpy(name, said("FAKE_NAME", "NVIDIA H200"), size); return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = (size_t)140 << 30; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? atoi(said("FAKE_MAJOR", "9")) : 0;
  return 0;
}
#ifndef WITHOUT_NAMES
int cuGetErrorName(int error, const char** text) {
  *text = error == 100 ? "CUDA_ERROR_NO_DEVICE" : error == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : NULL;
  return 0;
}
#endif
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A function that runs `rudder doctor` beside that driver; gives its lines by subject, and its status."""
    folder = tmp_path_factory.mktemp("driver")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / "driver.c").write_text(DRIVER)

    def build(*flags, name="whole"):
        (folder / name).mkdir()
        subprocess.run([compiler, "-shared", "-fPIC", "-w", *flags, "-o", folder / name / "libcuda.so.1", folder / "driver.c"], check=True)

    build()
    build("-DWITHOUT_NAMES", name="older")
    (folder / "broken").mkdir()
    (folder / "broken" / "libcuda.so.1").write_text("no library\n")

    def doctor(*flags, library="whole", **said):
        environment = {f"FAKE_{key.upper()}": str(value) for key, value in said.items()}
        done = run_rudder("doctor", "--port", "0", *flags, env=os.environ | environment | {"LD_LIBRARY_PATH": str(folder / library)})
        lines = [line.split(maxsplit=2) for line in done.stdout.split("\n\n")[0].splitlines()]
        return {subject: [(verdict, text) for verdict, name, text in lines if name == subject]
                for subject in {line[1] for line in lines}}, done.returncode
    return doctor


def has_cuda():
    return "built without CUDA" not in run_rudder("doctor", "--port", "0", "--device", "cpu").stdout


@pytest.mark.skipif(is_instrumented(), reason="loads a library that is not instrumented")
def test_gpus_are_told_as_the_driver_says(driver):
    found, status = driver("--device", "cpu")
    assert status == 0
    assert found["driver"] == [("ok", "NVIDIA, for CUDA up to 12.8")]
    assert found["gpu"] == [("ok", "0: NVIDIA H200, 140 GiB, compute capability 9.0")]
    found, status = driver("--device", "cpu", count=3, silent=1)
    assert status == 0 and [verdict for verdict, _ in found["gpu"]] == ["ok", "note", "ok"]
    assert found["gpu"][1][1] == "GPU 1 does not say what it is"
    found, status = driver("--device", "cpu", major=8, name="NVIDIA A100")
    assert status == 0 and found["gpu"] == [("note", "0: NVIDIA A100, 140 GiB, compute capability 8.0; kernels are for Hopper (9.0) alone")]
    for said in ({"count": 0}, {"count": 5, "count_error": 3}):
        found, status = driver("--device", "cpu", **said)
        assert status == 0 and found["gpu"] == [("note", "none is visible (CUDA_VISIBLE_DEVICES?)")]


@pytest.mark.skipif(is_instrumented(), reason="loads a library that is not instrumented")
def test_drivers_that_do_not_start_are_told_with_their_reason(driver):
    absent = not os.path.exists("/dev/nvidiactl")
    for code, name in ((803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), (100, "CUDA_ERROR_NO_DEVICE"), (1, "unknown error")):
        found, status = driver("--device", "cpu", init=code)
        (verdict, text), = found["driver"]
        assert status == 0 and verdict == ("ok" if code == 100 else "note")
        assert text.startswith(f"the NVIDIA driver does not start: {name}") and ("/dev/nvidiactl is missing" in text) == absent
        assert "gpu" not in found
    (_, text), = driver("--device", "cpu", library="older")[0]["driver"]
    assert text == "libcuda.so.1 is no NVIDIA driver: no cuGetErrorName"
    (_, text), = driver("--device", "cpu", library="broken")[0]["driver"]
    assert text.startswith("the NVIDIA driver cannot be loaded") and "libcuda.so.1" in text


@pytest.mark.skipif(is_instrumented(), reason="loads a library that is not instrumented")
def test_a_gpu_that_is_asked_for_and_does_not_do_fails(driver):
    if has_cuda():
        pytest.skip("a binary with CUDA would ask more of the driver")
    for said in ({"major": 8}, {"count": 0}, {"init": 803}, {"count": 2, "silent": 0}):
        found, status = driver("--device", "cuda", **said)
        assert status == 1 and "FAILS" in [verdict for verdict, _ in found.get("gpu", found["driver"])], (said, found)
        assert found["backend"][0][0] == "FAILS"
    found, status = driver("--device", "cuda")
    assert status == 1 and found["gpu"][0][0] == "ok" and "--device cuda asks for it" in found["backend"][0][1]


@pytest.mark.skipif(is_instrumented(), reason="sanitizers reserve terabytes of addresses")
@pytest.mark.parametrize("limit, subject", [("-v 400000", "addresses"), ("-n 9", "descriptors"), ("-u 4", "threads")])
def test_limits_without_room_for_a_start_fail(limit, subject):
    """As the start itself does."""
    user = []
    if subject == "threads" and os.geteuid() == 0:  # whom this limit does not bind
        if not shutil.which("setpriv"):
            pytest.skip("nobody else to be")
        user = ["setpriv", "--reuid", "61234", "--regid", "61234", "--clear-groups"]

    def run(command):
        command = f"export HOME=/tmp; ulimit {limit}; exec {BINARY} {command} --port 0 --device cpu"
        return subprocess.run([*user, "bash", "-c", command], capture_output=True, text=True, timeout=60)

    if "Permission denied" in run("doctor").stderr:
        pytest.skip("others may not read the binary")
    done = run("doctor")
    failing = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILS")]
    assert done.returncode == 1 and failing == [subject], done.stdout + done.stderr
    assert run("serve").returncode in (1, 2)
