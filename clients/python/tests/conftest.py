"""A server of a few scripted answers on a real socket, for tests of the client alone."""

import http.server
import json
import threading

import pytest

from rudder_client import Rudder


class ScriptedServer:
    """Answers each request by `answer(method, path, body) -> (status, document, headers)`; keeps what was asked."""

    def __init__(self):
        self.requests = []
        self.answer = lambda method, path, body: (200, {}, {})
        scripted = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def reply(self):
                size = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                scripted.requests.append((self.command, self.path, body, self.headers["authorization"]))
                status, document, headers = scripted.answer(self.command, self.path, body)
                raw = json.dumps(document).encode()
                self.send_response(status)
                for name, value in {"content-type": "application/json", "content-length": len(raw), **headers}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_DELETE = reply

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def client(self, **options):
        return Rudder(self.url, **{"model": "tiny", "max_retries": 0, **options})

    def stop(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def scripted():
    server = ScriptedServer()
    yield server
    server.stop()
