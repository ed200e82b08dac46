"""What the system limits: few file descriptors, a standard error that nobody reads, a certificate that changes."""

import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import time

import httpx2
import pytest
from conftest import BINARY

GET = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Process:
    """`rudder serve` with these flags and options of Popen; nobody reads its standard error."""

    def __init__(self, *flags, **options):
        self.process = subprocess.Popen([str(BINARY), "serve", "--port", "0", *flags], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, **options)
        for line in self.process.stdout:
            if match := re.search(r"on (https?://[\d.]+:(\d+))", line):
                self.url, self.port = match[1], int(match[2])
                return
        raise RuntimeError("the server did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0

    def status(self, connection):
        """Of an answer to GET on an open connection; None where it was closed."""
        try:
            connection.sendall(GET)
            answer = connection.recv(4096)
        except ConnectionError:
            return None
        return int(answer[9:12]) if answer else None


def test_with_few_descriptors_every_connection_is_answered_or_told_why():
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    with Process("--disable-access-log", preexec_fn=limit) as server:
        connections = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(600)]
        statuses = [server.status(connection) for connection in connections]
        assert statuses.count(200) > 30 and set(statuses) <= {200, 503, None}, statuses
        newest = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        for connection in connections:
            connection.close()
        deadline = time.monotonic() + 30
        while server.status(newest) != 200 and time.monotonic() < deadline:
            newest = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        assert httpx2.get(server.url + "/health").status_code == 200


def test_a_soft_limit_is_raised():
    def limit():
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2000:
        pytest.skip("the hard limit is too low")
    with Process("--max-connections", "1000", "--max-connections-per-address", "1000", preexec_fn=limit) as server:
        connections = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(800)]
        assert {server.status(connection) for connection in connections} == {200}
        for connection in connections:
            connection.close()


def test_nobody_waits_for_a_reader_of_the_log():
    with Process("--disable-log-stats", "--log-level", "info") as server:
        body = {"prompt": "a", "max_tokens": 1}
        with httpx2.Client() as client:
            for _ in range(2000):  # a line each, three times what the pipe holds
                answer = client.post(server.url + "/v1/completions", json=body, timeout=10)
                assert answer.status_code == 200


def make_certificate(folder, name):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out",
                    folder / "certificate.pem"], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with the openssl command")
def test_the_certificate_is_read_again_on_sighup(tmp_path):
    def subject(port):
        context = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
        with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
            with context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped:
                wrapped.sendall(GET)
                assert wrapped.recv(4096).startswith(b"HTTP/1.1 200")
                return dict(pair[0] for pair in wrapped.getpeercert()["subject"])["commonName"]

    make_certificate(tmp_path, "first")
    with Process("--ssl-certfile", str(tmp_path / "certificate.pem"), "--ssl-keyfile",
                 str(tmp_path / "key.pem")) as server:
        assert server.url.startswith("https://")
        assert subject(server.port) == "first"
        make_certificate(tmp_path, "second")
        server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                assert subject(server.port) == "second"
                break
            except ssl.SSLCertVerificationError:
                time.sleep(0.1)
        assert subject(server.port) == "second"
