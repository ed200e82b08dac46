"""Rudder as a Ray Serve deployment: each replica runs one `rudder serve` and passes requests on to it, byte by byte.

    serve deploy deploy/ray/serve.yaml

Ray starts and stops replicas with the requests under way (`min_replicas` to `max_replicas`). A replica that goes finishes
what runs: Serve waits for its requests, then the server gets SIGTERM and drains. A server that dies takes its replica
with it, which Serve replaces. The header x-rudder-replica of an answer names who gave it. See docs/fleet.md.
"""

import asyncio
import ctypes
import re
import shlex
import signal

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

DRAIN_S = 30
PR_SET_PDEATHSIG = 1
# Of one connection, RFC 9110 section 7.6.1; and what the other side writes itself.
HOP_BY_HOP = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
              "upgrade", "content-length", "host"}


def end_with_parent():
    """A replica that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@serve.deployment  # its numbers are in serve.yaml, which would not override all that stood here
class RudderServer:
    async def __init__(self, binary: str, flags: str):
        self.process = await asyncio.create_subprocess_exec(
            binary, "serve", *shlex.split(flags), "--port", "0", "--shutdown-timeout", str(DRAIN_S),
            stdout=asyncio.subprocess.PIPE, preexec_fn=end_with_parent)
        self.url = await self.read_url()
        self.replica = serve.get_replica_context().replica_id.unique_id
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False,
                                          connector=aiohttp.TCPConnector(limit=0))

    async def read_url(self):
        async for line in self.process.stdout:
            match = re.search(rb"on (http://[\d.]+:\d+)", line)
            if match:
                return match[1].decode()
        raise RuntimeError("rudder did not start; its reason is in the log of the replica")

    async def check_health(self):
        if self.process.returncode is not None:
            raise RuntimeError(f"rudder ended with {self.process.returncode}")
        async with self.http.get(self.url + "/livez") as answer:
            answer.raise_for_status()

    async def __call__(self, request: Request):
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP]
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        answer = await self.http.request(request.method, self.url + path, data=await request.body(), headers=headers)

        async def body():  # a client that leaves ends the request: the connection to the server is closed
            try:
                async for piece in answer.content.iter_any():
                    yield piece
            finally:
                answer.close()

        # Serve writes the id of the request itself, the client's where it has one.
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP | {"x-request-id"}}
        kept["x-rudder-replica"] = self.replica
        return StreamingResponse(body(), status_code=answer.status, headers=kept)

    async def __del__(self):
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            await self.process.wait()
        await self.http.close()


def app(args: dict):
    return RudderServer.bind(args.get("binary", "rudder"), args.get("flags", ""))
