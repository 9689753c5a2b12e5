"""The handshake of a connection: who connects, which node it means to reach, in which version.

A ZeroMQ connection says only that something listens there. So the connecting end greets and sends nothing more until it is
welcomed: a process that took the port of another, a node of another release, a second bearer of a name and an address
learnt too late are refused with a sentence, not met with silence. Text, since it must be readable by every version:

    GREETING  "blockwright VERSION LANE FROM TO"     FROM, TO: name#incarnation
    GREETING  "blockwright VERSION join NAME"        a node without a number asks for one; over keys with the SECRET of an
                                                     invitation behind it
    GREETING  "blockwright VERSION again SELF EPOCH TRY TICKET"  a member that has lost its head looks for one; EPOCH: of
                                                     the highest head that it has heard of; TRY: rises
    WELCOME   "SELF OTHER"                           who welcomes whom
    WELCOME   "SELF OTHER HEARTBEAT SILENCE GRACE"   to one that asked for a number, or came back: its head, as whom, terms
    REFUSAL   a sentence

Owns that text; decides nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from .address import PeerId, check_name, parse_identity
from .errors import AddressError, HandshakeRefused
from .wire import WireError

VERSION = 5  # counts changes of frames, envelopes and encodings: nodes of different versions refuse each other
GREETING = b"\x03"
WELCOME = b"\x04"
REFUSAL = b"\x05"
LONGEST = 512  # bytes of a greeting, welcome or refusal
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_OBEYS = re.compile(r"the later head ([A-Za-z0-9_.-]{1,64}#[0-9]{1,18}),")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


class Lane(Enum):
    """A class of traffic; each lane has a connection of its own."""

    CONTROL = "control"
    LINK = "link"  # bulk data, which must not delay control messages
    PULSE = "pulse"  # heartbeats, which must not wait behind a large message (libzmq#2709)


@dataclass(frozen=True, slots=True)
class Greeting:
    sender: PeerId
    to: PeerId
    lane: Lane

    def pack(self) -> bytes:
        return GREETING + f"blockwright {VERSION} {self.lane.value} {self.sender} {self.to}".encode()


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer that lets ``own`` join the cluster of ``head``.

    heartbeat: seconds between heartbeats of its nodes. silence: seconds without any after which one is taken for lost.
    orphan_grace: seconds that a member goes on without a head; 0: none, it ends with its head.
    """

    head: PeerId
    own: PeerId
    heartbeat: float
    silence: float = 0.0
    orphan_grace: float = 0.0

    def pack(self) -> bytes:
        return WELCOME + f"{self.head} {self.own} {self.heartbeat:g} {self.silence:g} {self.orphan_grace:g}".encode()


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The request of a node of that name to join. secret: from an invitation, or empty."""

    name: str
    secret: str = field(default="", repr=False)

    def pack(self) -> bytes:
        words = f"blockwright {VERSION} join {check_name(self.name)} {self.secret}"
        return GREETING + words.rstrip().encode()


@dataclass(frozen=True, slots=True)
class ReturnRequest:
    """The request of a member that has lost its head to be taken back.

    epoch: of the highest head that it has heard of. attempt: the number of this request among those of this member, from 1.
    """

    sender: PeerId
    epoch: int
    attempt: int
    ticket: str = field(repr=False)

    def pack(self) -> bytes:
        words = f"blockwright {VERSION} again {self.sender} {self.epoch} {self.attempt} {self.ticket}"
        return GREETING + words.encode()


def parse(frame: bytes) -> Greeting | JoinRequest | ReturnRequest:
    """Parse a greeting. Raises WireError (no greeting) and HandshakeRefused (another version)."""
    if frame[:1] != GREETING or len(frame) > LONGEST:
        raise WireError(f"a connection begins with {frame[:16].hex()}, which is no greeting")
    try:
        words = frame[1:].decode("ascii").split(" ")
        if len(words) >= 2 and words[0] == "blockwright" and words[1] != str(VERSION):
            raise HandshakeRefused(
                f"version {words[1][:16]} was offered and this node speaks {VERSION}; run the same release everywhere"
            )
        if len(words) in (4, 5) and words[2] == "join":
            return JoinRequest(check_name(words[3]), *words[4:])
        if len(words) == 7 and words[2] == "again":
            epoch, attempt = (parse_identity(f"number#{word}").incarnation for word in words[4:6])
            return ReturnRequest(parse_identity(words[3]), epoch, attempt, words[6])
        _, _, lane, sender, to = words
        return Greeting(parse_identity(sender), parse_identity(to), Lane(lane))
    except (ValueError, AddressError) as error:
        raise WireError(f"a greeting that cannot be read: {error}") from error


def pack_welcome(self: PeerId, other: PeerId) -> bytes:
    return WELCOME + f"{self} {other}".encode()


def pack_refusal(reason: str) -> bytes:
    return (REFUSAL + _UNPRINTABLE.sub("?", reason).encode())[:LONGEST]


def parse_answer(frame: bytes) -> tuple[PeerId, PeerId]:
    """Return (the welcoming node, the welcomed node).

    Raises HandshakeRefused with the other end's sentence, WireError, AddressError.
    """
    own, other = _welcome(frame, 2)
    return parse_identity(own), parse_identity(other)


def parse_admission(frame: bytes) -> Admission:
    """Parse the answer to a ``JoinRequest`` or ``ReturnRequest``. Raises the same errors as ``parse_answer``."""
    head, own, *terms = _welcome(frame, 5)
    for term in terms:
        if not _SECONDS.fullmatch(term):
            raise WireError(f"{term[:16]!r} is no number of seconds")
    return Admission(parse_identity(head), parse_identity(own), *map(float, terms))


def obeys(member: PeerId, later: PeerId, earlier: PeerId) -> str:
    """Return the sentence with which a member refuses a head whose successor it obeys."""
    return f"{member} obeys the later head {later}, so {earlier} is over"


def succeeds(later: PeerId, earlier: PeerId) -> str:
    """Return the sentence with which a head refuses one that it succeeds."""
    return f"here listens the later head {later}, so {earlier} is over"


def over(member: PeerId, why: str) -> str:
    """Return the sentence with which a head refuses a member for good."""
    return f"the life of {member} is over: {why}"


def is_over(sentence: str, member: PeerId) -> bool:
    """Return True if a refusal is one of ``over``."""
    return sentence.startswith(f"the life of {member} is over: ")


def obeyed(sentence: str) -> PeerId | None:
    """Return the later head that a refusal names, if it is one of ``obeys`` or ``succeeds``."""
    found = _OBEYS.search(sentence)
    return parse_identity(found[1]) if found is not None else None


def _welcome(frame: bytes, words: int) -> list[str]:
    text = _UNPRINTABLE.sub("?", frame[1:LONGEST].decode("latin-1"))
    if frame[:1] == REFUSAL:
        raise HandshakeRefused(text)
    if frame[:1] != WELCOME or len(found := text.split(" ")) != words:
        raise WireError(f"a greeting was answered with {frame[:16].hex()}")
    return found
