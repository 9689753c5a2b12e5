import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.transport import wire
from blockwright.transport.errors import MessageTooLarge
from blockwright.transport.wire import WireError


def packed(messages):
    """A frame of messages, each a body and its buffers."""
    parts = [part for message in messages for part in message]
    lengths = [len(part) | (wire.MORE if part_on else 0) for m in messages for part, part_on in goes_on(m)]
    return wire.pack_batch(lengths, parts)


def goes_on(message):
    return [(part, at < len(message) - 1) for at, part in enumerate(message)]


@given(st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=4), min_size=2, max_size=20))
def test_batch_round_trip(messages):
    assert [[bytes(body), *map(bytes, buffers)] for body, buffers in wire.unpack_batch(packed(messages))] == messages


def test_one_small_message_has_no_table_of_lengths():
    assert wire.pack_batch([4], [b"body"]) == wire.ALONE_MARK + b"body"


def test_buffers_of_a_batch_are_aligned_and_do_not_keep_it():
    batch = wire.unpack_batch(packed([[b"odd", b"x" * 8], [b"!"]]))
    (buffer,) = next(batch)[1]
    assert buffer.readonly
    assert len(buffer.obj) == 8, "a copy of its own"


@given(st.binary(max_size=200))
def test_garbage_batches_end_in_messages_or_a_wire_error(data):
    try:
        messages = list(wire.unpack_batch(b"\x01" + data))
    except WireError:
        return
    assert sum(len(body) + sum(map(len, buffers)) for body, buffers in messages) <= len(data)


@pytest.mark.parametrize("lie", ["count", "length", "rest", "no end"])
def test_a_batch_that_lies_is_refused_before_its_first_message(lie):
    frame = bytearray(packed([[b"one"], [b"two"], [b"three"]]))
    if lie == "count":
        frame[4:8] = (wire.BATCH_PARTS + 1).to_bytes(4, "little")
    elif lie == "length":
        frame[8] += 1
    elif lie == "rest":
        frame += b"!"
    else:
        frame[19] |= 0x80  # the last message goes on
    with pytest.raises(WireError):
        wire.unpack_batch(bytes(frame))


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
