#!/usr/bin/env python3
"""Trains the demo tokenizer: a byte-level BPE that splits as Qwen2's does, so that each digit is a token."""

import argparse
import itertools
import json
import random
from pathlib import Path

from chat_format import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS, TURN_END
from corpus import CONTEXT, documents
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(vocab_size, document_count, seed):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL_TOKENS, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    stream = itertools.islice(documents(random.Random(f"tokenizer {seed}")), document_count)
    tokenizer.train_from_iterator(stream, trainer)
    return tokenizer


def config():
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_max_length": CONTEXT,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for tokenizer.json and tokenizer_config.json")
    parser.add_argument("--vocab-size", type=int, default=2560)
    parser.add_argument("--documents", type=int, default=30000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train(args.vocab_size, args.documents, args.seed)
    tokenizer.save(str(args.out / "tokenizer.json"))
    (args.out / "tokenizer_config.json").write_text(json.dumps(config(), indent=2) + "\n")
    print(f"tokenizer: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
