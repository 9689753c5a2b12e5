"""Messages that no node of ours would send, as hypothesis strategies and as a list of the worst."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
from hypothesis import strategies as st

from blockwright.runtime.base import envelope

VALID = [
    [envelope.HELLO, "loop://x-1"],
    [envelope.READY],
    [envelope.BOOK, [["y", 1, "loop://y-1"]]],
    [envelope.DOWN, "b", 1, "killed"],
    [envelope.HEARTBEAT, None, {"depth": 3}],
    [envelope.CALL, 1, "server", "echo", 1.0, b"", [1], {}],
    [envelope.CALL, 2, "server", "typed", 1.0, b"", [[0, 1.0, "p"], [1, 2], {"a": 1.0}], {}],
    [envelope.CALL, 3, "server", "array", 1.0, b"", [msgpack.ExtType(2, msgpack.packb(["<f4", [1], 0]))], {}],
    [envelope.CALL, 4, "server", "hang", 1.0, b"", [], {}],
    [envelope.CAST, 5, "server", "echo", b"", [{"k": [1, 2.0, None, True, b"b"]}], {}],
    [envelope.OPEN, 6, "server", "count", 1.0, 0.0, b"", [5], {}, 10, 1000],
    [envelope.ITEM, 6, 1, False, 1],
    [envelope.CREDIT, 6, 1, 10],
    [envelope.END, 6, 5],
    [envelope.REPLY, 1, False, 1],
    [envelope.FAULT, 1, 6, "ValueError", "text", "trace"],
    [envelope.CANCEL, 4],
    [envelope.LOST, "b", 1, "disconnected"],
    [envelope.SEEN, 3],
]
TAGS = [message[0] for message in VALID]

_leaf = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=40)
    | st.sampled_from(["server", "echo", "typed", "array", "hang", "count", "a/server", "$node", "x#1", ""])
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=30))
)
_key = st.text(max_size=5) | st.integers(-5, 300) | st.binary(max_size=5)
values = st.recursive(
    _leaf, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(_key, inner, max_size=4), max_leaves=12
)


def packed(value: Any) -> bytes:
    body: bytes = msgpack.packb(value)
    return body


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid message with bytes changed, lost, put in or said again."""
    body = bytearray(packed(draw(st.sampled_from(VALID))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        change = draw(st.sampled_from(("set", "cut", "put", "again")))
        if change == "set" and at < len(body):
            body[at] = draw(st.integers(0, 255))
        elif change == "cut":
            del body[at : at + draw(st.integers(1, 8))]
        elif change == "put":
            body[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif change == "again":
            body += body[at:]
    return bytes(body)


@st.composite
def misfilled(draw: st.DrawFn) -> bytes:
    """A valid message with one field replaced."""
    message = list(draw(st.sampled_from(VALID)))
    message[draw(st.integers(0, len(message) - 1))] = draw(values)
    return packed(message)


tagged = st.builds(
    lambda tag, fields: packed([tag, *fields]), st.sampled_from([*TAGS, 0, 99]), st.lists(values, max_size=10)
)
bodies = st.binary(max_size=200) | mutated() | misfilled() | tagged | values.map(packed) | st.sampled_from(VALID).map(packed)
frames = st.lists(st.binary(max_size=60), max_size=3)


def bombs() -> dict[str, bytes]:
    """Small messages that announce or become large things."""
    call = b"\x98\x07\xcd\x7f\xff\xa6server\xa4echo\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\xc4\x00"  # up to the arguments
    million = struct.pack(">I", 1 << 20)
    empty_lists = b"\xdd" + million + b"\x90" * (1 << 20)
    return {
        "depth": b"\x91" * 100_000 + b"\xc0",
        "depth within limits of size": b"\x91" * (4 << 20),
        "maps in maps": b"\x81\xc0" * 50_000 + b"\xc0",
        "array of 2^32-1": b"\xdd\xff\xff\xff\xff",
        "array of 2^20 announced": b"\xdd\x00\x10\x00\x00",
        "map of 2^32-1": b"\xdf\xff\xff\xff\xff",
        "string of 2^32-1": b"\xdb\xff\xff\xff\xff",
        "bytes of 2^32-1": b"\xc6\xff\xff\xff\xff",
        "extension of 2^32-1": b"\xc9\xff\xff\xff\xff\x01",
        "64 KiB of empty lists": b"\xdc\xff\xff" + b"\x90" * 0xFFFF,
        "8 MiB of empty lists": b"\xdd" + struct.pack(">I", 7) + empty_lists * 7,
        "a million empty maps as arguments": call + b"\xdd" + million + b"\x80" * (1 << 20) + b"\x80",
        "arguments in a hundred thousand lists": call + b"\x91" * 100_000 + b"\xc0" + b"\x80",
        "array extension of 2^62 items": call
        + b"\x91"
        + packed(msgpack.ExtType(2, packed(["<f8", [2**31, 2**31], 0])))
        + b"\x80",
        "a name of a megabyte": packed([envelope.CALL, 9, "s" * (1 << 20), "echo", 1.0, b"", [], {}]),
        "a deadline that is no number": packed([envelope.CALL, 10, "server", "echo", float("nan"), b"", [], {}]),
        "a deadline without end": packed([envelope.CALL, 11, "server", "echo", float("inf"), b"", [], {}]),
        "an id that blocks all later ones": packed([envelope.CALL, 2**63, "server", "echo", 1.0, b"", [], {}]),
        "credit without end": packed([envelope.CREDIT, 1, 2**63, 2**63]),
        "a window without end": packed([envelope.OPEN, 12, "server", "count", 1.0, 0.0, b"", [9], {}, 2**63, 2**63]),
    }
