import math
import sys

import msgpack
import numpy as np
import pytest
import torch

from blockwright.runtime.base.buffers import ARRAY_EXT, INLINE_BYTES, TENSOR_EXT, Sink, ext_hook
from blockwright.runtime.base.codec import encode, pack, unpack
from blockwright.runtime.base.decoding import decode
from blockwright.runtime.base.errors import DecodeError, EncodeError
from blockwright.tests.claims import claim


def views(sink):
    return [memoryview(b).cast("B") for b in sink.buffers]


@claim("Arrays and tensors travel out of band, and on one host in shared memory", of="actor-runtime")
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.arange(12).reshape(3, 4).T,
        np.arange(24).reshape(2, 3, 4)[:, ::2],
        np.array(5, dtype=np.int8),
        np.zeros((0, 3)),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.arange(3, dtype=">i4"),
    ],
)
def test_arrays_travel_beside_the_body(array):
    sink = Sink()
    body = pack(encode([array], sink))
    (back,) = decode(list[np.ndarray], unpack(body, views(sink)))
    assert len(body) < 64
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    np.testing.assert_array_equal(back, array)
    assert not back.flags.writeable


@pytest.mark.parametrize(
    "array", [np.asfortranarray(np.arange(600.0).reshape(20, 30)), np.zeros((0, 3)), np.arange(900)[::3], np.array(5)]
)
def test_any_view_of_memory_travels_as_its_bytes(array):
    sink = Sink()
    body = pack(encode(memoryview(array), sink))
    assert unpack(body, views(sink)) == array.tobytes()


def test_tensors_that_only_promise_their_values_travel_as_these():
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    for tensor in (numbers.conj(), numbers.conj().imag):
        sink = Sink()
        assert torch.equal(unpack(pack(encode(tensor, sink)), views(sink)), tensor)
    with pytest.raises(EncodeError, match="meta"):
        encode(torch.empty(3, device="meta"), Sink())


def test_small_bytes_stay_and_large_ones_travel_beside():
    sink = Sink()
    small, large = b"s" * INLINE_BYTES, b"l" * (INLINE_BYTES + 1)
    body = pack(encode([small, large, memoryview(large), bytearray(large)], sink))
    assert len(sink.buffers) == 3
    assert unpack(body, views(sink)) == [small, large, large, large]


@pytest.mark.parametrize(
    "described",
    [
        ["|O", [1], 0],
        ["<U4", [2], 0],
        ["<f8", [2], 0],
        ["<f4", [-2], 0],
        ["<f4", [2], 1],
        ["<f4", [2], -1],
        ["<f4", [2], True],
        ["<f9", [2], 0],
        ["<c3", [2], 0],
        ["f4", "2", 0],
        [1, [2], 0],
        ["<f4", [2]],
        ["<f4", [2**40, 2**40], 0],
        5,
    ],
)
def test_a_false_description_is_refused(described):
    with pytest.raises(DecodeError):
        unpack(pack(msgpack.ExtType(ARRAY_EXT, msgpack.packb(described))), [memoryview(b"12345678")])


def test_a_garbage_description_is_refused():
    with pytest.raises(DecodeError):
        unpack(pack(msgpack.ExtType(ARRAY_EXT, b"\xc1")), [memoryview(b"12345678")])


def test_arrays_of_objects_and_text_are_refused_at_the_sender():
    for array in (np.array([{}]), np.array(["text"])):
        with pytest.raises(EncodeError, match="dtype"):
            encode(array, Sink())


def test_the_number_of_buffers_is_bounded():
    with pytest.raises(EncodeError, match="buffers"):
        encode([b"x" * 300] * 2000, Sink())


def test_unknown_extensions_are_refused():
    with pytest.raises(DecodeError, match="extension type 9"):
        ext_hook([])(9, b"")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "int64", "uint8", "bool", "complex64", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 4)])
def test_tensors_travel_beside_the_body(name, shape):
    tensor = (torch.arange(12)[: math.prod(shape)].reshape(shape) % 2).to(getattr(torch, name))
    tensor = tensor.T if len(shape) == 2 else tensor
    sink = Sink()
    body = pack(encode({"weights": tensor}, sink))
    assert len(body) < 64
    back = decode(dict[str, torch.Tensor], unpack(body, views(sink)))["weights"]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert bytes(back.view(-1).view(torch.uint8).numpy()) == bytes(tensor.reshape(-1).view(torch.uint8).numpy())


def test_tensors_that_cannot_travel_or_do_not_fit():
    with pytest.raises(EncodeError, match="sparse"):
        encode(torch.eye(2).to_sparse(), Sink())
    with pytest.raises(DecodeError, match="expected tensor"):
        decode(torch.Tensor, 5)
    assert decode(int | torch.Tensor, torch.ones(1)) == torch.ones(1)
    for described in (["float32", [3], 0], ["Tensor", [8], 0], ["quint8", [8], 0], ["float32", [2], 1]):
        with pytest.raises(DecodeError):
            unpack(pack(msgpack.ExtType(TENSOR_EXT, msgpack.packb(described))), [memoryview(b"12345678")])


def test_where_torch_is_not_imported_tensors_are_refused(monkeypatch):
    sink = Sink()
    body = pack(encode(torch.ones(2), sink))
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(DecodeError, match="not imported torch"):
        unpack(body, views(sink))
