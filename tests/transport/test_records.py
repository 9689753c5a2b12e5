import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.transport import greeting, wire
from blockwright.transport.records import MANY, RecordReader, pack_length, pack_lengths
from blockwright.transport.wire import WireError

bodies = st.binary(max_size=300)
messages = st.lists(bodies | st.lists(bodies, min_size=2, max_size=5), max_size=12)


def packed(message):
    if isinstance(message, bytes):
        return pack_length(len(message)) + message
    return pack_lengths(message) + b"".join(message)


def let_in():
    reader = RecordReader()
    reader.let_in()
    return reader


def plain(message):
    return [bytes(frame) for frame in message] if isinstance(message, list) else bytes(message)


@given(messages, st.data())
def test_a_stream_is_cut_into_the_same_messages_however_it_arrives(sent, data):
    stream = b"".join(map(packed, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    reader, got = let_in(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += [plain(message) for message in reader.feed(stream[begin:end])]
    assert got == sent


def test_one_byte_at_a_time():
    sent = [b"", b"a", [b"", b"", b"x" * 9], b"b" * 300, [b"1", b"2"]]
    reader = let_in()
    got = [plain(message) for byte in b"".join(map(packed, sent)) for message in reader.feed(bytes([byte]))]
    assert got == sent


def test_what_was_cut_cannot_be_written_to():
    alone, cut = let_in(), let_in()
    (body,), (frames,) = alone.feed(packed(b"abc")), alone.feed(packed([b"ab", b"c"]))
    assert list(cut.feed(packed(b"abc")[:5])) == []
    (late,) = cut.feed(b"bc")
    assert all(view.readonly for view in (body, *frames, late))
    assert bytes(late) == b"abc"


def test_how_much_is_missing_is_known_once_a_message_has_begun():
    reader = let_in()
    assert list(reader.feed(pack_length(1000) + b"x" * 10)) == []
    assert reader.missing == 990
    (body,) = reader.feed(b"x" * 990)
    assert (bytes(body), reader.missing) == (b"x" * 1000, 0)


@given(st.binary(max_size=400), st.booleans())
def test_rubbish_ends_in_messages_or_a_wire_error(data, greeted):
    reader = let_in() if greeted else RecordReader()
    try:
        total = sum(len(m) if isinstance(m, memoryview) else sum(map(len, m)) for m in reader.feed(data))
    except WireError:
        return
    assert total <= len(data)


@pytest.mark.parametrize(
    ("stream", "match"),
    [
        (pack_length(wire.MAX_BODY + 1), "exceeds 8388608"),
        (pack_length(MANY), "a message of 0 frames"),
        (pack_length(MANY + 1), "a message of 1 frames"),
        (pack_length(MANY + wire.MAX_FRAMES + 1), "2 to 1024"),
        (pack_length(MANY + 2) + pack_length(1) + pack_length(wire.MAX_FRAME + 1), "exceeds 268435456"),
    ],
)
def test_lengths_over_the_limits(stream, match):
    reader, body = let_in(), packed(b"first")
    got = []
    with pytest.raises(WireError, match=match):
        got.extend(bytes(message) for message in reader.feed(body + stream))
    assert got == [b"first"], "what came before stands"


def test_nothing_but_a_short_record_before_the_greeting_is_found_good():
    with pytest.raises(WireError, match="after the greeting"):
        list(RecordReader().feed(packed([b"a", b"b"])))
    with pytest.raises(WireError, match=f"exceeds {greeting.LONGEST}"):
        list(RecordReader().feed(pack_length(greeting.LONGEST + 1)))
    assert [bytes(m) for m in RecordReader().feed(packed(b"x" * greeting.LONGEST))] == [b"x" * greeting.LONGEST]
