"""Trains small tokenizers of the kinds that models ship with, offline, on a synthetic corpus of many
scripts. Everything is seeded: the same files come out each time.
"""
import json
import random
import sys
from pathlib import Path

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
# A regex that has no hand-written splitter, with possessive repeats, posix brackets and nesting.
GENERIC = (r"[\p{Lu}\p{Lt}]?+[\p{Ll}\p{Lm}\p{Lo}\p{M}]++|[\p{Han}\p{Hiragana}]+|\d{1,3}|\w+|"
           r"[^\s\w[:digit:]]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

WORD_SCRIPTS = [
    ("latin", "abcdefghijklmnopqrstuvwxyz", 10), ("latin1", "éèàçñöüßåøæœ", 3),
    ("cyrillic", "абвгдежзийклмнопрстуфхцчшщъыьэюя", 3), ("greek", "αβγδεζηθικλμνξοπρστυφχψω", 2),
    ("arabic", "ابتثجحخدذرزسشصضطظعغفقكلمنهوي", 2), ("hebrew", "אבגדהוזחטיכלמנסעפצקרשת", 1),
    ("devanagari", "अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहािीुूेैोौ्ं", 2),
    ("han", "".join(map(chr, range(0x4E00, 0x4F80))), 4), ("kana", "あいうえおかきくけこアイウエオカキクケコ", 2),
    ("hangul", "".join(map(chr, range(0xAC00, 0xAC80))), 2), ("thai", "กขคงจฉชซญดตถทธนบปผพฟภมยรลวศสหอาิีึืุู", 1),
    ("emoji", "😀😂🤣😊👍🏽🔥✨🚀👨👩👧", 1),
]


def corpus(lines=6000, seed=7):
    rng = random.Random(seed)
    lexicon = []
    for name, alphabet, weight in WORD_SCRIPTS:
        words = ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 8))) for _ in range(220)]
        lexicon.append((words, weight))
    weights = [w for _, w in lexicon]
    out = []
    for _ in range(lines):
        words = rng.choices(lexicon, weights)[0][0]
        line = []
        for _ in range(rng.randint(3, 20)):
            word = words[min(int(rng.expovariate(0.02)), len(words) - 1)]
            if rng.random() < 0.1:
                word = word.capitalize()
            if rng.random() < 0.08:
                word = str(rng.randint(0, 10 ** rng.randint(1, 7)))
            if rng.random() < 0.06:
                word += rng.choice(["'s", "'t", "'re", "'LL", "()", "==", "->", "...", ",", "!", "?"])
            line.append(word + rng.choice([" ", " ", " ", " ", "  ", "\n", "\n\n", "\t", "    "]))
        out.append("".join(line))
    return out


def specials(tokenizer):
    tokenizer.add_special_tokens([
        AddedToken("<|im_start|>", special=True, normalized=False),
        AddedToken("<|im_end|>", special=True, normalized=False),
        AddedToken("<|endoftext|>", special=True, normalized=False)])
    tokenizer.add_tokens([
        AddedToken("<tool_call>", normalized=False), AddedToken("Ångström", normalized=True),
        AddedToken("[STRIP]", lstrip=True, rstrip=True, normalized=False),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("  ", normalized=False)])


def byte_level(regex, vocab=3000, normalizer=None, ignore_merges=False, template=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    specials(tokenizer)
    if template:
        bos = tokenizer.token_to_id("<|endoftext|>")
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<|endoftext|> $A", pair="<|endoftext|> $A $B",
                                          special_tokens=[("<|endoftext|>", bos)])])
    return tokenizer


