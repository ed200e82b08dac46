"""Against the reference implementation, the package `safetensors`, in both directions."""

import json

import numpy as np
import pytest
import safetensors.numpy
import safetensors

from rudder_client import FileFormatError
from rudder_client.safetensors_file import read_safetensors, write_safetensors

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?"]


def some_tensors():
    rng = np.random.default_rng(2)
    tensors = {f"{dtype}.{len(shape)}": (rng.normal(size=shape) * 9).astype(dtype)
               for dtype in DTYPES for shape in ((), (3,), (2, 5), (0, 4))}
    return {**tensors, "big": rng.normal(size=(2, 3)).astype(">f4"), "strided": np.arange(12.0).reshape(3, 4)[:, ::2]}


def test_the_reference_reads_what_is_written(tmp_path):
    path = tmp_path / "own.safetensors"
    write_safetensors(path, some_tensors(), {"model_hint": "tiny"})
    read = safetensors.numpy.load_file(path)
    assert set(read) == set(some_tensors())
    for name, array in some_tensors().items():
        assert read[name].shape == array.shape and np.array_equal(read[name], array), name
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"model_hint": "tiny"}


def test_what_the_reference_writes_is_read(tmp_path):
    path = tmp_path / "theirs.safetensors"
    tensors = {name: np.ascontiguousarray(a.astype(a.dtype.newbyteorder("="))) for name, a in some_tensors().items()}
    safetensors.numpy.save_file(tensors, path, {"a": "b"})
    read, metadata = read_safetensors(path)
    assert metadata == {"a": "b"} and set(read) == set(tensors)
    for name, array in tensors.items():
        assert read[name].dtype == array.dtype and np.array_equal(read[name], array), name


def test_broken_files_are_refused(tmp_path):
    path = tmp_path / "file.safetensors"
    write_safetensors(path, {"a": np.arange(4, dtype=np.float32)})
    whole = path.read_bytes()
    header = json.loads(whole[8:8 + int.from_bytes(whole[:8], "little")])

    def with_header(changed):
        text = json.dumps(changed).encode()
        return len(text).to_bytes(8, "little") + text + whole[-16:]

    broken = [b"", whole[:4], whole[:-1], (1 << 60).to_bytes(8, "little") + whole[8:], whole[:8] + b"x" + whole[9:],
              with_header([]), with_header({"a": 3})]
    for change in ({"dtype": "F8"}, {"shape": [5]}, {"shape": [-2, -2]}, {"data_offsets": [0, 99]}, {"data_offsets": [-16, 0]},
                   {"data_offsets": [16, 0]}, {"shape": "4"}, {"shape": [4.0]}, {"shape": [True, 4]},
                   {"data_offsets": [0]}, {"data_offsets": "ab"}, {"data_offsets": ["0", "16"]}, {"dtype": []}):
        broken.append(with_header({"a": {**header["a"], **change}}))
    for raw in broken:
        path.write_bytes(raw)
        with pytest.raises(FileFormatError):
            read_safetensors(path)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.safetensors"
    write_safetensors(path, {"a": np.zeros(2)})
    with pytest.raises(FileFormatError, match="complex"):
        write_safetensors(path, {"b": np.zeros(2, dtype=complex)})
    assert set(read_safetensors(path)[0]) == {"a"} and list(tmp_path.iterdir()) == [path]
