"""What is said of a model beside its weights: overrides of config.json and generation_config.json, templates, files of
embedding checkpoints, and pointers in place of files."""

import json
import math
import os

import httpx2
import pytest
from conftest import DEMO, ROOT, run_rudder, serving

GOLDEN = ROOT / "tests" / "golden"
YARN = json.dumps({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048})


def copy_of_demo(folder, **changes):
    """The demo model's folder with other files: text, or keys of a JSON file that is there."""
    folder.mkdir()
    for file in DEMO.iterdir():
        if file.is_file() and file.name not in changes:
            os.symlink(file, folder / file.name)
    for name, change in changes.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(change, dict) and (DEMO / name).exists():
            change = {**json.loads((DEMO / name).read_text()), **change}
        path.write_text(change if isinstance(change, str) else json.dumps(change))
    return folder


def refusal(*flags, model=DEMO):
    done = run_rudder("serve", model, "--dry-run", *flags)
    assert done.returncode != 0, done.stdout
    return done.stderr


@pytest.mark.parametrize("flags", [("--rope-scaling", YARN), ("--hf-overrides", json.dumps({"rope_parameters": json.loads(YARN)}))])
def test_the_context_is_what_the_rope_stretches_it_to(flags):
    with serving(*flags, "--kv-cache-memory-bytes", "64M") as server:
        (model,) = server.client().models.list().data
        assert model.model_dump()["max_model_len"] == 8192
        text = " word" * 1200
        answer = server.client().completions.create(model=model.id, prompt=text * 2, max_tokens=2)
        assert answer.usage.prompt_tokens > 2048


def test_overrides_without_an_effect_are_refused():
    assert "hf-overrides.rope_scalling" in refusal("--hf-overrides", '{"rope_scalling": {}}')
    assert "num_experts" in refusal("--hf-overrides", '{"num_experts": 8}')
    assert "max-model-len" in refusal("--rope-scaling", YARN, "--max-model-len", "8193")


