import base64

import numpy as np
import pytest

from rudder_client import ArrayError, FileFormatError
from rudder_client.packing import pack, unpack


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5)])
def test_arrays_come_back_bit_by_bit(dtype, shape):
    array = np.random.default_rng(1).normal(size=shape).astype(dtype)
    packed = pack(array)
    assert packed["dtype"] == np.dtype(dtype).name and packed["shape"] == list(shape)
    assert np.array_equal(unpack(packed), array.astype(np.float32))


@pytest.mark.parametrize("array", [[1, 2, 3], np.arange(3), np.array([1.0, 2.0, 3.0]), np.ones((2, 6))[:, ::2],
                                   np.array([1, 2, 3], dtype=">f4")])
def test_other_numbers_become_float32(array):
    assert np.array_equal(unpack(pack(array)), np.asarray(array, dtype=np.float32))
    assert pack(array)["dtype"] == "float32"


def test_bfloat16_is_widened():
    values = np.array([1.0, -2.5, 3.140625, 0.0], dtype=np.float32)  # exact in bfloat16
    bits = (values.view(np.uint32) >> 16).astype("<u2")
    packed = {"dtype": "bfloat16", "shape": [2, 2], "data": base64.b64encode(bits.tobytes()).decode()}
    assert np.array_equal(unpack(packed), values.reshape(2, 2))


@pytest.mark.parametrize("array", [[], [[]], [[[1.0]]], 3.0, [np.nan, 1], [np.inf], [2e6], [1e300], ["a"], [True], [1 + 2j],
                                   None])
def test_what_no_request_can_carry_is_refused_with_its_path(array):
    with pytest.raises(ArrayError) as refused:
        pack(array, "gate.probe.vector")
    assert refused.value.path == "gate.probe.vector" and "gate.probe.vector" in str(refused.value)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("change", [{"dtype": "float64"}, {"shape": [3]}, {"shape": [1 << 40, 1 << 40]}, {"data": "AAA"},
                                    {"data": "%%%%"}])
def test_broken_packs_are_refused(change):
    with pytest.raises(FileFormatError):
        unpack({**pack([1.0, 2.0]), **change})
