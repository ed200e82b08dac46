"""A server that speaks the hub's API, with faults on request: the repository's answers, its listing in pages, files of git
served by itself and large ones by another host, as the hub does. `huggingface_hub` is its judge (test_hub.py)."""

import contextlib
import hashlib
import json
import re
import ssl
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = (".safetensors", ".bin", ".gguf")  # what lies in large storage
COMMIT = "1234567890abcdef1234567890abcdef12345678"


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repository:
    """Files of one commit; `revisions` are the names that it has."""

    def __init__(self, files, commit=COMMIT, revisions=("main",)):
        self.files = dict(files)
        self.commit = commit
        self.revisions = {*revisions, commit}
        self.gated = False
        self.private = False
        self.renamed_to = None
        self.listing_extra = []  # entries as they are, for listings that lie
        self.listed_size = {}  # path: another size than it has
        self.listed_hash = {}
        self.hashes = {}

    def is_large(self, path):
        return path.endswith(LARGE)

    def entry(self, path):
        data = self.files[path]
        size = self.listed_size.get(path, len(data))
        entry = {"type": "file", "path": path, "size": size, "oid": self.etag(path)}
        if self.is_large(path):
            entry["lfs"] = {"oid": self.etag(path), "size": size, "pointerSize": 134}
            entry["oid"] = git_hash(b"pointer of " + path.encode())
        return entry

    def etag(self, path):
        if path not in self.hashes:  # once: large files take a while
            data = self.files[path]
            self.hashes[path] = hashlib.sha256(data).hexdigest() if self.is_large(path) else git_hash(data)
        return self.listed_hash.get(path, self.hashes[path])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    @property
    def hub(self):
        return self.server.hub

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        self.hub.seen.append({"host": self.server.host_name, "path": url.path, "token": self.headers.get("Authorization"),
                              "range": self.headers.get("Range"), "method": self.command})
        for fault in self.hub.faults:
            if fault.matches(self, url.path):
                if fault.apply(self):
                    return
        path = urllib.parse.unquote(url.path)
        if self.server.host_name == "storage":
            return self.send_file(self.hub.stored[path.lstrip("/")])
        if match := re.fullmatch(r"/api/models/(.+?)/revision/(.+)", path):
            return self.answer_repository(match[1], match[2])
        if match := re.fullmatch(r"/api/models/(.+?)/tree/([^/]+)", path):
            return self.answer_listing(match[1], match[2], urllib.parse.parse_qs(url.query))
        if match := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            return self.answer_file(match[1], match[2], match[3])
        self.refuse(404, "RepoNotFound")

    def refuse(self, status, code=None, message=None, **headers):
        fields = {"X-Error-Code": code, "X-Error-Message": message, **headers}
        self.send_bytes(b"{}", status, {k: v for k, v in fields.items() if v is not None})

    def send_bytes(self, data, status=200, headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def repository(self, name, revision):
        """The repository, or None when it is refused."""
        repository = self.hub.repositories.get(name)
        is_known = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if self.headers.get("Authorization") and not is_known:
            self.refuse(401, None, "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and not is_known):
            self.refuse(404 if is_known else 401, "RepoNotFound")
        elif repository.renamed_to:
            self.refuse(307, Location=self.path.replace(name, repository.renamed_to, 1))
        elif repository.gated and not (is_known and repository.gated == "granted"):
            self.refuse(403 if is_known else 401, "GatedRepo")
        elif revision not in repository.revisions:
            self.refuse(404, "RevisionNotFound")
        else:
            return repository
        return None

    def answer_repository(self, name, revision):
        if repository := self.repository(name, revision):
            body = {"id": name, "modelId": name, "sha": repository.commit, "private": False, "gated": False,
                    "siblings": [{"rfilename": path} for path in repository.files]}
            self.send_bytes(json.dumps(body).encode(), headers={"Content-Type": "application/json"})

    def answer_listing(self, name, revision, query):
        repository = self.repository(name, revision)
        if repository is None:
            return
        entries = [repository.entry(path) for path in sorted(repository.files)] + repository.listing_extra
        folders = sorted({path.rsplit("/", 1)[0] for path in repository.files if "/" in path})
        entries += [{"type": "directory", "path": folder, "oid": "0" * 40, "size": 0} for folder in folders]
        first = int(query.get("cursor", ["0"])[0])
        page = entries[first:first + self.hub.page_size]
        headers = {"Content-Type": "application/json"}
        if first + len(page) < len(entries):
            link = f"{self.hub.listing_url}/api/models/{name}/tree/{revision}?recursive=true&cursor={first + len(page)}"
            headers["Link"] = f'<{link}>; rel="next"'
        self.send_bytes(json.dumps(page).encode(), headers=headers)

    def answer_file(self, name, revision, path):
        repository = self.repository(name, revision)
        if repository is None:
            return
        if path not in repository.files:
            return self.refuse(404, "EntryNotFound")
        etag = repository.etag(path)
        headers = {"X-Repo-Commit": repository.commit, "X-Linked-Etag": f'"{etag}"',
                   "X-Linked-Size": str(len(repository.files[path]))}
        if repository.is_large(path):
            self.hub.stored[etag] = repository.files[path]
            location = f"{self.hub.storage_url}/{etag}?signature=x"
            return self.send_bytes(b"see there", 302, {**headers, "Location": location})
        self.send_file(repository.files[path], {**headers, "ETag": f'"{etag}"'})

    def send_file(self, data, headers=()):
        fields = dict(headers)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked is None or self.hub.without_ranges:
            return self.send_body(data, 200, fields)
        first, last = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
        if first > last:
            return self.refuse(416)
        fields["Content-Range"] = f"bytes {first}-{last}/{len(data) + self.hub.total_lie}"
        self.send_body(data[first:last + 1], 206, fields)

    def send_body(self, data, status, headers):
        """The body, of which a fault may have asked for a part alone, or slowly."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = getattr(self, "cut_after", None)
        delay = getattr(self, "delay_s", 0)
        end = len(data) if cut is None else min(cut, len(data))
        for at in range(0, end, 1 << 20):
            self.wfile.write(data[at:min(at + (1 << 20), end)])
            time.sleep(delay)
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True
            self.cut_after = None


class Fault:
    """What happens to the next `times` requests whose path (of a host) matches."""

    def __init__(self, pattern, times=1, host=None, status=None, headers=None, cut_after=None, delay_s=0):
        self.pattern, self.times, self.host = re.compile(pattern), times, host
        self.status, self.headers, self.cut_after, self.delay_s = status, headers or {}, cut_after, delay_s
        self.lock = threading.Lock()

    def matches(self, handler, path):
        if self.host not in (None, handler.server.host_name) or not self.pattern.search(path):
            return False
        with self.lock:
            self.times -= 1
            return self.times >= 0

    def apply(self, handler):
        """Whether the request is answered with it."""
        handler.cut_after, handler.delay_s = self.cut_after, self.delay_s
        if self.status is None:
            return False
        handler.send_bytes(b"fault", self.status, self.headers)
        return True


class Host(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub, name, context=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub, self.host_name = hub, name
        self.scheme = "http" if context is None else "https"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that went

    @property
    def url(self):
        name = "127.0.0.1" if self.scheme == "http" else "localhost"
        return f"{self.scheme}://{name}:{self.server_address[1]}"


class FakeHub:
    """The hub and its storage, two hosts; `seen` has every request."""

    def __init__(self, context=None):
        self.repositories, self.stored, self.seen, self.faults = {}, {}, [], []
        self.token = "hf_right"
        self.page_size = 3
        self.without_ranges = False
        self.total_lie = 0
        self.hosts = [Host(self, "hub", context), Host(self, "storage", context)]
        self.url = self.hosts[0].url
        self.storage_url = self.hosts[1].url
        self.listing_url = self.url  # where its pages but the first are

    def add(self, name, files, **options):
        self.repositories[name] = Repository(files, **options)
        return self.repositories[name]

    def fault(self, pattern, **options):
        self.faults.append(Fault(pattern, **options))

    def requests(self, pattern, host=None):
        return [seen for seen in self.seen if re.search(pattern, seen["path"]) and host in (None, seen["host"])]

    def close(self):
        for host in self.hosts:
            host.shutdown()
            host.server_close()


@contextlib.contextmanager
def fake_hub(certificate=None):
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    hub = FakeHub(context)
    try:
        yield hub
    finally:
        hub.close()
