"""The packages of `make package`: what is in them, and that they install, serve and go again without a trace."""

import gzip
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile

import httpx2
import pytest

from conftest import BINARY, ROOT, is_instrumented

pytestmark = [pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="packages are made with dpkg-deb"),
              pytest.mark.skipif(is_instrumented(), reason="what is shipped has no sanitizer")]
DPKG_FLAGS = ("--force-not-root", "--force-depends", "--force-script-chrootless", "--log=/dev/null")


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    out = tmp_path_factory.mktemp("packages")
    run(sys.executable, ROOT / "tools" / "package.py", "--binary", BINARY, "--out", out, "--compression", "none")
    return out


@pytest.fixture(scope="module")
def unpacked(packages):
    deb = next(packages.glob("*.deb"))
    folder = packages / "unpacked"
    run("dpkg-deb", "-R", deb, folder)
    return folder


def test_checksums_and_names(packages):
    names = sorted(path.name for path in packages.iterdir() if path.is_file())
    assert len(names) == 3 and names[0] == "SHA256SUMS"
    assert re.fullmatch(r"rudder-[\d.]+-linux-\w+\.tar\.gz", names[1]) and re.fullmatch(r"rudder_[\d.]+_\w+\.deb", names[2])
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=packages)


def test_contents(unpacked):
    files = sorted(str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file())
    assert files == sorted([
        "DEBIAN/conffiles", "DEBIAN/control", "DEBIAN/postinst", "DEBIAN/postrm", "DEBIAN/prerm", "etc/rudder/rudder.env",
        "usr/bin/rudder", "usr/bin/rudder-bench", "usr/lib/systemd/system/rudder.service", "usr/share/bash-completion/completions/rudder",
        "usr/share/doc/rudder/README.md", "usr/share/doc/rudder/copyright",
        "usr/share/fish/vendor_completions.d/rudder.fish", "usr/share/man/man1/rudder.1.gz",
        "usr/share/zsh/vendor-completions/_rudder"])
    control = (unpacked / "DEBIAN" / "control").read_text()
    assert re.search(r"^Depends: libc6 \(>= 2\.\d+\)$", control, re.M) and "libcurl4" in control
    assert "ExecStart=/usr/bin/rudder serve" in (unpacked / "usr/lib/systemd/system/rudder.service").read_text()


def test_licences_of_all_that_the_binary_has(unpacked):
    text = (unpacked / "usr/share/doc/rudder/copyright").read_text()
    for library in ("Apache License", "libfmt-dev", "libspdlog-dev", "libcli11-dev", "libpcre2-dev", "libutf8proc-dev",
                    "zlib1g-dev", "libssl-dev", "libexpected-dev", "libboost", "gcc-"):
        assert library in text, library


def test_the_manual_has_every_command_and_renders(unpacked):
    page = gzip.decompress((unpacked / "usr/share/man/man1/rudder.1.gz").read_bytes()).decode()
    for word in ("serve", "pull", "models", "doctor", "max\\-model\\-len", "HF_TOKEN"):
        assert word in page, word
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=page, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr and "NAME" in done.stdout


def flags_of(*command):
    return set(re.findall(r"^  --(?:\[no-\])?([a-z][a-z0-9-]*)", run(BINARY, *command, "--help"), re.M))


def test_every_flag_of_every_command_is_in_the_manual_and_the_completions(unpacked):
    manual = gzip.decompress((unpacked / "usr/share/man/man1/rudder.1.gz").read_bytes()).decode().replace("\\-", "-")
    chapters = {title.lower(): text for title, text in re.findall(r"^\.SH (.*)\n((?:(?!\.SH ).*\n?)*)", manual, re.M)}
    fish = (unpacked / "usr/share/fish/vendor_completions.d/rudder.fish").read_text()
    zsh = (unpacked / "usr/share/zsh/vendor-completions/_rudder").read_text()
    names = re.findall(r"^ +(?:[A-Z][a-z ]*[a-z] {2,})?([a-z][a-z-]+) {2,}\S", run(BINARY, "--help"), re.M)
    commands = [(name,) for name in names if flags_of(name)]
    for name in set(names) - {command[0] for command in commands}:
        parts = re.findall(r"^  ([a-z][a-z-]+) {2,}", run(BINARY, name, "--help"), re.M)
        assert parts and complete(unpacked, "rudder", name, "") == [*parts, "--help"]
        commands += [(name, part) for part in parts]
    assert len(commands) > 25
    for command in commands:
        flags = flags_of(*command)
        assert flags and not flags - set(re.findall(r"--(?:\[no-\])?([a-z][a-z0-9-]*)", chapters[" ".join(command)])), command
        offered = complete(unpacked, "rudder", *command, *["file"] * (2 - len(command)), "--")
        assert not {f"--{flag}" for flag in flags} - set(offered), command
        assert not {f"__rudder_at {' '.join(command)}' -l {flag}" for flag in flags if f"__rudder_at {' '.join(command)}' -l {flag}" not in fish}
        assert not {flag for flag in flags if f"'--{flag}[" not in zsh}


