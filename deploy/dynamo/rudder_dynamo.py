"""A NVIDIA Dynamo worker in front of one `rudder serve`.

Dynamo's frontend tokenises and routes; this process registers the server as a worker, passes each request on to it as
token ids, and hands its KV events and its load to the router. See docs/fleet.md for the commands.

A prompt arrives here as token ids and options. What Dynamo has a field for is translated; an option without a
translation is refused. Rudder's own fields travel as an annotation of the request, which the frontend passes on as it
is: `"nvext": {"annotations": ["rudder:{\\"steering\\": {...}}"]}`.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import re

import aiohttp
from dynamo.common.backend.engine import EngineConfig, LLMEngine, LlmRegistration
from dynamo.common.backend.publisher import ComponentSnapshot, ZmqSource
from dynamo.common.backend.run import run
from dynamo.common.backend.worker import WorkerConfig
from dynamo.llm.exceptions import InvalidArgument, Unknown

log = logging.getLogger("rudder_dynamo")

LOAD_PERIOD_S = 0.5
ANNOTATION = "rudder:"

# Dynamo's name: the field of /v1/completions.
SAMPLING = {name: name for name in ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p",
                                    "top_k", "min_p", "seed", "include_stop_str_in_output")}
STOPPING = {"max_tokens": "max_tokens", "min_tokens": "min_tokens", "stop": "stop", "ignore_eos": "ignore_eos"}
GUIDED = {"json": "json", "regex": "regex", "choice": "choice", "grammar": "grammar"}


def without_nothing(options):
    """The options that say something: the frontend sends the others as null or empty."""
    return {key: value for key, value in (options or {}).items() if value is not None and value != [] and value is not False}


def take(options, names, where, body):
    """Moves the options that have a field to the body. What is left has none."""
    for name, field in names.items():
        if name in options:
            body[field] = options.pop(name)
    if options:
        raise InvalidArgument(f"{where} has what is not passed on to Rudder: {', '.join(sorted(options))}")


def to_completion(request):
    """The body of /v1/completions for a request of Dynamo's."""
    body = {"prompt": list(request["token_ids"]), "stream": True, "return_token_ids": True,
            "stream_options": {"include_usage": True}}
    sampling = without_nothing(request.get("sampling_options"))
    if sampling.pop("n", 1) != 1:
        raise InvalidArgument("n: one choice a request")
    guided = without_nothing(sampling.pop("guided_decoding", None))
    take(sampling, SAMPLING, "sampling_options", body)
    if guided:
        constraint = {}
        take(guided, GUIDED, "guided_decoding", constraint)
        body["structured_outputs"] = constraint
    stopping = without_nothing(request.get("stop_conditions"))
    ids = stopping.pop("stop_token_ids", []) + stopping.pop("stop_token_ids_hidden", [])
    if ids:
        body["stop_token_ids"] = sorted(set(ids))
    take(stopping, STOPPING, "stop_conditions", body)
    output = without_nothing(request.get("output_options"))
    output.pop("skip_special_tokens", None)  # the frontend makes the text
    if "logprobs" in output:
        body["logprobs"] = output.pop("logprobs")
        body["return_tokens_as_token_ids"] = True
    take(output, {}, "output_options", body)
    for annotation in request.get("annotations") or []:
        if annotation.startswith(ANNOTATION):
            body.update(json.loads(annotation.removeprefix(ANNOTATION)))
    return {name: value for name, value in body.items() if value is not None}


def to_chunk(choice):
    """A choice of a streamed completion as Dynamo's chunk."""
    chunk = {"token_ids": choice.get("token_ids") or [], "index": 0}
    if choice.get("finish_reason"):
        chunk["finish_reason"] = choice["finish_reason"]
    logprobs = choice.get("logprobs")
    if logprobs:
        chunk["log_probs"] = logprobs["token_logprobs"]
        chunk["top_logprobs"] = [
            [{"rank": rank + 1, "token_id": int(token.removeprefix("token_id:")), "logprob": value}
             for rank, (token, value) in enumerate(sorted((top or {}).items(), key=lambda item: -item[1]))]
            for top in logprobs["top_logprobs"] or []]
    return chunk