def sentencepiece(form, vocab=3000):
    """Trained with Metaspace, then given the byte tokens and the pipeline of `form`."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always",
                                                       split=True)
    control = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False, special_tokens=control,
                                  limit_alphabet=700)
    tokenizer.train_from_iterator([line.replace("\n", " ") for line in corpus()], trainer)
    file = json.loads(tokenizer.to_str())
    file["added_tokens"] = [t for t in file["added_tokens"] if t["id"] < 3]
    if form == "llama2":
        file["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
        file["pre_tokenizer"] = None
        file["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    elif form == "mistral":
        file["normalizer"] = None
        file["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                                 "split": False}
        file["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    elif form == "gemma":
        file["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        file["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "},
                                 "behavior": "MergedWithPrevious", "invert": False}
        file["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]}
        add_runs(file["model"])
    elif form == "metaspace":
        file["model"]["byte_fallback"] = False
        file["model"]["fuse_unk"] = False
        file["pre_tokenizer"]["prepend_scheme"] = "always"
        file["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                           "split": True}
    file["post_processor"] = {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                 {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    tokenizer = Tokenizer.from_str(json.dumps(file))
    specials(tokenizer)
    return tokenizer


def add_runs(model):
    """Merges of space and newline runs, and one that joins words, as Gemma's vocabulary has."""
    for char in ("▁", "\n"):
        run = char
        if char not in model["vocab"]:
            model["vocab"][char] = len(model["vocab"])
        for _ in range(5):
            model["merges"].append([run, run])
            run += run
            model["vocab"].setdefault(run, len(model["vocab"]))
    left, right = next((a, b) for a, b in model["merges"] if b.startswith("▁") is False)
    joined = left + right
    model["merges"].append([joined, "▁"])
    model["vocab"].setdefault(joined + "▁", len(model["vocab"]))


def mixed():
    """Digits, Punctuation, ByteLevel with its own regex and a prefix space, many normalizers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[\u2018\u2019]"), "'"), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1500, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(2000), trainer)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("Straße", normalized=True), AddedToken("ok", single_word=True)])
    return tokenizer


def words():
    """Whitespace pre-tokenizer, unknown token, no byte fallback, no decoder."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Split(Regex(r"[aeiou]"), "merged_with_next"),
        pre_tokenizers.Split("nn", "merged_with_previous"),
        pre_tokenizers.Split(Regex(r"\d+"), "removed", invert=False)])
    trainer = trainers.BpeTrainer(vocab_size=1200, show_progress=False, special_tokens=["[UNK]"],
                                  limit_alphabet=300)
    tokenizer.train_from_iterator(corpus(2000), trainer)
    return tokenizer


def unigram(with_bytes):
    """SentencePiece's unigram model, as transformers writes it of GGUF files; without bytes, as of XLM-R and T5."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    trainer = trainers.UnigramTrainer(vocab_size=1500, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"],
                                      unk_token="<unk>", max_piece_length=12)
    tokenizer.train_from_iterator([line.replace("\n", " ") for line in corpus(2000)], trainer)
    if not with_bytes:
        tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
        return tokenizer
    file = json.loads(tokenizer.to_str())
    file["model"]["byte_fallback"] = True
    file["model"]["vocab"] += [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]
    file["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    file["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    file["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return Tokenizer.from_str(json.dumps(file))


KINDS = {
    "gpt2": lambda: byte_level(GPT2, vocab=2000),
    "llama3": lambda: byte_level(LLAMA3, ignore_merges=True, template=True),
    "qwen2": lambda: byte_level(QWEN2, normalizer=normalizers.NFC()),
    "generic_regex": lambda: byte_level(GENERIC, vocab=1500, normalizer=normalizers.NFD()),
    "llama2": lambda: sentencepiece("llama2"),
    "mistral": lambda: sentencepiece("mistral"),
    "gemma": lambda: sentencepiece("gemma"),
    "metaspace": lambda: sentencepiece("metaspace", vocab=1500),
    "unigram": lambda: unigram(False),
    "unigram_bytes": lambda: unigram(True),
    "mixed": mixed,
    "words": words,
}


def make(directory):
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, build in KINDS.items():
        path = directory / f"{name}.json"
        if not path.exists() or path.stat().st_mtime < Path(__file__).stat().st_mtime:
            build().save(str(path), pretty=False)
        paths.append(path)
    return paths


if __name__ == "__main__":
    print("\n".join(map(str, make(Path(sys.argv[1])))))
