"""Capture plugins in the real binary, which has a C++ runtime of its own: what they throw must end there too."""

import struct

import openai
import pytest
from conftest import BINARY, serving

PLUGINS = BINARY.parents[1] / "src" / "rudder" / "steer" / "capture"
HIDDEN = 256


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    probe = tmp_path_factory.mktemp("probe") / "probe.f32"
    probe.write_bytes(struct.pack(f"<{HIDDEN}f", *(1.0 if i % 3 else -1.0 for i in range(HIDDEN))))
    with serving("--capture-memory-mb", "8", "--capture-plugin", f"bad:file={PLUGINS / 'capture_bad_plugin.so'}",
                 "--capture-plugin", f"reward:file={PLUGINS / 'capture_reward.so'},probe={probe}") as server:
        yield server.client()


def results(client, deed):
    sites = {"sites": {"resid_post": [1]}, "positions": "all_generated"}
    answer = client.completions.create(
        model=client.models.list().data[0].id, prompt="A small boat sails", max_tokens=6, temperature=0,
        extra_body={"ignore_eos": True, "capture": {"bad": {**sites, "do": deed}, "reward": sites}})
    assert answer.usage.completion_tokens == 6
    return answer.capture_results


def test_the_example_gives_a_reward(client):
    reward = results(client, "nothing")["reward"]
    assert reward["status"] == "ok" and reward["payload"]["rows"] == 5
    assert -1 < reward["payload"]["reward"] < 1 and reward["payload"]["reward"] != 0


@pytest.mark.parametrize("deed,text", [("throw_open", "open threw"), ("throw_rows", "on_rows threw"),
                                       ("throw_finalize", "finalize threw"), ("fail_rows", "displease"),
                                       ("bad_json", "payload")])
def test_what_a_plugin_does_is_its_own_result(client, deed, text):
    found = results(client, deed)
    assert found["bad"]["status"] == "error" and text in found["bad"]["error"]
    assert found["reward"]["status"] == "ok"
    assert results(client, "nothing")["bad"] == {"status": "ok", "error": None, "payload": {"fine": True}}


@pytest.mark.parametrize("deed", ["throw_validate", "invalid"])
def test_what_a_plugin_refuses_is_the_clients_error(client, deed):
    with pytest.raises(openai.BadRequestError):
        results(client, deed)
