"""HTTP as bytes: sends what it is given, wrong or not, and reads the answer strictly."""

import asyncio
import collections
import dataclasses
import json

LIMIT = 64 << 20  # bytes of one answer


class Malformed(Exception):
    """The answer is not HTTP/1.1."""


@dataclasses.dataclass
class Answer:
    status: int
    fields: dict
    body: bytes

    def json(self):
        return json.loads(self.body)

    @property
    def keeps_alive(self):
        return self.fields.get("connection") != "close"


def request_bytes(method, path, body=None, fields=()):
    """A request that is well-formed as HTTP. `fields` replace those of the same name; None leaves one out."""
    wanted = {"Host": "localhost"}
    if body is not None:
        wanted |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    wanted |= dict(fields)
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in wanted.items() if v is not None)
    return head.encode("latin-1", "surrogateescape") + b"\r\n" + (body or b"")


class Connection:
    """One connection, opened when it is needed and again after it was closed."""

    def __init__(self, port):
        self.port = port
        self.reader = self.writer = None

    async def open(self):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=LIMIT)

    def close(self):
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None

    def half_close(self):
        self.writer.write_eof()

    async def send(self, data):
        await self.open()
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, data, method="POST"):
        """The answer to one request. A kept-alive connection may have been closed meanwhile: then once more."""
        fresh = self.writer is None
        try:
            await self.send(data)
            return await self.receive(method)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            if fresh:
                raise
        await self.send(data)
        return await self.receive(method)

    async def head(self):
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        version, status, _ = (first + "  ").split(" ", 2)
        if version != "HTTP/1.1" or not status.isdigit():
            raise Malformed(first)
        fields = {}
        for line in lines:
            name, colon, value = line.partition(": ")
            if not colon or name in fields:
                raise Malformed(line)
            fields[name] = value
        return int(status), fields

    async def chunk(self):
        """The next chunk of the body, empty after the last."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        if data[-2:] != b"\r\n":
            raise Malformed(repr(data[-20:]))
        return data[:-2]

    async def receive(self, method="POST"):
        status, fields = await self.head()
        while status == 100:  # an invitation to send the body, which has been sent
            status, fields = await self.head()
        body = b""
        if fields.get("transfer-encoding") == "chunked":
            parts = []
            while part := await self.chunk():
                parts.append(part)
            body = b"".join(parts)
        elif "content-length" in fields:
            if method != "HEAD":
                body = await self.reader.readexactly(int(fields["content-length"]))
        elif status >= 200 and status != 204:
            body = await self.reader.read()  # to the end of the connection
        answer = Answer(status, fields, body)
        if not answer.keeps_alive:
            self.close()
        return answer

    async def closes(self, timeout):
        """Whether the server closes the connection, without a further byte, in that time."""
        try:
            return await asyncio.wait_for(self.reader.read(1), timeout) == b""
        except ConnectionError:
            return True
        except asyncio.TimeoutError:
            return False


async def metrics(connection):
    answer = await connection.ask(request_bytes("GET", "/metrics"), "GET")
    values = collections.Counter()
    for line in answer.body.decode().splitlines():
        if line and line[0] != "#":
            name, value = line.rsplit(" ", 1)
            name = name.split("{")[0].removeprefix("rudder:")
            values[name] += float(value)
    return values
