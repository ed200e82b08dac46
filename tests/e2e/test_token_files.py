"""special_tokens_map.json and added_tokens.json beside a config that says nothing of tokens: names, ends and marks are known to the
server as they are to transformers (config_tokens_test.cpp compares drawn files)."""

import json
import shutil

import httpx2
import pytest

from conftest import DEMO, run_rudder, serving

END = "<|im_end|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    copy = tmp_path_factory.mktemp("tokens") / "model"
    shutil.copytree(DEMO, copy)
    (copy / "generation_config.json").unlink()
    model = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({key: value for key, value in model.items() if key != "eos_token_id"}))
    config = json.loads((copy / "tokenizer_config.json").read_text())
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        del config[name]
    config["chat_template"] = "{{ eos_token }}" + config["chat_template"]
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["content"] != END]
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    (copy / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": END, "lstrip": False}}))
    (copy / "added_tokens.json").write_text(json.dumps({END: tokenizer["model"]["vocab"][END]}))
    return copy


def test_names_and_tokens_of_side_files_are_known(folder):
    with serving("--device", "cpu", model=folder) as server:
        def post(path, **body):
            answer = httpx2.post(server.url + path, json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            return answer.json()

        assert len(post("/tokenize", prompt=END, add_special_tokens=False)["tokens"]) == 1
        chat = [{"role": "user", "content": "Tell me a story."}]
        rendered = post("/v1/chat/completions/render", messages=chat)
        assert rendered["prompt"].startswith(END + "<|im_start|>user")
        choice = post("/v1/chat/completions", messages=chat, temperature=0, max_tokens=1500)["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert END not in choice["message"]["content"]


@pytest.mark.parametrize("file, text, where", [
    ("special_tokens_map.json", '{"eos_token": 1}', "special_tokens_map.json: eos_token"),
    ("added_tokens.json", '{"<new>": 1}', "added_tokens.json"), ("added_tokens.json", "[]", "added_tokens.json")])
def test_wrong_side_files_end_the_start(folder, tmp_path, file, text, where):
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    (copy / file).write_text(text)
    done = run_rudder("info", copy)
    assert done.returncode != 0 and where in done.stderr, done.stderr
