"""A subscriber to KV events: vLLM's structs, its frames, and a mirror of the cache that counts what it is told."""

import contextlib
import json
import time
from typing import Optional, Union

import msgspec
import zmq

END = b"\xff" * 8


class Event(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: Optional[int]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    group_idx: Optional[int] = None
    kv_cache_spec_kind: Optional[str] = None
    kv_cache_spec_sliding_window: Optional[int] = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: Optional[str]
    group_idx: Optional[int] = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    ts: float
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    data_parallel_rank: Optional[int]


def config(port, replay_port, **more):
    """The flag and its value."""
    return "--kv-events-config", json.dumps({"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{port}",
                                             "replay_endpoint": f"tcp://127.0.0.1:{replay_port}", **more})


class Mirror:
    """What the events say is cached: {(group, hash): (tokens, parent)}. From the first time on that the cache was
    empty every block is stored once before it is removed; before that, blocks go that came before we listened."""

    def __init__(self):
        self.blocks = {}
        self.stored = self.removed = self.clears = 0

    def apply(self, batch):
        for event in batch.events:
            if isinstance(event, BlockStored):
                size = event.block_size
                assert len(event.token_ids) == size * len(event.block_hashes) and event.medium == "GPU"
                parent = event.parent_block_hash
                for i, block in enumerate(event.block_hashes):
                    key = (event.group_idx or 0, block)
                    assert key not in self.blocks, "stored twice"
                    self.blocks[key] = (tuple(event.token_ids[i * size:(i + 1) * size]), parent)
                    self.stored += 1
                    parent = block
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    known = self.blocks.pop((event.group_idx or 0, block), None)
                    assert known or not self.clears, "removed, but not stored"
                    self.removed += 1
            else:
                self.blocks.clear()
                self.clears += 1

    def prefix(self, tokens, size=16, group=0):
        """How many of the first tokens are cached, found as a router does: by tokens, along the parents."""
        children = {(parent, block_tokens): block for (of, block), (block_tokens, parent) in self.blocks.items() if of == group}
        parent, found = None, 0
        while (parent := children.get((parent, tuple(tokens[found:found + size])))) is not None:
            found += size
        return found


class Subscriber:
    def __init__(self, port, topic="", decode=Batch):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.decoder = msgspec.msgpack.Decoder(decode)
        self.mirror = Mirror()
        self.sequences = []

    def receive(self, timeout=30):
        assert self.socket.poll(timeout * 1000), "no batch came"
        topic, sequence, payload = self.socket.recv_multipart()
        self.sequences.append(int.from_bytes(sequence, "big"))
        batch = self.decoder.decode(payload)
        self.mirror.apply(batch)
        return topic.decode(), batch

    def receive_ready(self):
        while self.socket.poll(0):
            self.receive()

    def receive_all(self):
        """All that was said until now: the batch of an idle second ends it."""
        now = time.time()
        while True:
            topic, batch = self.receive()
            if not batch.events and batch.ts > now:
                return topic, batch

    def receive_until(self, condition, timeout=30):
        deadline = time.monotonic() + timeout
        while not condition(self.mirror):
            assert time.monotonic() < deadline, "the events do not say so"
            self.receive()

    def close(self):
        self.context.destroy(linger=0)


@contextlib.contextmanager
def subscribed(server, port, **options):
    """A subscriber that the server knows of; when it has gone, the server knows that, too."""

    def count():
        return server.metric("rudder:kv_event_subscribers")

    def wait(done):
        deadline = time.monotonic() + 30
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    before = count()
    subscriber = Subscriber(port, **options)
    try:
        wait(lambda: count() > before)
        yield subscriber
    finally:
        subscriber.close()
    wait(lambda: count() <= before)


def replay(port, first=0, timeout=30):
    """[(topic, sequence, batch)] that the server kept from `first` on."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        found = []
        while True:
            assert socket.poll(timeout * 1000), "the replay does not end"
            delimiter, topic, sequence, payload = socket.recv_multipart()
            assert delimiter == b""
            if sequence == END:
                assert (topic, payload) == (b"", b"")
                return found
            found.append((topic.decode(), int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload, type=Batch)))
