"""Files of embedding checkpoints, drawn over the keys that sentence-transformers reads: what is served has its embeddings, everything
else is refused by the file and the key (tools/golden/sentence_embeddings.py is the judge)."""

import json
import os
import random
import subprocess

import httpx2
import numpy as np
import pytest
from conftest import DEMO, ROOT, is_instrumented, run_rudder, serving

PYTHON = ROOT / ".venv-models" / "bin" / "python"
TOOL = ROOT / "tools" / "golden" / "sentence_embeddings.py"
DRAWS = 60
FARTHEST = 2e-4  # of a number of an embedding, as a part of its length
TEXTS = ["The ship left the harbour at seven.", "a", "Where is the lamp? " * 9]
MODULES = "sentence_transformers.models."


def is_installed():
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", "import sentence_transformers"], capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(is_instrumented(), reason="about numbers, not about memory"),
    pytest.mark.skipif(not is_installed(), reason="tools/setup.sh models installs it"),
]


def draw_pooling(draw):
    mode = draw.choice(["lasttoken", "mean", "mean", "cls", "max", "weightedmean", "mean_sqrt_len_tokens", None])
    config = {draw.choice(["word_embedding_dimension", "embedding_dimension"]): 256}
    if draw.random() < 0.4:
        config["pooling_mode"] = draw.choice([mode or "lasttoken", [mode or "mean"], ["lasttoken", "mean"]])
    else:
        for name in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"):
            config["pooling_mode_" + name] = mode is not None and name.startswith(mode) and (mode != "mean" or name == "mean_tokens")
    if draw.random() < 0.5:
        config["include_prompt"] = draw.random() < 0.6
    return config


def draw_transformer(draw):
    config = {"max_seq_length": draw.choice([None, 16, 512]), "do_lower_case": draw.random() < 0.1}
    pool = {
        "transformer_task": draw.choice(["feature-extraction", "fill-mask"]),
        "modality_config": {"text": {"method": "forward", "method_output_name": draw.choice(["last_hidden_state", "hidden_states"])}},
        "module_output_name": "token_embeddings",
        "processing_kwargs": draw.choice([{}, {"text": {"max_length": 4, "truncation": True}}, {"text": {"add_special_tokens": False}}]),
        "unpad_inputs": draw.choice([None, False]),
        "query_length": 4,
        "document_length": 8,
        "model_args": draw.choice([{"torch_dtype": "float32"}, {"attn_implementation": "eager"}, {"subfolder": "x"}]),
        "tokenizer_args": draw.choice([{"padding_side": "left"}, {"model_max_length": 12}, {"truncation_side": "left"}]),
        "config_args": draw.choice([{}, {"rms_norm_eps": 0.3}, {"num_hidden_layers": 2}]),
    }
    for name in draw.sample(sorted(pool), draw.choice([0, 0, 1, 2])):
        config[name] = pool[name]
    if "modality_config" in config:
        config["module_output_name"] = "token_embeddings"
    return config


def draw_model(draw):
    config = {"__version__": {"sentence_transformers": "3.0.0"}, "similarity_fn_name": draw.choice([None, "cosine", "dot", "euclidean"])}
    if draw.random() < 0.6:
        config["prompts"] = {"query": "Find: ", "document": ""}
        config["default_prompt_name"] = draw.choice([None, "query", "query", "document"])
    if draw.random() < 0.4:
        config["truncate_dim"] = draw.choice([32, 100, 4096])
    if draw.random() < 0.1:
        config["model_type"] = draw.choice(["SentenceTransformer", "SparseEncoder"])
    return config


def draw_folder(folder, draw):
    folder.mkdir()
    modules = draw.choice([["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]] * 4 +
                          [["Transformer"], ["Transformer", "Pooling", "Dropout"], ["Transformer", "Normalize", "Pooling"]])
    paths = {"Transformer": "", "Pooling": draw.choice(["1_Pooling", "1_Pooling", "pool"]), "Normalize": "2_Normalize", "Dropout": "2_Dropout"}
    files = {
        "modules.json": [{"idx": i, "name": str(i), "path": paths[kind], "type": MODULES + kind} for i, kind in enumerate(modules)],
        paths["Pooling"] + "/config.json": draw_pooling(draw),
        "2_Dropout/config.json": {"dropout": 0.1},
        draw.choice(["sentence_bert_config.json"] * 3 + ["sentence_roberta_config.json"]): draw_transformer(draw),
        "config_sentence_transformers.json": draw_model(draw),
    }
    if draw.random() < 0.2:
        name = draw.choice(["sentence_embedding", "token_embeddings"])
        files["2_Normalize/config.json"] = {"module_input_name": name, "module_output_name": name}
    if draw.random() < 0.3:
        kept = json.loads((DEMO / "tokenizer_config.json").read_text())
        files["tokenizer_config.json"] = {**kept, "model_max_length": draw.choice([24, 1000000000000000019884624838656])}
    for file in DEMO.iterdir():
        if file.is_file() and file.name not in files:
            os.symlink(file, folder / file.name)
    for name, value in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    return folder


def test_drawn_files_are_obeyed_or_refused_by_name(tmp_path):
    seed = 20_477
    folders = [draw_folder(tmp_path / str(i), random.Random(seed + i)) for i in range(DRAWS)]
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    done = subprocess.run([PYTHON, TOOL, tmp_path / "texts.json", *folders], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    expected = json.loads(done.stdout[done.stdout.index("{"):])
    served = 0
    for folder in folders:
        dry = run_rudder("serve", folder, "--dry-run")
        if dry.returncode != 0:
            assert ".json" in dry.stderr, dry.stderr
            continue
        assert isinstance(expected[str(folder)], list), (folder, expected[str(folder)])
        served += 1
        with serving("--dtype", "float32", model=folder) as server:
            body = {"input": TEXTS, "truncate_prompt_tokens": -1, "truncation_side": "right"}
            data = httpx2.post(server.url + "/v1/embeddings", json=body, timeout=60).json()["data"]
        for one, other in zip(data, expected[str(folder)], strict=True):
            row, judge = np.array(one["embedding"]), np.array(other)
            assert row.shape == judge.shape, folder
            assert np.abs(row - judge).max() <= FARTHEST * np.linalg.norm(judge), folder
    assert served >= DRAWS // 8