def read_metrics(text):
    """{name without prefix: sum of its values, or its labels where it is an `_info`} of /metrics."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\w+:(\w+)(?:\{(.*)\})? (\S+)", line)
        if match is None:
            continue
        name, labels, value = match.groups()
        if name.endswith("_info"):
            found[name] = dict(re.findall(r'(\w+)="([^"]*)"', labels or ""))
        else:
            found[name] = found.get(name, 0.0) + float(value)
    return found


class RudderEngine(LLMEngine):
    def __init__(self, url, model_path, events):
        self.url, self.model_path, self.events = url.rstrip("/"), model_path, events
        self.http = self.load = self.publisher = None
        self.blocks = 0

    @classmethod
    async def from_args(cls, argv=None):
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--url", required=True, help="the server's, as http://127.0.0.1:8001")
        parser.add_argument("--model-path", required=True, help="folder with tokenizer.json and config.json, for the frontend")
        parser.add_argument("--model-name", required=True, help="under which the server serves it")
        parser.add_argument("--kv-events", required=True, help="endpoint of the server's KV events, as tcp://127.0.0.1:5557")
        parser.add_argument("--namespace", default="dynamo")
        parser.add_argument("--component", default="rudder")
        parser.add_argument("--discovery-backend", default="file", help="file needs no etcd; its folder is DYN_FILE_KV")
        args = parser.parse_args(argv)
        return cls(args.url, args.model_path, args.kv_events), WorkerConfig(
            namespace=args.namespace, component=args.component, model_name=args.model_path,
            served_model_name=args.model_name, discovery_backend=args.discovery_backend, request_plane="tcp",
            event_plane="zmq", use_kv_events=True)

    async def get(self, path):
        async with self.http.get(self.url + path) as answer:
            answer.raise_for_status()
            return await answer.text()

    async def start(self, worker_id):
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
                                          connector=aiohttp.TCPConnector(limit=0))
        [model] = json.loads(await self.get("/v1/models"))["data"]
        [load] = json.loads(await self.get("/v1/loads"))["loads"]
        cache = read_metrics(await self.get("/metrics"))["cache_config_info"]
        self.blocks = int(cache["num_gpu_blocks"])
        self.load = asyncio.create_task(self.publish_load())
        return EngineConfig(model=self.model_path, served_model_name=model["id"], llm=LlmRegistration(
            context_length=model["max_model_len"], kv_cache_block_size=int(cache["block_size"]),
            total_kv_blocks=self.blocks, max_num_seqs=load["max_running_requests"]))

    async def kv_event_sources(self):
        return [ZmqSource(endpoint=self.events)]

    def component_metrics_dp_ranks(self):
        return [0]

    def attach_snapshot_publisher(self, publisher):
        self.publisher = publisher

    async def publish_load(self):
        while True:
            try:
                values = read_metrics(await self.get("/metrics"))
                used, asked = values["kv_cache_usage_perc"], values["prefix_cache_queries_total"]
                if self.publisher is not None:
                    self.publisher.publish(0, ComponentSnapshot(
                        kv_used_blocks=round(used * self.blocks), kv_total_blocks=self.blocks, gpu_cache_usage=used,
                        kv_cache_hit_rate=values["prefix_cache_hits_total"] / asked if asked else None, dp_rank=0))
            except (aiohttp.ClientError, OSError) as error:
                log.warning("no load of %s: %s", self.url, error)
            await asyncio.sleep(LOAD_PERIOD_S)

    async def generate(self, request, context):
        body = to_completion(request)
        async with self.http.post(self.url + "/v1/completions", json=body, headers={"x-request-id": context.id()}) as answer:
            if answer.status != 200:
                message = (await answer.json())["error"]["message"]
                raise (InvalidArgument if answer.status < 500 else Unknown)(message)
            last = None  # waits for the usage, which comes behind it
            async for line in answer.content:
                if context.is_stopped():
                    return  # closing the connection ends the request there
                data = line.decode().strip().removeprefix("data:").strip()
                if not data or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise Unknown(event["error"]["message"])
                for choice in event["choices"]:
                    chunk = to_chunk(choice)
                    if "finish_reason" in chunk:
                        last = chunk
                    else:
                        yield chunk
                if last is not None and event.get("usage"):
                    yield {**last, "completion_usage": event["usage"]}
                    return
            raise Unknown(f"{self.url} ended its answer early")

    async def cleanup(self):
        if self.load is not None:
            self.load.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.load
            self.load = None
        if self.http is not None:
            await self.http.close()
            self.http = None


if __name__ == "__main__":
    run(RudderEngine)
