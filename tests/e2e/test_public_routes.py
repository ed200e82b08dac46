"""What anybody who reaches the port may ask for without a key costs next to nothing, whatever the server holds."""

import socket
import urllib.parse

import httpx2
import pytest

from conftest import is_instrumented, serving

MOST_MS = 0.2 * (20 if is_instrumented() else 1)  # of processor time, the system's part included
REQUESTS = 300
ATTEMPTS = 4  # beside other work a core computes less in a second

# Public routes, the files of the pages, and what is refused: without a key, at an unknown path, by a wrong method.
ASKED = [("GET", path) for path in ("/", "/docs", "/face/main.js", "/face/face.css", "/face/docs.js", "/health", "/livez",
                                    "/readyz", "/ping", "/version", "/openapi.json", "/nothing", "/v1/nothing", "/v1/models",
                                    "/metrics", "/server_info", "/v1/steering", "/v1/chat/completions", "/v1/audio/speech")]
ASKED += [("HEAD", "/openapi.json"), ("OPTIONS", "/v1/chat/completions"), ("POST", "/v1/chat/completions"),
          ("POST", "/v1/steering/set"), ("DELETE", "/v1/responses/resp_1"), ("PUT", "/health"), ("POST", "/ping")]


@pytest.fixture(scope="module")
def guarded():
    with serving("--api-key", "a-key", "--enable-steering", "--capture-memory-mb", "8", "--disable-access-log") as running:
        yield running


def read_answer(file):
    """The status of one answer, whose body is read too."""
    status, length = int(file.readline().split()[1]), 0
    while (line := file.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    return status, length


def cost_ms(server, method, path):
    """Milliseconds of the server's processor time that one request takes."""
    target = urllib.parse.urlparse(server.url)
    body = b""  # a refused request whose body is not read ends its connection
    request = (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
               f"Content-Length: {len(body)}\r\n\r\n").encode() + body
    with socket.create_connection((target.hostname, target.port)) as connection, connection.makefile("rb") as file:
        def ask():
            connection.sendall(request)
            _, length = read_answer(file)
            if method != "HEAD":
                file.read(length)

        for _ in range(10):
            ask()
        before = server.processor_seconds()
        for _ in range(REQUESTS):
            ask()
        return (server.processor_seconds() - before) * 1000 / REQUESTS


@pytest.mark.parametrize("method, path", ASKED, ids=lambda value: str(value))
def test_a_request_costs_next_to_nothing(guarded, method, path):
    costs = []
    while len(costs) < ATTEMPTS and min(costs, default=MOST_MS + 1) > MOST_MS:
        costs.append(cost_ms(guarded, method, path))
    assert min(costs) <= MOST_MS, costs


def test_every_public_route_is_asked_for(guarded):
    document = httpx2.get(guarded.url + "/openapi.json").json()
    public = {(method.upper(), path) for path, methods in document["paths"].items()
              for method, operation in methods.items() if "security" not in operation}
    asked = {(method, "/face/{id}" if path.startswith("/face/") else path) for method, path in ASKED}
    assert public and public <= asked


def test_the_document_is_the_same_each_time(guarded):
    first, second = (httpx2.get(guarded.url + "/openapi.json").content for _ in range(2))
    assert first == second and len(first) > 10_000
