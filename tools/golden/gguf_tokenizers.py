#!/usr/bin/env python3
"""Token ids of texts by the tokenizer that a GGUF file's lists were taken from.

    .venv-models/bin/python tools/golden/gguf_tokenizers.py FILE.gguf TEXTS.json

A list of "llama" becomes a SentencePiece model of type BPE, with the same pieces, scores and types. Lists of "gpt2" become a BPE of the
package `tokenizers` with the pre-tokenizer that the model was published with. Prints a list of lists of ids, with what the model begins
a text with.
"""

import json
import pathlib
import sys

import gguf

MODEL = "tokenizer.ggml."


def read(file):
    fields = gguf.GGUFReader(file).fields
    return {name.removeprefix(MODEL): field.contents() for name, field in fields.items() if name.startswith(MODEL)}


def sentencepiece(of):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb

    model = pb.ModelProto()
    for token, score, kind in zip(of["tokens"], of["scores"], of["token_type"]):
        # A list has spaces where a user-defined piece had U+2581.
        kind = 2 if token == of["tokens"][of["unknown_token_id"]] else kind
        model.pieces.add(piece=token.replace(" ", "\u2581") if kind == 4 else token, score=score, type=kind)
    model.trainer_spec.model_type = pb.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.unk_id, model.trainer_spec.bos_id, model.trainer_spec.eos_id = of["unknown_token_id"], of["bos_token_id"], of["eos_token_id"]
    model.trainer_spec.pad_id = of["padding_token_id"]
    names = of["tokens"]
    model.trainer_spec.unk_piece, model.trainer_spec.bos_piece = names[of["unknown_token_id"]], names[of["bos_token_id"]]
    model.trainer_spec.eos_piece, model.trainer_spec.pad_piece = names[of["eos_token_id"]], names[of["padding_token_id"]]
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = of["add_space_prefix"]
    model.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def published_pieces(pre):
    from tokenizers import pre_tokenizers as parts

    assert pre == "smollm", pre
    return parts.Sequence([parts.Digits(individual_digits=True), parts.ByteLevel(add_prefix_space=False, use_regex=True)])


def byte_level(of):
    from tokenizers import AddedToken, Tokenizer, models

    merges = [tuple(merge.split(" ")) for merge in of["merges"]]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(of["tokens"])}, merges))
    tokenizer.pre_tokenizer = published_pieces(of["pre"])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token, kind in zip(of["tokens"], of["token_type"]) if kind == 3])
    return tokenizer


def main():
    of, texts = read(sys.argv[1]), json.loads(pathlib.Path(sys.argv[2]).read_text())
    begin = [of["bos_token_id"]] if of.get("add_bos_token") else []
    if of["model"] == "llama":
        model = sentencepiece(of)
        ids = [model.encode(text) for text in texts]
    else:
        model = byte_level(of)
        ids = [model.encode(text).ids for text in texts]
    print(json.dumps([begin + one for one in ids]))


if __name__ == "__main__":
    main()
