"""Random strings that look for trouble: every plane of Unicode, runs of spaces, added tokens inside
words, joiners, combining marks, right-to-left text, control characters, digits, byte-token spellings.
"""
import random

from make_tokenizers import corpus

SPACES = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\u0085",
          "\u180e", "\u200b", "\ufeff", "\u1680", "\x0b", "\x0c"]
MARKUP = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "[STRIP]", "word", "ok",
          "Ångström", "A\u030angstro\u0308m", "Straße", "STRASSE", "<s>", "</s>", "<unk>", "<0x41>",
          "<0xE2>", "▁", "▁▁", "<|im_", "Ġ", "Ċ", "##", "<|im_start|><|im_end|>"]
CONTRACTIONS = ["'s", "'S", "'ſ", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'LL", "'d", "'x", "’s", "''"]
MARKS = [chr(c) for c in (0x300, 0x301, 0x327, 0x334, 0x345, 0x308, 0x3099, 0x309A, 0x64B, 0x5B0,
                          0x93C, 0x1133B, 0x11930, 0x1AC1, 0x20E3, 0xFE0F)]
EMOJI = ["😀", "👨\u200d👩\u200d👧\u200d👦", "👍🏽", "🏳️\u200d🌈", "🇩🇪", "1️⃣", "❤️", "🔥"]
COMPOSED = ["é", "e\u0301", "ế", "한", "\u1112\u1161\u11ab", "ﬁ", "Ω", "Å", "２", "㍿", "ﷺ",
            "ǆ", "İ", "ẞ", "ς", "Σ", "\u0344", "\u0958", "㋿", "\ua7f2", "\U0001D15E"]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»…—„“”、。！？（）￥€₿")


def any_char(rng):
    plane = rng.random()
    if plane < 0.25:
        c = rng.randrange(0x20, 0x250)
    elif plane < 0.6:
        c = rng.randrange(0x250, 0x10000)
    elif plane < 0.85:
        c = rng.randrange(0x10000, 0x20000)
    elif plane < 0.95:
        c = rng.randrange(0x20000, 0x33000)
    else:
        c = rng.randrange(0x33000, 0x110000)
    return chr(c) if not 0xD800 <= c < 0xE000 else "\ufffd"


class TextSource:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.words = " ".join(corpus(400, seed=11)).split(" ")

    def part(self):
        rng = self.rng
        kind = rng.randrange(16)
        if kind < 5:
            return rng.choice(self.words) + rng.choice(["", " ", " "])
        if kind == 5:
            return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 4)))
        if kind == 6:
            return rng.choice(MARKUP)
        if kind == 7:
            return rng.choice(CONTRACTIONS)
        if kind == 8:
            return "".join(any_char(rng) for _ in range(rng.randint(1, 6)))
        if kind == 9:
            return "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 3)))
        if kind == 10:
            return rng.choice(EMOJI)
        if kind == 11:
            return "".join(rng.choice(COMPOSED) for _ in range(rng.randint(1, 3)))
        if kind == 12:
            return str(rng.randrange(10 ** rng.randint(1, 12)))
        if kind == 13:
            return "".join(rng.choice(PUNCTUATION) for _ in range(rng.randint(1, 4)))
        if kind == 14:
            return rng.choice(["a", " ", "\n", "ab", "=", "-", "あ", "▁"]) * rng.randint(2, 60)
        return chr(rng.randrange(0, 0x20))

    def text(self):
        return "".join(self.part() for _ in range(self.rng.randint(0, 9)))
