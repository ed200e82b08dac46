"""Dashboards, scalers and routers that are made for vLLM, in front of a server with `--metrics-prefix vllm`: each selector that
they ask for finds series, with the labels by which they group."""

import re

import httpx2
import promql_parser
import pytest

from conftest import HTTP, serving, wait_for

# Of the four boards of vLLM's repository, by row: what a panel selects, and behind `by` what it groups by. Rows of a transfer of
# KV, of images, of utilisation and of sampled blocks are left out: there is nothing here that they could show.
BOARDS = """
vllm:request_success_total by model_name,instance,finished_reason
vllm:request_success_total{finished_reason="stop"}
vllm:request_success_total{finished_reason="length"}
vllm:request_success_total{finished_reason="abort"}
vllm:request_success_total{finished_reason="error"}
vllm:prompt_tokens_total by model_name,engine
vllm:generation_tokens_total by model_name,engine
vllm:num_requests_running by model_name,engine
vllm:num_requests_waiting by model_name,engine
vllm:num_requests_waiting_by_reason{reason="capacity"} by engine
vllm:num_requests_waiting_by_reason{reason="deferred"} by engine
vllm:kv_cache_usage_perc by model_name,engine
vllm:num_preemptions_total by model_name,engine
vllm:prefix_cache_hits_total by engine
vllm:prefix_cache_queries_total by engine
vllm:prompt_tokens_cached_total by engine
vllm:prompt_tokens_by_source_total{source="local_compute"}
vllm:prompt_tokens_by_source_total{source="local_cache_hit"}
vllm:prompt_tokens_cached_by_source_total{source="device"} by engine
vllm:prompt_tokens_cached_by_source_total{source="host"} by engine
vllm:prompt_tokens_cached_by_source_total{source="disk"} by engine
vllm:iteration_tokens_total_bucket{le="8192.0"} by engine
vllm:iteration_tokens_total_sum
vllm:iteration_tokens_total_count
vllm:request_queue_time_seconds_sum
vllm:request_prefill_time_seconds_sum
vllm:request_decode_time_seconds_sum
vllm:request_prompt_tokens_bucket{le="500.0"}
vllm:request_generation_tokens_bucket{le="+Inf"}
vllm:request_prefill_kv_computed_tokens_sum
vllm:inter_token_latency_seconds_bucket{le="0.025"}
vllm:e2e_request_latency_seconds_bucket{le="1.0"}
vllm:cache_config_info by engine,num_gpu_blocks,block_size,cache_dtype,gpu_memory_utilization,enable_prefix_caching
vllm:engine_sleep_state{sleep_state="awake"} by engine
vllm:engine_sleep_state{sleep_state="weights_offloaded"} by engine
vllm:engine_sleep_state{sleep_state="discard_all"} by engine
vllm:spec_decode_num_drafts_total by engine
vllm:spec_decode_num_draft_tokens_total by engine
vllm:spec_decode_num_accepted_tokens_total by engine
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}
http_requests_total{status="2xx"} by handler
http_requests_total{status="4xx"} by handler
http_request_duration_seconds_sum by handler
http_request_duration_seconds_count by handler
process_start_time_seconds
process_cpu_seconds_total
process_resident_memory_bytes
process_open_fds
process_max_fds
"""
# The targets that the first board offers for the share of requests in time: each must be a bound, spelled as there.
IN_TIME = {"time_to_first_token_seconds": "0.1 0.25 0.5 0.75 1.0 2.5 5.0 10.0",
           "request_time_per_output_token_seconds": "0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.5"}
# Of boards, routers and scalers that were written for older versions.
OLDER = """
vllm:gpu_cache_usage_perc
vllm:cpu_cache_usage_perc
vllm:num_requests_swapped
vllm:gpu_prefix_cache_hits_total
vllm:gpu_prefix_cache_queries_total
vllm:time_per_output_token_seconds_bucket{le="0.1"}
vllm:time_per_output_token_seconds_sum
vllm:request_max_num_generation_tokens_sum
"""
FLAGS = ("--metrics-prefix", "vllm", "--speculative-method", "ngram", "--num-speculative-tokens", "2")


