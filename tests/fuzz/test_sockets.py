"""Rubbish on a node's real sockets: before and after a greeting, under forged names, and as bytes that are not ZeroMQ."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockwright.tests.claims import claim
from blockwright.tests.fuzz import rubbish
from blockwright.tests.fuzz.rig import Rig
from blockwright.tests.parts import examples
from blockwright.tests.waiting import PATIENCE
from blockwright.transport import wire
from blockwright.transport.address import PeerId
from blockwright.transport.handshake import GREETING, Greeting, Lane

GROWTH = 128 << 20  # bytes that the largest of the portions may cost, about twice what it does


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    logger = logging.getLogger("blockwright")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    directory = tmp_path_factory.mktemp("s")
    directory.chmod(0o700)
    made = Rig(directory)
    yield made
    made.close()
    logger.setLevel(level)


bounded = settings(
    examples(120),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MARKS = st.sampled_from(
    [wire.ALONE_MARK, wire.SINGLE_MARK, wire.LINK_MARK, wire.SHARED_MARK, b"\x00", b"", b"\x03blockwright"]
)
flags = st.lists(st.sampled_from([0, 0, wire.MORE]), min_size=4, max_size=4)


def batch(bodies: Sequence[bytes], flags: Sequence[int] = (0,) * 100) -> bytes:
    """Of at least two messages; or as no node would send it, with some that go on."""
    parts = [*bodies, b"last"]
    return wire.pack_batch([len(part) | flag for part, flag in zip(parts, flags, strict=False)], parts)


batches = st.builds(batch, st.lists(rubbish.bodies, min_size=1, max_size=3), st.just((0,) * 4) | flags)
marked = st.builds(lambda mark, body, rest: [mark, body, *rest], MARKS, rubbish.bodies, rubbish.frames)
messages = st.lists(marked | batches.map(lambda frame: [frame]) | rubbish.frames, min_size=1, max_size=4)


@claim("Rubbish on any socket of the cluster crashes nothing and takes bounded memory", of="security")
@bounded
@given(messages=messages)
def test_after_a_greeting(rig: Rig, messages: list[list[bytes]]) -> None:
    rig.send(messages, greet=rig.greeting())


@claim("Rubbish on any socket of the cluster crashes nothing and takes bounded memory", of="security")
@bounded
@given(
    messages=messages,
    words=st.text(max_size=30) | st.sampled_from(["blockwright 1 control", "blockwright 99", "blockwright 1 join"]),
)
def test_instead_of_a_greeting(rig: Rig, messages: list[list[bytes]], words: str) -> None:
    rig.send(messages, greet=GREETING + words.encode())
    rig.send(messages)


@claim("Rubbish on any socket of the cluster crashes nothing and takes bounded memory", of="security")
def test_memory_is_bounded(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    command = [sys.executable, "-m", "blockwright.tests.fuzz.weighed", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    grown = dict(json.loads(line) for line in done.stdout.splitlines())
    assert {*rubbish.bombs(), "a flood"} < set(grown)
    assert max(grown.values()) < GROWTH, grown


def test_lengths_in_a_batch_that_lie(rig: Rig) -> None:
    lengths = (b"\xff\xff\xff\xff", b"\x04\x00\x00\x00", b"\x01\x00\x00\x80", b"\x00", b"")
    lies = [b"\x01\0\0\0" + count + length + b"abc" for count in (b"\x01\0\0\0", b"\xff" * 4) for length in lengths]
    rig.send([[lie] for lie in lies], greet=rig.greeting())


def test_names_of_others_cannot_be_taken(rig: Rig) -> None:
    """Of the friend, of the node itself, and of an older life."""
    call = [batch([rubbish.packed(message) for message in rubbish.VALID])]
    for claimed in (rig.friend.id, rig.node.id, PeerId("b", 7)):
        rig.send([call], greet=Greeting(claimed, rig.node.id, Lane.CONTROL).pack())
    assert "b" in rig.node.peers()


@bounded
@given(
    data=st.binary(max_size=300) | st.binary(max_size=60).map(lambda rest: b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + rest)
)
def test_bytes_that_are_not_zeromq(rig: Rig, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.connect(rig.node.endpoint.removeprefix("ipc://"))
        raw.sendall(data)
    rig.serve()
