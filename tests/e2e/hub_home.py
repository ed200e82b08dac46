"""What the tests of models by name share: a user's home with a cache of its own, beside a hub."""

import hashlib
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import BINARY, DEMO
from fake_hub import fake_hub

NAME = "org/demo"
SERVED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


def demo_files():
    files = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.name in SERVED}
    return {**files, "README.md": b"# a card", "pytorch_model.bin": b"pickle", "modeling_demo.py": b"import os",
            "additional_chat_templates/tools.jinja": b"{{ messages }}", "original/params.json": b"{}"}


BIG = 72 << 20  # two ranges


def big_files(size=BIG):
    block = hashlib.sha256(b"seed").digest() * 32768  # a MiB
    data = b"".join(block[i:] + block[:i] for i in range(size >> 20))
    return {**demo_files(), "model.safetensors": data}


class Home:
    """A hub, a cache of its own and the environment of a user of both."""

    def __init__(self, hub, folder):
        self.hub, self.cache = hub, folder / "home" / "hub"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        self.environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_XET": "1",
                             "HF_HUB_DOWNLOAD_TIMEOUT": "60",  # of a machine that does much else
                             "NO_PROXY": "*", "HOME": str(folder)}

    def start(self, *arguments, **variables):
        return subprocess.Popen([str(BINARY), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env={**self.environment, **variables})

    def run(self, *arguments, timeout=120, **variables):
        process = self.start(*arguments, **variables)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def pull(self, *arguments, **variables):
        """The folder that it prints."""
        done = self.run("pull", *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return pathlib.Path(done.stdout.strip())

    def refused(self, *arguments, **variables):
        """What it says."""
        done = self.run("pull", *arguments, **variables)
        assert done.returncode == 1 and not done.stdout, done.stderr
        return done.stderr

    def python(self, code, **variables):
        """What this prints where huggingface_hub reads the same environment."""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                              env={**self.environment, **variables})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def repository(self):
        return self.cache / "models--org--demo"

    def snapshots(self):
        folder = self.repository / "snapshots"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def home(tmp_path):
    with fake_hub() as hub:
        hub.add(NAME, demo_files())
        yield Home(hub, tmp_path)


@pytest.fixture
def certificate(tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert], check=True,
                   capture_output=True)
    return cert, key
