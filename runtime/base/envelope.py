"""The wire format between nodes: a MessagePack array that starts with a numeric tag.

Owns the tags, the shape of each message and its check on arrival; bodies of calls are the codec's. Nothing here acts.

    HELLO      own endpoint, stays              first message to any peer (the transport compared versions)
    READY                                       worker to head: the entry function returned
    BOOK       [[node, incarnation, endpoint]]  head to all: who is up
    DOWN       node, incarnation, cause         head to all: declared down, fence it
    STOP                                        head to worker: stop in order
    HEARTBEAT  state, payload                   from the event loop of a node that is alive
    CALL       id (upwards, of casts and OPEN too), actor, endpoint, seconds left, trace, args, kwargs
    CAST       id, actor, endpoint, trace, args, kwargs
    SEEN       count                            casts that have come from the peer, with heartbeats
    REPLY      id, typed, value                 ``typed``: the value holds dataclasses
    FAULT      id, tag, kind, text, traceback
    CANCEL     id                               the caller gave up, or closed the stream
    OPEN       id, actor, endpoint, seconds left to start, seconds left in all (0: no limit), trace, args, kwargs,
               items and bytes of the window    for a stream (``remote_streams.py``)
    ITEM       id, number from 1, typed, value
    CREDIT     id, items, bytes                 totals that the consumer has taken
    END        id, items                        the stream's regular end; FAULT is the other
    LOST       node, incarnation, cause         worker to head: the connection between the two of us broke
    LEAVE                                       a node that joined by hand, to head: it has stopped in order
    LIVES      [[node, incarnation, up]]        a member that came back, to head: the lives that it knows
    TICKET     text                             head to a member that is up: with this it comes back to the next head
    CLAIMED                                     head to a member: the actor that stands for it lives again
    WHERE      node                             a member to head: where is it? BOOK answers if it is up
    CUT        node, incarnation, cause         head to a member: take it for down until BOOK says where it is
    HEALED     node, incarnation                a member to head: it reaches a node again from which it was cut off;
                                                head to a member: it does, and its word that it lost it is void

No message ever changes its shape, since neighbouring releases speak; a new one has a tag of its own.
Ids and numbers of one sender rise; of what makes a node act, ``NUMBERED``, none is obeyed twice, nor a late copy at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from ...transport.wire import Buffer
from .codec import unpack
from .errors import DecodeError

HELLO, READY, BOOK, DOWN, STOP, HEARTBEAT, CALL, CAST, REPLY, FAULT, CANCEL = range(1, 12)
OPEN, ITEM, CREDIT, END, LOST, SEEN, LEAVE, LIVES, TICKET, CLAIMED, WHERE, CUT, HEALED = range(12, 25)
NUMBERED = frozenset((CALL, CAST, OPEN))  # whose first field is the id or number

_SHAPES: dict[int, tuple[type, ...]] = {
    HELLO: (str, bool),
    READY: (),
    BOOK: (list,),
    DOWN: (str, int, str),
    STOP: (),
    HEARTBEAT: (list, dict),
    CALL: (int, str, str, float, bytes, list, dict),
    CAST: (int, str, str, bytes, list, dict),
    REPLY: (int, bool, object),
    FAULT: (int, int, str, str, str),
    CANCEL: (int,),
    OPEN: (int, str, str, float, float, bytes, list, dict, int, int),
    ITEM: (int, int, bool, object),
    CREDIT: (int, int, int),
    END: (int, int),
    LOST: (str, int, str),
    SEEN: (int,),
    LEAVE: (),
    LIVES: (list,),
    TICKET: (str,),
    CLAIMED: (),
    WHERE: (str,),
    CUT: (str, int, str),
    HEALED: (str, int),
}
_ANY = (object,)
_HEAD = 5 + 9 + 9  # bytes of the head of an array, of a tag and of an id, at most


def parse(body: Buffer, buffers: Sequence[memoryview]) -> tuple[int, list[Any]]:
    """Return (tag, fields) of a message, fields of the right number and types. Raises DecodeError."""
    message = unpack(body, buffers)
    if type(message) is not list or not message or type(message[0]) is not int:
        raise DecodeError("a message is an array that starts with its tag")
    tag = message.pop(0)
    shape = _SHAPES.get(tag)
    if shape is None:
        raise DecodeError(f"unknown message tag {tag}")
    kinds = tuple(map(type, message))
    if kinds != shape and (shape[-1:] != _ANY or kinds[:-1] != shape[:-1]):
        _check(tag, message, shape)
    return tag, message


def outline(body: Buffer) -> tuple[int, int] | None:
    """Return (tag, id) of a message whose other parts cannot be read; None if not even they can. Looks at no more than
    they take: what stands in their place may be a million lists.
    """
    unpacker = msgpack.Unpacker()
    try:
        unpacker.feed(memoryview(body)[:_HEAD])
        if unpacker.read_array_header() < 2:
            return None
        tag, number = unpacker.unpack(), unpacker.unpack()
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException):
        return None
    return (tag, number) if type(tag) is int and type(number) is int else None


def _check(tag: int, fields: list[Any], shape: tuple[type, ...]) -> None:
    if len(fields) != len(shape):
        raise DecodeError(f"message {tag} has {len(shape)} fields, {len(fields)} came")
    for kind, value in zip(shape, fields, strict=True):
        if kind is not object and type(value) is not kind:
            raise DecodeError(f"message {tag}: expected {kind.__name__}, got {type(value).__name__}")
