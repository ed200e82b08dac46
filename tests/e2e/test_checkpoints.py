"""What is said of a model beside its weights: overrides of config.json and generation_config.json, templates, files of
embedding checkpoints, and pointers in place of files."""

import json
import math
import os
import subprocess

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


# Keys of transformers' GenerationConfig: with a value that changes the tokens of an answer, and one that does not.
UNSERVED = {
    "min_length": (5, 0), "min_new_tokens": (5, None), "stop_strings": (["x"], []), "num_beams": (4, 1), "penalty_alpha": (0.6, None),
    "dola_layers": ("low", None), "top_h": (0.4, None), "typical_p": (0.9, 1.0), "epsilon_cutoff": (3e-4, 0.0), "eta_cutoff": (3e-4, 0.0),
    "encoder_repetition_penalty": (1.3, 1.0), "no_repeat_ngram_size": (3, 0), "encoder_no_repeat_ngram_size": (3, 0),
    "bad_words_ids": ([[7]], None), "force_words_ids": ([[7]], None), "constraints": ([{}], []), "forced_bos_token_id": (0, None),
    "forced_eos_token_id": (7, None), "exponential_decay_length_penalty": ([9, 1.1], None), "suppress_tokens": ([7], []),
    "begin_suppress_tokens": ([7], None), "sequence_bias": ([[[7], -3.5]], {}), "token_healing": (True, False), "guidance_scale": (1.5, 1),
    "watermarking_config": ({"bias": 2.5}, None), "num_return_sequences": (3, 1),
}
READ = {"temperature", "top_p", "min_p", "top_k", "repetition_penalty", "max_new_tokens", "eos_token_id"}
WITHOUT_EFFECT = {
    "max_length": 20, "early_stopping": True, "max_time": 1.5, "do_sample": False, "use_mtp": True, "use_cache": False,
    "cache_implementation": "static", "cache_config": {"a": 1}, "max_cache_len": 9, "length_penalty": 1.5, "renormalize_logits": True,
    "remove_invalid_values": True, "output_attentions": True, "output_hidden_states": True, "output_scores": True, "output_logits": True,
    "return_dict_in_generate": True, "pad_token_id": 3, "bos_token_id": 3, "decoder_start_token_id": 3, "is_assistant": True,
    "num_assistant_tokens": 9, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.3,
    "prompt_lookup_num_tokens": 9, "max_matching_ngram_size": 2, "assistant_early_exit": 3, "assistant_lookbehind": 9,
    "target_lookbehind": 9, "assistant_ensemble_weight": 0.3, "speculation_type": "x", "compile_config": {"a": 1}, "disable_compile": True,
    "continuous_batching_config": {"a": 1}, "low_memory": True, "diversity_penalty": 0.3, "num_beam_groups": 2, "prefill_chunk_size": 9,
    "_from_model_config": True, "transformers_version": "5.17.0",
}
NONE_OF_TRANSFORMERS = {"seed": 5, "chat_format": "x"}  # it keeps them and reads them nowhere


def test_what_generation_config_says_besides_is_refused_or_without_effect(tmp_path):
    for key, (value, neutral) in UNSERVED.items():
        folder = copy_of_demo(tmp_path / key, **{"generation_config.json": json.dumps({key: value})})
        assert f"generation_config.json:{key}" in refusal(model=folder)
        assert run_rudder("serve", folder, "--dry-run", "--generation-config", "vllm").returncode == 0
        (folder / "generation_config.json").write_text(json.dumps({key: neutral}))
        assert run_rudder("serve", folder, "--dry-run").returncode == 0, key
    folder = copy_of_demo(tmp_path / "without", **{"generation_config.json": json.dumps({**WITHOUT_EFFECT, **NONE_OF_TRANSFORMERS})})
    assert run_rudder("serve", folder, "--dry-run").returncode == 0