def complete(unpacked, *words):
    """What bash offers behind these."""
    ask = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _rudder; echo "${COMPREPLY[*]}"'
    return run("bash", "-c", ask, unpacked / "usr/share/bash-completion/completions/rudder", *words).split()


def test_completions(unpacked):
    bash = unpacked / "usr/share/bash-completion/completions/rudder"
    ask = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _rudder; echo "${COMPREPLY[*]}"'
    assert run("bash", "-c", ask, bash, "rudder", "do").split() == ["doctor"]
    assert run("bash", "-c", ask, bash, "rudder", "serve", "--max-model").split() == ["--max-model-len"]
    assert "--no-json" in run("bash", "-c", ask, bash, "rudder", "models", "--no").split()
    for shell, path in (("zsh", "zsh/vendor-completions/_rudder"), ("fish", "fish/vendor_completions.d/rudder.fish")):
        if shutil.which(shell):
            run(shell, "-n", unpacked / "usr/share" / path)


def test_the_tarball_runs_where_it_lies(packages, tmp_path):
    with tarfile.open(next(packages.glob("*.tar.gz"))) as tar:
        tar.extractall(tmp_path, filter="data")
    binary = next(tmp_path.glob("*/bin/rudder"))
    assert run(binary, "--version").startswith("rudder ")
    assert "42" in run(binary, "generate", "--chat", "--prompt", "What is 12 + 30?", "--temperature", "0")


def left_of(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*")
                  if not path.is_dir() and not str(path.relative_to(root)).startswith("var/lib/dpkg"))


def test_it_installs_and_goes_without_a_trace(packages, tmp_path):
    root = tmp_path / "root"
    for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "usr/bin"):
        (root / folder).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    dpkg = ("dpkg", f"--root={root}", *DPKG_FLAGS)
    run(*dpkg, "--install", next(packages.glob("*.deb")))
    assert not run(*dpkg, "--verify", "rudder")
    assert run(root / "usr/bin/rudder", "--version").startswith("rudder ")
    (root / "etc/rudder/rudder.env").write_text("RUDDER_PORT=9000\n")
    run(*dpkg, "--remove", "rudder")
    assert left_of(root) == ["etc/rudder/rudder.env"]  # what a person wrote stays until it is purged
    (root / "var/cache/rudder").mkdir(parents=True)
    (root / "var/cache/rudder/blob").touch()
    run(*dpkg, "--purge", "rudder")
    assert left_of(root) == []


def mirror():
    """Where this machine has its own packages from, and its release."""
    release = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
    code = release.get("VERSION_CODENAME", "").strip('"')
    sources = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages")
    found = [line.split()[0] for line in sources.splitlines() if line.split()[1:] == [code]]
    return code, found[0] if found else ""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("debootstrap") is None or os.geteuid() != 0, reason="needs debootstrap and root")
def test_a_clean_machine_installs_serves_and_removes_it(packages, tmp_path):
    root = tmp_path / "root"
    code, uri = mirror()
    run("debootstrap", "--variant=minbase", code, root, uri, timeout=1200)
    deb = shutil.copy(next(packages.glob("*.deb")), root / "rudder.deb")
    before = set(left_of(root))
    run("chroot", root, "dpkg", "--install", "/rudder.deb")
    pathlib.Path(deb).unlink()
    assert "A start with these flags would work" in run("chroot", root, "rudder", "doctor", "--port", "0")
    server = subprocess.Popen(["chroot", str(root), "rudder", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        line = next(line for line in server.stdout if "Serving" in line)
        url = re.search(r"on (http://[\d.]+:\d+)", line)[1]
        answer = httpx2.post(url + "/v1/chat/completions", timeout=60, json={
            "model": "rudder-demo", "temperature": 0, "messages": [{"role": "user", "content": "What is 12 + 30?"}]})
        assert "42" in answer.json()["choices"][0]["message"]["content"]
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    run("chroot", root, "dpkg", "--purge", "rudder")
    left = {path for path in set(left_of(root)) - before if not path.startswith(("var/log/", "var/cache/", "proc/"))}
    assert left == set()
