import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.transport import wire
from blockwright.transport.errors import MessageTooLarge
from blockwright.transport.wire import WireError


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_batch_round_trip(bodies):
    assert [bytes(b) for b in wire.unpack_batch(wire.pack_batch(bodies))] == bodies


@given(st.binary(max_size=200))
def test_garbage_batches_end_in_bodies_or_a_wire_error(data):
    try:
        total = sum(len(body) for body in wire.unpack_batch(b"\x01" + data))
    except WireError:
        return
    assert total <= len(data)


def test_limits_are_checked_before_sending(monkeypatch):
    monkeypatch.setattr(wire, "MAX_BODY", 10)
    monkeypatch.setattr(wire, "MAX_FRAME", 20)
    with pytest.raises(MessageTooLarge, match="11 bytes"):
        wire.checked(b"x" * 11, [])
    with pytest.raises(MessageTooLarge, match="21 bytes"):
        wire.checked(b"", [b"x" * 21])
    with pytest.raises(MessageTooLarge, match="1024 buffers"):
        wire.checked(b"", [b""] * 1024)


def test_views_of_wider_items_become_bytes():
    import array

    view = memoryview(array.array("d", [1.0, 2.0]))
    assert [len(b) for b in wire.checked(b"", [view])] == [16]