def series_of(server):
    """[(name, labels, value)] of /metrics."""
    found = []
    for line in HTTP.get(server.url + "/metrics").text.splitlines():
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line).groups()
            found.append((name, dict(re.findall(r'(\w+)="([^"]*)"', labels or "")), float(value)))
    return found


def selected(series, selector):
    """Values of the series that a line of the tables above selects, all of which have the labels that it groups by."""
    selector, _, grouped = selector.partition(" by ")
    asked = promql_parser.parse(selector)
    wanted = {matcher.name: matcher.value for matcher in asked.matchers.matchers}
    found = [(labels, value) for name, labels, value in series if name == asked.name and wanted.items() <= labels.items()]
    scraped = {"instance"}  # what a scraper adds
    assert all(set(grouped.split(",")) - scraped - {""} <= set(labels) for labels, _ in found), selector
    return [value for _, value in found]


@pytest.fixture(scope="module")
def served():
    with serving(*FLAGS) as server:
        body = {"prompt": "one two three one two three one two", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        for _ in range(2):
            assert httpx2.post(server.url + "/v1/completions", json=body).status_code == 200
        assert httpx2.post(server.url + "/v1/completions", json={"max_tokens": 1}).status_code == 400
        for probe in ("/health", "/metrics", "/load", "/ping", "/version", "/server_info"):
            assert httpx2.get(server.url + probe).status_code == 200
        count = 'http_request_duration_seconds_count{method="POST",handler="/v1/completions"}'
        wait_for(lambda: server.metrics().get(count) == 3, "the requests are counted")
        yield server


@pytest.mark.parametrize("selector", [line for line in (BOARDS + OLDER).splitlines() if line])
def test_a_panel_has_series(served, selector):
    assert selected(series_of(served), selector), selector


@pytest.mark.parametrize("histogram", IN_TIME)
def test_what_is_in_time_can_be_told(served, histogram):
    series = series_of(served)
    [total] = selected(series, f"vllm:{histogram}_count")
    assert total > 0
    for bound in IN_TIME[histogram].split():
        [within] = selected(series, f'vllm:{histogram}_bucket{{le="{bound}"}}')
        assert within <= total


def test_requests_are_those_for_something(served):
    series = series_of(served)
    requests = {(labels["handler"], labels["status"]): value for name, labels, value in series if name == "http_requests_total"}
    assert requests == {("/v1/completions", "2xx"): 2, ("/v1/completions", "4xx"): 1}
    assert {labels["handler"] for name, labels, _ in series if name == "http_request_duration_seconds_count"} == {"/v1/completions"}


def test_older_names_say_what_the_new_ones_say(served):
    series = series_of(served)
    for older, name in (("gpu_cache_usage_perc", "kv_cache_usage_perc"),
                        ("gpu_prefix_cache_hits_total", "prefix_cache_hits_total"),
                        ("gpu_prefix_cache_queries_total", "prefix_cache_queries_total")):
        assert selected(series, "vllm:" + older) == selected(series, "vllm:" + name)
    assert sum(selected(series, "vllm:prompt_tokens_cached_by_source_total")) == sum(
        selected(series, "vllm:prefix_cache_hits_total"))


def test_the_state_of_sleep_is_told():
    with serving("--metrics-prefix", "vllm", "--enable-sleep-mode") as server:
        def state():
            return [labels["sleep_state"] for name, labels, value in series_of(server)
                    if name == "vllm:engine_sleep_state" and value == 1]
        assert state() == ["awake"]
        for level, name in ((1, "weights_offloaded"), (2, "discard_all")):
            assert httpx2.post(f"{server.url}/sleep?level={level}", timeout=60).status_code == 200
            assert state() == [name]
            if level == 1:
                assert httpx2.post(server.url + "/wake_up", timeout=60).status_code == 200
                assert state() == ["awake"]


def test_the_flags_of_the_cache_are_told():
    with serving("--metrics-prefix", "vllm", "--kv-cache-dtype", "int8_per_token_head", "--no-enable-prefix-caching") as server:
        [told] = [labels for name, labels, _ in series_of(server) if name == "vllm:cache_config_info"]
        assert told["cache_dtype"] == "int8_per_token_head" and told["enable_prefix_caching"] == "false"