def test_defaults_of_requests_are_judged_at_start(tmp_path):
    wrong = copy_of_demo(tmp_path / "wrong", **{"generation_config.json": {"temperature": -1.5}})
    assert "temperature" in refusal(model=wrong)
    assert "top_p" in refusal("--override-generation-config", '{"top_p": 0}')
    assert "temprature" in refusal("--override-generation-config", '{"temprature": 1}')
    assert "generation-config" in refusal("--generation-config", str(tmp_path / "nowhere"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "generation_config.json").write_text('{"max_new_tokens": 7, "temperature": 0.25}')
    for flags, tokens in (
        (("--generation-config", "vllm"), None),
        (("--generation-config", str(tmp_path / "own")), 7),
        (("--generation-config", str(tmp_path / "own"), "--override-generation-config", '{"max_new_tokens": 5}'), 5),
        (("--override-generation-config", '{"max_new_tokens": 3}'), 3),
    ):
        with serving(*flags, model=DEMO) as server:
            body = {"messages": [{"role": "user", "content": "Write numbers."}], "ignore_eos": True, "temperature": 0}
            if tokens is None:
                body["max_tokens"] = 4
            answer = httpx2.post(server.url + "/v1/chat/completions", json=body, timeout=60).json()
            assert answer["usage"]["completion_tokens"] == (tokens or 4)


def test_templates_of_every_file_and_their_variables(tmp_path):
    config = json.loads((DEMO / "tokenizer_config.json").read_text())
    del config["chat_template"]
    bare = json.dumps(config)
    files = {
        "jinja": {"chat_template.jinja": "J {{ mood }} {{ messages[0].content }}",
                  "additional_chat_templates/tool_use.jinja": "T {{ tools | length }}"},
        "old": {"chat_template.json": json.dumps({"chat_template": "O {{ mood }} {{ messages[0].content }}"})},
    }
    for name, extra in files.items():
        folder = copy_of_demo(tmp_path / name, **{"tokenizer_config.json": bare, **extra})
        with serving("--default-chat-template-kwargs", '{"mood": "glad"}', model=folder) as server:

            def prompt(**fields):
                body = {"messages": [{"role": "user", "content": "x"}], **fields}
                ids = httpx2.post(server.url + "/tokenize", json=body, timeout=60).json()["tokens"]
                return httpx2.post(server.url + "/detokenize", json={"tokens": ids}, timeout=60).json()["prompt"]

            letter = name[0].upper()
            assert prompt() == f"{letter} glad x"
            assert prompt(chat_template_kwargs={"mood": "sad"}) == f"{letter} sad x"
    assert "default-chat-template-kwargs" in refusal("--default-chat-template-kwargs", "[1]")


def test_files_of_an_embedding_checkpoint_are_obeyed(tmp_path):
    def modules(*kinds):
        paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize", "Dense": "2_Dense"}
        return json.dumps([{"idx": i, "name": str(i), "path": paths[kind], "type": f"sentence_transformers.models.{kind}"}
                           for i, kind in enumerate(kinds)])

    mean = json.dumps({"word_embedding_dimension": 256, "pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False})
    folder = copy_of_demo(tmp_path / "mean", **{"modules.json": modules("Transformer", "Pooling"), "1_Pooling/config.json": mean})

    def embed(server, **fields):
        answer = httpx2.post(server.url + "/v1/embeddings", json={"input": "a b c", **fields}, timeout=60)
        return answer.json()["data"][0]["embedding"]

    with serving(model=folder) as server:
        assert embed(server) == embed(server, pooling="mean", normalize=False)
        assert not math.isclose(sum(x * x for x in embed(server)), 1, rel_tol=1e-3)
    last = json.dumps({"embedding_dimension": 256, "pooling_mode": "lasttoken", "include_prompt": True})
    folder = copy_of_demo(tmp_path / "last", **{"modules.json": modules("Transformer", "Pooling", "Normalize"),
                                                "1_Pooling/config.json": last})
    with serving(model=folder) as server:
        assert embed(server) == embed(server, pooling="last", normalize=True)
    odd = json.dumps({"pooling_mode_cls_token": True})
    folder = copy_of_demo(tmp_path / "cls", **{"modules.json": modules("Transformer", "Pooling"), "1_Pooling/config.json": odd})
    assert "cls_token" in refusal(model=folder) and "1_Pooling/config.json" in refusal(model=folder)
    folder = copy_of_demo(tmp_path / "dense", **{"modules.json": modules("Transformer", "Pooling", "Dense"), "1_Pooling/config.json": mean})
    assert "Dense" in refusal(model=folder)
    # A mean comes beside what a file switches on, unless the file has the word: two poolings.
    both = json.dumps({"pooling_mode_lasttoken": True})
    folder = copy_of_demo(tmp_path / "both", **{"modules.json": modules("Transformer", "Pooling"), "1_Pooling/config.json": both})
    assert "lasttoken, mean_tokens" in refusal(model=folder)
    folder = copy_of_demo(tmp_path / "early", **{"modules.json": modules("Transformer", "Normalize", "Pooling"), "1_Pooling/config.json": mean})
    assert "modules.json: [1].type" in refusal(model=folder)
    folder = copy_of_demo(tmp_path / "lower", **{"modules.json": modules("Transformer", "Pooling"), "1_Pooling/config.json": mean,
                                                 "sentence_bert_config.json": json.dumps({"max_seq_length": 128, "do_lower_case": True})})
    assert "sentence_bert_config.json: do_lower_case" in refusal(model=folder)


def test_a_pointer_of_git_lfs_is_told_as_one(tmp_path):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 5\n"
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        folder = copy_of_demo(tmp_path / name, **{name: pointer})
        assert "Git LFS pointer" in refusal(model=folder)


def test_tensors_are_judged_before_a_start(tmp_path):
    """By `info`, `doctor` and --dry-run: an index that names a wrong shard, or a file without what the config asks for."""
    sharded = GOLDEN / "llama-sharded"
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    names = sorted(index["weight_map"])
    other = next(file for file in index["weight_map"].values() if file != index["weight_map"][names[0]])
    wrong_shard = {**index, "weight_map": {**index["weight_map"], names[0]: other}}
    config = json.loads((GOLDEN / "llama2" / "config.json").read_text())
    for name, files, named in (
        ("shard", {"config.json": json.loads((sharded / "config.json").read_text()),
                   "model.safetensors.index.json": wrong_shard}, names[0]),
        ("layers", {"config.json": {**config, "num_hidden_layers": 3}}, "model.layers.2."),
        ("fewer", {"config.json": {**config, "num_hidden_layers": 1}}, "model.layers.1."),
        ("shape", {"config.json": {**config, "intermediate_size": 32}}, "mlp."),
    ):
        folder = tmp_path / name
        folder.mkdir()
        for file in (sharded if name == "shard" else GOLDEN / "llama2").glob("*.safetensors"):
            os.symlink(file, folder / file.name)
        for file in DEMO.glob("tokenizer*"):
            os.symlink(file, folder / file.name)
        for file, content in files.items():
            (folder / file).write_text(json.dumps(content))
        for command in (["info", folder], ["doctor", folder], ["serve", folder, "--dry-run"]):
            done = run_rudder(*command)
            assert done.returncode == 1 and named in done.stdout + done.stderr, (name, command, done.stdout, done.stderr)
