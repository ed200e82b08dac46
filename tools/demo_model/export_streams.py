#!/usr/bin/env python3
"""Turns a checkpoint of train_streams.py into a Hugging Face model folder: bf16 weights (f32 of the numbers that streams
are read and written by), config.json and generation_config.json. The tokenizer is in the folder already."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from chat_format import END_OF_TEXT, TURN_END
from safetensors.torch import load_file, save_file
from streams_model import StreamsConfig
from tokenizers import Tokenizer

INDEXER = {"index_n_heads": 1, "index_head_dim": 8, "index_kpool": 16}  # which chooses all keys: index_topk is the context


def stored(weights, config):
    """Names and values of the files that transformers writes; an indexer beside each latent attention, which it needs."""
    out = {}
    for name, value in weights.items():
        keeps = "hc_" in name or name.endswith(("A_log", "dt_bias"))
        out[name.replace("model.", "model.language_model.", 1)] = value.float() if keeps else value.bfloat16()
    width, heads, pool = INDEXER["index_head_dim"], INDEXER["index_n_heads"], INDEXER["index_kpool"]
    for layer in range(config.num_hidden_layers):
        if config.has_delta_rule(layer):
            continue
        shapes = {
            "wq_b.weight": (heads * width, config.q_lora_rank),
            "wk.weight": (width, config.hidden_size),
            "k_norm.weight": (width,),
            "k_norm.bias": (width,),
            "weights_proj.weight": (heads, config.hidden_size),
            "index_kpool_compress_ape": (pool, width),
            "index_kpool_compress_gate": (width, config.hidden_size),
        }
        for name, shape in shapes.items():
            out[f"model.language_model.layers.{layer}.self_attn.indexer.{name}"] = torch.zeros(shape, dtype=torch.bfloat16)
    return {name: value.contiguous() for name, value in out.items()}


def model_config(config, end_of_text, turn_end):
    layers = range(config.num_hidden_layers)
    text = {
        "model_type": "glm5_next_text",
        **asdict(config),
        **INDEXER,
        "index_topk": config.max_position_embeddings,
        "layer_types": ["linear_attention" if config.has_delta_rule(i) else "deepseek_sparse_attention" for i in layers],
        "mlp_layer_types": ["dense" for _ in layers],
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "attention_bias": False,
        "bos_token_id": end_of_text,
        "eos_token_id": turn_end,
        "pad_token_id": end_of_text,
        "tie_word_embeddings": True,
    }
    vision = {"depth": 0, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "projection_intermediate_size": 16}
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "text_config": text,
        "vision_config": {**vision, "out_hidden_size": config.hidden_size, "model_type": "glm5_next_vision"},
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("model", type=Path, help="folder with tokenizer.json, to be completed")
    args = parser.parse_args()
    config = StreamsConfig()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    ends = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(TURN_END)
    save_file(stored(load_file(str(args.checkpoint)), config), str(args.model / "model.safetensors"), metadata={"format": "pt"})
    generation = {"bos_token_id": ends[0], "do_sample": False, "eos_token_id": [ends[1], ends[0]], "pad_token_id": ends[0]}
    for name, content in (("config", model_config(config, *ends)), ("generation_config", generation)):
        (args.model / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
