#!/usr/bin/env python3
"""A second reader of safetensors headers, and a comparison of the two on generated files.

    safetensors_check.py FILE...              says whether each file keeps the format's rules
    safetensors_check.py --compare TOOL [N]   N mutants through TOOL (safetensors_verdict): every
                                              verdict must equal this reader's

Written against the rules in src/rudder/weights/safetensors.h, not against that code. Standard
library only.
"""

import json
import random
import struct
import subprocess
import sys
import time

MAX_HEADER = 100_000_000
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F64": 8, "I64": 8, "I32": 4, "I16": 2,
         "I8": 1, "U8": 1, "BOOL": 1}


class Refused(Exception):
    pass


def need(condition, why):
    if not condition:
        raise Refused(why)


def unique_pairs(pairs):
    out = dict(pairs)
    need(len(out) == len(pairs), "a key is given twice")
    return out


def refuse_constant(text):
    raise Refused(text)


def count(text):
    need(not text.startswith("-") and len(text) <= 20 and int(text) < 2**64, "not a count")
    return int(text)


def check_strings(value):
    """Lone surrogates pass Python's parser and are no text."""
    if isinstance(value, str):
        value.encode("utf-8")
    elif isinstance(value, dict):
        for key, item in value.items():
            check_strings(key)
            check_strings(item)


def tensor_bytes(name, tensor):
    need(isinstance(tensor, dict), "a tensor is no object")
    need(set(tensor) == {"dtype", "shape", "data_offsets"}, "wrong fields")
    need(len(name.encode()) <= 1024, "name too long")
    dtype, shape, offsets = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
    need(isinstance(dtype, str) and dtype in SIZES, "dtype")
    need(isinstance(shape, list) and len(shape) <= 8, "shape")
    need(isinstance(offsets, list) and len(offsets) == 2, "data_offsets")
    need(all(type(n) is int for n in shape + offsets), "not integers")
    size = SIZES[dtype]
    for extent in shape:
        size *= extent
        need(size < 2**64, "overflow")
    need(offsets[1] - offsets[0] == size, "offsets do not hold the shape")
    return offsets


def check(data):
    """Raises Refused unless `data`, a whole file, keeps the rules."""
    need(len(data) >= 8, "short")
    (length,) = struct.unpack("<Q", data[:8])
    need(length <= MAX_HEADER and length <= len(data) - 8, "header length")
    text = data[8 : 8 + length]
    need(text[:1] == b"{" and text.rstrip(b" ")[-1:] == b"}", "not an object and spaces")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique_pairs, parse_int=count,
                            parse_constant=refuse_constant)
        check_strings(header)
    except (ValueError, RecursionError) as error:
        raise Refused(str(error)) from error
    metadata = header.pop("__metadata__", {})
    need(isinstance(metadata, dict), "metadata")
    need(all(isinstance(value, str) for value in metadata.values()), "metadata value")
    end = 0
    for offsets in sorted(tensor_bytes(name, tensor) for name, tensor in header.items()):
        need(offsets[0] == end, "hole or overlap")
        end = offsets[1]
    need(end == len(data) - 8 - length, "data not covered")


def accepts(data):
    try:
        check(data)
        return True
    except Refused:
        return False


def file_of(header, data_bytes):
    return struct.pack("<Q", len(header)) + header + bytes(data_bytes)


TOKENS = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"0", b"-1", b"-0", b"1e308", b"2.0", b"null",
          b"true", b"\\u0000", b"\\ud800", b"\\ud83d\\ude00", b"F32", b"BF16", b"[]", b"{}", b"4",
          b'"a"', b"12", b"dtype", b"\xff", b"\xc3\xa9", b"18446744073709551615",
          b"18446744073709551616", b"data_offsets", b"__metadata__", b" ", b"\n", b"\t", b"NaN", b"01"]


def mutants(number, seed=1):
    """Files near a good one: half with edits in the header text, half of which are then repaired."""
    rng = random.Random(seed)
    for _ in range(number):
        entries, offset = [], 0
        for i in range(rng.randrange(4)):
            dtype = rng.choice(list(SIZES))
            shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
            size = SIZES[dtype]
            for extent in shape:
                size *= extent
            fields = [f'"dtype":"{dtype}"', f'"shape":{shape}',
                      f'"data_offsets":[{offset},{offset + size}]']
            rng.shuffle(fields)
            entries.append(f'"t{rng.choice([i, i, i, 0])}":{{{",".join(fields)}}}')
            offset += size
        if rng.random() < 0.3:
            entries.append('"__metadata__":{"format":"pt","k":"v"}')
        rng.shuffle(entries)
        header = bytearray(("{" + ",".join(entries) + "}").encode() + b" " * rng.randrange(3))
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            at = rng.randrange(len(header) + 1)
            kind = rng.randrange(5)
            if kind == 0 and at < len(header):
                header[at] = rng.randrange(256)
            elif kind == 1:
                del header[at : at + rng.randrange(1, 6)]
            elif kind == 2:
                header[at:at] = rng.choice(TOKENS)
            elif kind == 3:
                digits = [i for i, c in enumerate(header) if chr(c).isdigit()]
                if digits:
                    header[rng.choice(digits)] = rng.choice(b"0123456789")
            else:
                other = rng.randrange(len(header) + 1)
                header[at:at] = header[other : other + rng.randrange(40)]
        mutant = bytearray(file_of(bytes(header), offset))
        if rng.random() < 0.1:
            mutant[rng.randrange(8)] ^= 1 << rng.randrange(8)
        if rng.random() < 0.1:
            del mutant[rng.randrange(len(mutant)) :]
        yield bytes(mutant)


def compare(tool, number):
    files = list(mutants(number))
    stream = b"".join(struct.pack("<I", len(data)) + data for data in files)
    verdicts = subprocess.run([tool], input=stream, check=True, capture_output=True).stdout.decode()
    need(len(verdicts) == len(files), "the tool stopped early")
    wrong = [data for data, verdict in zip(files, verdicts) if accepts(data) != (verdict == "1")]
    for data in wrong[:10]:
        print(f"verdicts differ, this reader says {accepts(data)}: {data!r}")
    print(f"{number} files, {verdicts.count('1')} accepted, {len(wrong)} verdicts differ")
    # A header of 100,000 tensors with an error in the last must not cost much to refuse.
    many = ",".join(f'"t{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
                    for i in range(100_000))
    bomb = file_of(("{" + many + ',"z":{"dtype":"U8","shape":[1],"data_offsets":[0,2]}}').encode(), 2)
    start = time.monotonic()
    out = subprocess.run([tool], input=struct.pack("<I", len(bomb)) + bomb, check=True,
                         capture_output=True).stdout
    print(f"100,001 tensors: {out.decode()} in {(time.monotonic() - start) * 1e3:.0f} ms")
    return 1 if wrong or out != b"0" else 0


def main():
    if sys.argv[1:2] == ["--compare"]:
        return compare(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 20_000)
    bad = 0
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            try:
                check(file.read())
                print(f"{path}: good")
            except Refused as why:
                bad += 1
                print(f"{path}: {why}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
