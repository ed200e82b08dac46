#!/usr/bin/env python3
"""Turns a checkpoint into a Hugging Face model folder: bf16 weights, config.json and generation_config.json."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from asynct_model import AsyncTConfig, exported
from chat_format import END_OF_TEXT, TURN_END
from model import Config
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from train_draft import DRAFT


ARCHS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **asdict(Config()), "hidden_act": "silu"},
    "asynct": {
        "architectures": ["AsyncTForCausalLM"], "model_type": "asynct", **asdict(AsyncTConfig()), "hidden_act": "relu"},
    "draft": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **asdict(DRAFT), "hidden_act": "silu"},
}


def model_config(arch, end_of_text, turn_end):
    return {
        **ARCHS[arch],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": end_of_text,
        "eos_token_id": turn_end,
        "initializer_range": 0.02,
        "mlp_bias": False,
        "pad_token_id": end_of_text,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def generation_config(end_of_text, turn_end):
    return {
        "bos_token_id": end_of_text,
        "do_sample": False,
        "eos_token_id": [turn_end, end_of_text],
        "pad_token_id": end_of_text,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("model", type=Path, help="folder with tokenizer.json, to be completed")
    parser.add_argument("--arch", choices=list(ARCHS), default="llama")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    ends = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(TURN_END)
    weights = exported(load_file(str(args.checkpoint)))
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(weights, str(args.model / "model.safetensors"), metadata={"format": "pt"})
    for name, content in (("config", model_config(args.arch, *ends)), ("generation_config", generation_config(*ends))):
        (args.model / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
