"""Connections that do not behave, against the real binary: each is bounded and answered, and others do not notice."""

import asyncio
import contextlib
import json
import random
import socket

import pytest
from conftest import Stopwatch, is_instrumented, serving
from invalid.client import Connection, request_bytes
from invalid.run import left_behind, metrics, stream_tokens

DEADLINE_S = 1.0  # of the server, for headers, bodies and writes
FLAGS = ("--header-timeout", "1", "--body-timeout", "1", "--timeout-keep-alive", "1.5", "--write-timeout", "1",
         "--max-pending-output", "64K", "--max-connections", "400", "--max-connections-per-address", "400",
         "--disable-access-log", "--log-level", "error")
SLOW_READERS = 3
GET = request_bytes("GET", "/version")
BODY = json.dumps({"prompt": "A boat", "max_tokens": 2}).encode()
POST = request_bytes("POST", "/v1/completions", BODY)


@pytest.fixture(scope="module")
def abused():
    with serving(*FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def port(abused):
    number = int(abused.url.rsplit(":", 1)[1])
    asyncio.run(stream_alone(number))
    yield number
    left, _ = asyncio.run(left_behind(number))
    assert not left


async def stream_alone(port, on_token=lambda: None):
    connection = Connection(port)
    tokens = await stream_tokens(connection, 1, on_token)
    connection.close()
    return tokens


async def metric(port, name):
    connection = Connection(port)
    values = await metrics(connection)
    connection.close()
    return values[name]


def beside_a_stream(port, abuse, seconds=60):
    """What `abuse()` returns, while a stream of someone else comes to the same tokens as without."""

    async def both():
        alone = await stream_alone(port)
        begun = asyncio.Event()
        stream = asyncio.create_task(stream_alone(port, begun.set))
        # Its request is sent in time, whatever the abuse makes this thread do.
        await asyncio.wait([stream, asyncio.create_task(begun.wait())], return_when=asyncio.FIRST_COMPLETED)
        result = await asyncio.wait_for(abuse(), seconds)
        assert await stream == alone
        return result

    return asyncio.run(both())


async def answers(port, data, count=None, timeout=10):
    """Statuses of all answers to these bytes, up to `count` or the end of the connection."""
    connection = Connection(port)
    await connection.send(data)
    reader, statuses = connection.reader, []
    try:
        while count is None or len(statuses) < count:
            connection.reader = reader
            statuses.append((await asyncio.wait_for(connection.receive(), timeout)).status)
    except (EOFError, ConnectionError):
        statuses.append("closed")
    except asyncio.TimeoutError:
        statuses.append("open")
    connection.close()
    return statuses


def post(*lines, body=b""):
    head = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def chunked(body):
    return post("Transfer-Encoding: chunked", body=body)


WHOLE = b"%x\r\n%s\r\n" % (len(BODY), BODY)

# Whatever the first request is read as, the second must not be taken for part of the connection: a reader in front of
# us may have seen it as a body. So: one refusal, and the connection is closed.
SMUGGLED = {
    "length and chunks": post("Content-Length: 5", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "chunks and length": post("Transfer-Encoding: chunked", "Content-Length: 5", body=b"0\r\n\r\n"),
    "two lengths": post("Content-Length: 0", "Content-Length: 0"),
    "two different lengths": post("Content-Length: 0", "Content-Length: 60"),
    "a list of lengths": post("Content-Length: 0, 0"),
    "a length with a sign": post("Content-Length: +0"),
    "a negative length": post("Content-Length: -1"),
    "a hexadecimal length": post("Content-Length: 0x0"),
    "an empty length": post("Content-Length: "),
    "a length beyond 64 bits": post("Content-Length: 18446744073709551616"),
    "a length beyond the bound": post("Content-Length: 18446744073709551615"),
    "chunks twice": post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "chunks, identity": post("Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
    "gzip, chunks": post("Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "an unknown coding": post("Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "a space before the colon": post("Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
    "a tab in the coding": post("Transfer-Encoding:\tchunked\x0b", body=b"0\r\n\r\n"),
    "chunks in HTTP/1.0": chunked(b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a folded field": post("X: a", " Content-Length: 5"),
    "a bare line feed": post("X: a\nContent-Length: 0"),
    "a bare carriage return": post("X: a\rContent-Length: 0"),
    "a NUL in a field": post("X: a\0b"),
    "a NUL in a name": post("X\0: a"),
    "no colon": post("Content-Length"),
    "no host": GET.replace(b"Host: localhost\r\n", b""),
    "two hosts": post("Host: 127.0.0.1"),
    "a negative chunk": chunked(b"-1\r\n\r\n"),
    "a chunk with 0x": chunked(b"0x5\r\nabcde\r\n0\r\n\r\n"),
    "a chunk beyond 64 bits": chunked(b"fffffffffffffffff\r\n"),
    "a chunk beyond the bound": chunked(b"7fffffffffffffff\r\n"),
    "a chunk of no number": chunked(b"G\r\n"),
    "a chunk without its end": chunked(b"3\r\nabcde\r\n0\r\n\r\n"),
    "a chunk after a bare line feed": chunked(b"3\nabc\r\n0\r\n\r\n"),
    "a long chunk extension": chunked(b"3;" + b"x" * 300 + b"\r\nabc\r\n0\r\n\r\n"),
    "a length behind the chunks": chunked(WHOLE + b"0\r\nContent-Length: 9\r\n\r\n"),
    "an endless chunk size": chunked(b"0" * 40_000),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2 of no one": GET.replace(b"HTTP/1.1", b"HTTP/3.1"),
    "HTTP/0.9": b"GET /version\r\n",
    "more on the first line": GET.replace(b"HTTP/1.1", b"HTTP/1.1 HTTP/1.1"),
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x7f" * 500 + b"\n",
    "a control character in the path": GET.replace(b"/version", b"/ver\x01sion"),
    "too long a header": GET[:-2] + b"X: " + b"a" * 40_000 + b"\r\n\r\n",
    "too long a path": GET.replace(b"/version", b"/" + b"a" * 40_000),
    "too many fields": GET[:-2] + b"".join(b"X%d: a\r\n" % i for i in range(101)) + b"\r\n",
    "a tunnel": b"CONNECT other.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_what_can_be_read_in_two_ways_is_refused(port, name):
    statuses = asyncio.run(answers(port, SMUGGLED[name] + GET))
    assert len(statuses) == 2 and statuses[1] == "closed", statuses
    assert statuses[0] in (400, 413, 431, 501, 505), statuses


READ = {
    "pieces of one byte": chunked(b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"),
    "chunk extensions": chunked(WHOLE.replace(b"\r\n", b";a=b;c\r\n", 1) + b"0;x\r\n\r\n"),
    "trailers": chunked(WHOLE + b"0\r\nAuthorization: b\r\nX: y\r\n\r\n"),
    "leading zeros": chunked(b"000000" + WHOLE + b"0\r\n\r\n"),
    "an address with a host": POST.replace(b"/v1", b"http://other.example/v1"),
    "many fields": POST.replace(b"Host: localhost\r\n", b"Host: localhost\r\n" + b"".join(b"X%d: a\r\n" % i for i in range(90))),
    "an empty line before": b"\r\n" + POST,
    "bytes beyond ASCII in a field": POST.replace(b"Host: localhost\r\n", b"Host: localhost\r\nX: \xff\xfe\r\n"),
    "a query": POST.replace(b"completions HTTP", b"completions?a=%00&b=\x7e HTTP"),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_unusual_and_clear_is_read(port, name):
    assert asyncio.run(answers(port, READ[name] + GET, count=2)) == [200, 200]


def test_old_clients_and_invitations(port):
    old = POST.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Host: localhost\r\n", b"")
    assert asyncio.run(answers(port, old + GET)) == [200, "closed"]
    kept = old.replace(b"HTTP/1.0\r\n", b"HTTP/1.0\r\nConnection: keep-alive\r\n")
    assert asyncio.run(answers(port, kept + GET, count=2)) == [200, 200]
    invited = post(f"Content-Length: {len(BODY)}", "Expect: 100-continue")

    async def invitation():
        connection = Connection(port)
        await connection.send(invited)
        assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        answer = await connection.ask(BODY)
        connection.close()
        return answer.status

    assert asyncio.run(invitation()) == 200
    assert asyncio.run(answers(port, invited + BODY + GET, count=2)) == [200, 200], "not waited for: not said"
    refused = invited.replace(b"/v1/completions", b"/nowhere")
    assert asyncio.run(answers(port, refused + BODY + GET)) == [404, "closed"]


def test_pipelined_requests_are_answered_in_order(port):
    async def pipelined():
        connection = Connection(port)
        bodies = [json.dumps({"prompt": "A boat", "max_tokens": 1, "n": 1 + i % 3}).encode() for i in range(150)]
        sending = asyncio.create_task(connection.send(b"".join(request_bytes("POST", "/v1/completions", b) for b in bodies)))
        for i in range(len(bodies)):
            while connection.reader is None:
                await asyncio.sleep(0)
            answer = await connection.receive()
            assert answer.status == 200 and len(answer.json()["choices"]) == 1 + i % 3
        await sending
        connection.close()

    beside_a_stream(port, pipelined)


def test_a_pipeline_that_nobody_reads_is_bounded(port):
    """The server reads a little ahead and no further: the rest stays in the sockets' buffers."""

    async def deaf():
        connection = Connection(port)
        await connection.open()
        sent = 0
        try:
            for _ in range(4000):
                connection.writer.write(POST * 100)
                await asyncio.wait_for(connection.writer.drain(), 0.5)
                sent += 100 * len(POST)
        except (asyncio.TimeoutError, ConnectionError):
            pass
        connection.close()
        return sent

    before = asyncio.run(metric(port, "process_resident_memory_bytes"))
    assert beside_a_stream(port, deaf) < 16 << 20
    assert asyncio.run(metric(port, "process_resident_memory_bytes")) < before + (64 << 20)


def test_slow_writers_are_sent_away(abused, port):
    """A hundred and fifty, a byte at a time: a trickle puts no deadline off."""
    told = []
    begins = [GET[:-2] + b"X: ", post("Content-Length: 1000"), post("Transfer-Encoding: chunked")]

    async def trickle(begin):
        connection = Connection(port)
        await connection.send(begin)
        reading = asyncio.create_task(connection.receive())
        while not reading.done():
            try:
                await connection.send(b"1")
            except ConnectionError:
                break
            await asyncio.wait([reading], timeout=0.1)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            told.append((await reading).status)
        connection.close()

    async def fall_silent(begin):
        connection = Connection(port)
        await connection.send(begin)
        status = (await connection.receive()).status
        connection.close()
        return status

    async def many():
        watch = Stopwatch(abused.process.pid)
        silent, *_ = await asyncio.gather(asyncio.gather(*map(fall_silent, begins)), *(trickle(begin) for begin in begins * 50))
        assert silent == [408] * len(begins)
        return watch.seconds()

    took = beside_a_stream(port, many)
    # "1" is not the beginning of a chunk's size for ever: that one may be refused by its form. Who writes once more before
    # they have read is not told, since what the system does with bytes that nobody takes is a reset.
    assert set(told) <= {408, 400}
    assert took < 5 * DEADLINE_S


def test_slow_readers_are_cancelled(port):
    """Streams of people who do not read: cancelled at the bound on unread output, or on time."""

    async def deaf():
        # More than the sockets' buffers take.
        sockets = []
        data = request_bytes("POST", "/v1/completions", json.dumps(
            {"prompt": "A boat", "max_tokens": 1900, "ignore_eos": True, "stream": True, "logprobs": 20, "n": 8}).encode())
        loop = asyncio.get_running_loop()
        for _ in range(SLOW_READERS):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, data)
            sockets.append(client)
        connection = Connection(port)
        for _ in range(600):
            now = await metrics(connection)
            if now["http_slow_readers_total"] - before >= SLOW_READERS:
                break
            await asyncio.sleep(0.1)
        connection.close()
        for client in sockets:
            client.close()
        return now["http_slow_readers_total"] - before

    before = asyncio.run(metric(port, "http_slow_readers_total"))
    assert beside_a_stream(port, deaf) == SLOW_READERS


def test_connections_that_go_at_every_moment(port):
    """Closed, reset or half closed, after every so many bytes of a request, and while the answer comes."""
    stream = request_bytes("POST", "/v1/completions", json.dumps(
        {"prompt": "A boat", "max_tokens": 300, "ignore_eos": True, "stream": True}).encode())

    async def leave(number):
        how = number % 3
        connection = Connection(port)
        await connection.send(stream[:number * 7 % len(stream)] if number % 2 else stream)
        if number % 4 == 0:
            await connection.reader.read(200 + number)
        if how == 0:
            connection.half_close()
            await asyncio.wait_for(connection.reader.read(), 20)  # ends, whatever comes
        elif how == 1:
            connection.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        connection.close()

    async def many():
        for begin in range(0, 180, 30):
            await asyncio.gather(*(leave(number) for number in range(begin, begin + 30)), return_exceptions=True)

    beside_a_stream(port, many)
    left, _ = asyncio.run(left_behind(port))
    assert not left


def test_bytes_at_random(port):
    """Requests with bytes changed, dropped and doubled, cut anywhere into writes: whatever comes back is HTTP, and ends."""
    whole = [POST + GET, chunked(WHOLE + b"0\r\n\r\n") + GET, GET[:-2] + b"Expect: 100-continue\r\nConnection: close\r\n\r\n",
             request_bytes("DELETE", "/v1/steering/modules/a%20b"), b"\r\n" + READ["trailers"] + POST]

    def damaged(rng):
        data = bytearray(rng.choice(whole))
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data))
            how = rng.randrange(4)
            if how == 0:
                data[at] = rng.choice(b"\0\r\n\t :,;0f\x7f\xff")
            elif how == 1:
                del data[at:at + rng.randrange(1, 20)]
            elif how == 2:
                data[at:at] = data[at:at + rng.randrange(1, 200)]
            else:
                data[at:at] = rng.choice([b"\r\n", b"\r\n\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n"])
            data = data or bytearray(b"G")
        return bytes(data)

    async def one(number):
        rng = random.Random(number)
        data = damaged(rng)
        connection = Connection(port)
        try:
            while data:
                size = rng.randrange(1, len(data) + 1)
                await connection.send(data[:size])
                data = data[size:]
                await asyncio.sleep(0)
            while True:
                answer = await connection.receive()
                assert 100 <= answer.status < 500 or answer.status in (501, 505), answer
                if answer.status >= 400:
                    assert answer.json()["error"]["message"]
                if not answer.keeps_alive:
                    break
        except (EOFError, ConnectionError):
            pass  # closed for being idle, or in the middle of what never came
        connection.close()

    async def many():
        for begin in range(0, 600, 300):
            await asyncio.gather(*(asyncio.wait_for(one(number), 20) for number in range(begin, begin + 300)))

    beside_a_stream(port, many)


def test_more_connections_than_there_may_be(port):
    async def flood():
        connections = [Connection(port) for _ in range(500)]
        for connection in connections:
            try:
                await connection.open()
            except ConnectionError:
                pass
        statuses = await asyncio.gather(*(each.ask(GET, "GET") for each in connections), return_exceptions=True)
        for connection in connections:
            connection.close()
        return [getattr(status, "status", type(status).__name__) for status in statuses]

    statuses = asyncio.run(flood())
    # The server closed those that were idle longest, or refused those that came last.
    assert statuses.count(200) >= 390 and set(statuses) <= {200, 503, "ConnectionResetError", "IncompleteReadError", "BrokenPipeError"}
    assert statuses.count(200) <= 410
    assert asyncio.run(answers(port, GET, count=1)) == [200]


JSON_CASES = {
    "bad UTF-8": (b'{"prompt":"\xff","max_tokens":1}', 400),
    "an overlong form": (b'{"prompt":"\xc0\xaf","max_tokens":1}', 400),
    "a surrogate as bytes": (b'{"prompt":"\xed\xa0\x80","max_tokens":1}', 400),
    "a lone surrogate": (rb'{"prompt":"\ud800","max_tokens":1}', 400),
    "surrogates in the wrong order": (rb'{"prompt":"\udc00\ud800","max_tokens":1}', 400),
    "a pair of surrogates": (rb'{"prompt":"\ud83d\ude00","max_tokens":1}', 200),
    "a NUL escape": (rb'{"prompt":"\u0000","max_tokens":1}', 200),
    "a NUL byte": (b'{"prompt":"\0","max_tokens":1}', 400),
    "a NUL behind": (b'{"prompt":"a","max_tokens":1}\0', 400),
    "two values": (b'{"prompt":"a","max_tokens":1}{}', 400),
    "a byte order mark": (b'\xef\xbb\xbf{"prompt":"a","max_tokens":1}', 400),
    "UTF-16": ('{"prompt":"a","max_tokens":1}'.encode("utf-16"), 400),
    "very deep": (b'{"prompt":' + b"[" * 5_000_000 + b"]" * 5_000_000 + b"}", 400),
    "very deep objects": (b'{"a":' * 2_000_000, 400),
    "a number beyond doubles": (b'{"prompt":"a","max_tokens":1,"temperature":1e400}', 400),
    "a number of a million digits": (b'{"prompt":"a","max_tokens":' + b"9" * 1_000_000 + b"}", 400),
    "an exponent of a million digits": (b'{"prompt":"a","temperature":1e' + b"9" * 1_000_000 + b"}", 400),
    "a fraction of a million digits": (b'{"prompt":"a","max_tokens":1,"temperature":0.' + b"0" * 1_000_000 + b"}", 200),
    "the same key twice": (b'{"prompt":"a","max_tokens":1,"max_tokens":-1}', 400),
    "the same key a million times": (b'{"prompt":"a",' + b'"max_tokens":1,' * 1_000_000 + b'"max_tokens":1}', 200),
    "half a million keys": (b'{"prompt":"a","max_tokens":1,' + b",".join(b'"%d":0' % i for i in range(500_000)) + b"}", 200),
    "not a number": (b'{"prompt":"a","temperature":NaN}', 400),
    "nothing": (b"", 400),
    "white space": (b" " * 10_000_000, 400),
    "too large": (b'{"prompt":"' + b"a" * (17 << 20) + b'"}', 413),
}


@pytest.mark.parametrize("name", JSON_CASES)
def test_bodies_that_are_strange_as_json(abused, port, name):
    body, expected = JSON_CASES[name]

    async def ask():
        connection = Connection(port)
        answer = await connection.ask(request_bytes("POST", "/v1/completions", body))
        connection.close()
        return answer

    before = abused.processor_seconds()
    answer = asyncio.run(asyncio.wait_for(ask(), 120))
    assert answer.status == expected, answer.body[:300]
    assert abused.processor_seconds() - before < (20 if is_instrumented() else 5)
    if expected != 200:
        assert answer.json()["error"]["message"] and len(answer.body) < 1000