def test_ends_that_are_no_tokens_are_told_before_a_start(tmp_path):
    config = json.loads((DEMO / "config.json").read_text())
    for file, text in (("generation_config.json", {"eos_token_id": [0, 2560]}), ("config.json", {**config, "eos_token_id": 99999})):
        folder = copy_of_demo(tmp_path / file, **{file: json.dumps(text)})
        done = run_rudder("serve", folder, "--dry-run")
        assert done.returncode != 0 and f"{file}:eos_token_id" in done.stderr, done.stderr


def test_ends_of_a_folders_file_and_of_a_texts_config_end_answers(tmp_path):
    def answer(model=DEMO, *flags):
        with serving(*flags, model=model) as server:
            body = {"prompt": "Once", "max_tokens": 8, "temperature": 0, "return_token_ids": True}
            return httpx2.post(server.url + "/v1/completions", json=body, timeout=60).json()["choices"][0]

    ids = answer()["token_ids"]
    assert len(ids) == 8
    end = next(token for token in ids if token != ids[0])
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    config = json.loads((DEMO / "config.json").read_text())
    wrapped = {**{key: value for key, value in config.items() if key != "eos_token_id"}, "text_config": {"eos_token_id": end}}
    folder = copy_of_demo(tmp_path / "wrapped", **{"config.json": json.dumps(wrapped)})
    for choice in (answer(DEMO, "--generation-config", str(tmp_path / "own")), answer(folder)):
        assert choice["finish_reason"] == "stop" and len(choice["token_ids"]) <= ids.index(end) + 1, choice


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".venv-models" / "bin" / "python").exists(), reason="tools/setup.sh models installs it")
def test_every_key_of_generation_config_has_a_verdict():
    code = "import json, transformers; print(json.dumps(list(transformers.GenerationConfig().to_dict())))"
    done = subprocess.run([ROOT / ".venv-models" / "bin" / "python", "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert set(json.loads(done.stdout)) == set(UNSERVED) | set(WITHOUT_EFFECT) | READ


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
    folder = copy_of_demo(tmp_path / "none", **{"modules.json": modules("Transformer")})
    assert "modules.json" in refusal(model=folder)
    told = {"prompts": {"query": "Find: "}, "default_prompt_name": "query", "truncate_dim": 40}
    folder = copy_of_demo(tmp_path / "told", **{"modules.json": modules("Transformer", "Pooling", "Normalize"), "1_Pooling/config.json": mean,
                                                "config_sentence_transformers.json": json.dumps(told),
                                                "sentence_bert_config.json": json.dumps({"max_seq_length": 9})})
    with serving(model=folder) as server:
        ids = httpx2.post(server.url + "/tokenize", json={"prompt": "Find: a b c"}, timeout=60).json()["tokens"]
        whole = embed(server, input=ids, dimensions=256)
        assert embed(server) == whole[:40]
        assert math.isclose(sum(x * x for x in embed(server, normalize=True)), 1, rel_tol=1e-5)
        answer = httpx2.post(server.url + "/v1/embeddings", json={"input": "a b c d e f g h i j k"}, timeout=60)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
    for name, file, wrong, key in (
        ("pooled", "1_Pooling/config.json", {**json.loads(mean), "include_prompt": False}, "include_prompt"),
        ("normed", "2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "module_input_name"),
        ("sparse", "config_sentence_transformers.json", {**told, "model_type": "SparseEncoder"}, "model_type"),
        ("asked", "config_sentence_transformers.json", {"default_prompt_name": "nowhere"}, "default_prompt_name"),
        ("changed", "sentence_bert_config.json", {"config_args": {"rms_norm_eps": 0.3}}, "config_args"),
        ("cut", "sentence_roberta_config.json", {"processing_kwargs": {"text": {"max_length": 4}}}, "processing_kwargs.text"),
        ("rows", "sentence_bert_config.json", {"tokenizer_args": {"truncation_side": "left"}}, "tokenizer_args.truncation_side"),
    ):
        files = {"modules.json": modules("Transformer", "Pooling", "Normalize"), "1_Pooling/config.json": mean,
                 "config_sentence_transformers.json": json.dumps(told), file: json.dumps(wrong)}
        said = refusal(model=copy_of_demo(tmp_path / name, **files))
        assert file in said and key in said, said
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
