#!/usr/bin/env python3
"""What is committed in tests/golden was made of the cases as they are now: `python3 tools/test_goldens.py`. What a case
says (tools/golden/cases.py) is compared with the digest in meta.json, which the generator wrote, and with config.json."""

import hashlib
import json
import math
import pathlib
import struct
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools" / "golden"))

import cases  # noqa: E402
import dense_cases  # noqa: E402
import hybrid_cases  # noqa: E402
import quantised_cases  # noqa: E402

CASES = cases.CASES + hybrid_cases.HYBRIDS + dense_cases.DENSE
GOLDEN = ROOT / "tests" / "golden"
# Of an earlier case, or of none yet: to be made; a name that is made goes from here. The assistant is of the model beside it.
OLD = {"exaone4-full", "cwm", "qwen2-5-vl",
       "falcon-h1", "nemotron-h", "bamba"}
ASSISTANT = ROOT / "tests" / "draft_heads" / "gemma4-assistant"
# A layout of transformers 4 or of a published file: make_golden.to_old_style.
REWRITTEN = {"rope_parameters", "layer_types", "dtype", "global_head_dim", "num_global_key_value_heads", "per_layer_config"}


def read(path):
    return json.loads(path.read_text())


def is_short(number):
    """Whether bfloat16 holds it."""
    bits = struct.unpack("<I", struct.pack("<f", number))[0]
    return bits & 0xFFFF == 0 and struct.unpack("<f", struct.pack("<f", number))[0] == number


def numbers_of(config):
    """(key, number) of every real number, in objects and lists too."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from numbers_of(value)
        elif isinstance(value, float):
            yield key, value


def differences(wanted, found, where=""):
    """Keys of `wanted` that `found` has otherwise."""
    for key, value in wanted.items():
        if key in REWRITTEN or key not in found:
            continue
        if isinstance(value, dict):
            yield from differences(value, found[key], f"{where}{key}.")
        elif value is not None and list_of(found[key]) != list_of(value):
            yield f"{where}{key} is {found[key]}, of the case {value}"


def list_of(value):
    return list(value) if isinstance(value, (list, tuple)) else value


class Goldens(unittest.TestCase):
    every = {**{case.name: cases.digest(case) for case in CASES},
             **{case.name: quantised_cases.digest(case) for case in quantised_cases.QUANTISED}}

    def test_each_case_has_one_and_nothing_else_is_there(self):
        made = {path.name for path in GOLDEN.iterdir() if path.is_dir()}
        self.assertEqual(set(self.every) - (OLD - made), made)

    def test_each_is_of_its_case(self):
        for name, digest in self.every.items():
            with self.subTest(name):
                meta = GOLDEN / name / "meta.json"
                case = read(meta).get("case") if name not in OLD or meta.exists() else None
                if name in OLD:
                    self.assertNotEqual(case, digest, "made of its case: take its name from OLD")
                    continue
                self.assertEqual(case, digest, "made of another case: run tools/golden (README.md there)")
        for case in CASES:
            if case.name in OLD:
                continue
            with self.subTest(case.name):
                config = read(GOLDEN / case.name / "config.json")
                self.assertEqual(list(differences(case.config, config)), [])

    def test_a_changed_case_has_another_digest(self):
        case = CASES[0]
        before = cases.digest(case)
        for name, value in {"noise": 0.5, "dtype": "bfloat16", "config": {**case.config, "hidden_size": 88}}.items():
            changed = type(case)(**{**vars(case), name: value})
            self.assertNotEqual(cases.digest(changed), before)

    def test_no_number_is_one_that_a_short_format_holds(self):
        for case in CASES:
            with self.subTest(case.name):
                text = case.config.get("text_config", case.config)
                self.assertNotEqual(math.isqrt(text["hidden_size"]) ** 2, text["hidden_size"])
                said = {key: value for key, value in numbers_of(case.config)
                        if key in ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "rms_norm_eps", "norm_eps", "layer_norm_epsilon")
                        or key.endswith(("softcapping", "mscale", "multiplier", "logits_scaling", "_beta"))}
                self.assertTrue({"rms_norm_eps", "norm_eps", "layer_norm_epsilon"} & set(said), said)
                self.assertEqual({key: value for key, value in said.items() if is_short(value)}, {})

    def test_the_assistant_is_of_its_model(self):
        """Trained on the golden Gemma 4: on these weights."""
        if "gemma4" in OLD:
            return
        weights = hashlib.sha256((GOLDEN / "gemma4" / "model.safetensors").read_bytes()).hexdigest()[:16]
        self.assertEqual(read(ASSISTANT / "meta.json")["model"], weights)


if __name__ == "__main__":
    unittest.main()
