"""The handshake of a connection: who connects, which node it means to reach, in which version.

A ZeroMQ connection says only that something listens there. So the connecting end greets and sends nothing more until it is
welcomed: a process that took the port of another, a node of another release, a second bearer of a name and an address
learnt too late are refused with a sentence, not met with silence. Text, since it must be readable by every version:

    GREETING  "blockwright VERSIONS LANE FROM TO"    VERSIONS: LOWEST-HIGHEST; FROM, TO: name#incarnation
    GREETING  "blockwright VERSIONS join NAME"       a node without a number asks for one; over keys with the SECRET of an
                                                     invitation behind it
    GREETING  "blockwright VERSIONS again SELF EPOCH TRY TICKET"  a member that has lost its head looks for one; EPOCH: of
                                                     the highest head that it has heard of; TRY: rises
    WELCOME   "SELF OTHER VERSION"                   who welcomes whom, and the highest version that both speak
    WELCOME   "SELF OTHER HEARTBEAT SILENCE GRACE VERSION"  to one that asked for a number, or came back: its head, as whom,
                                                     the terms
    REFUSAL   a sentence

Words of the form ``name=value`` may follow: ``release=`` what the sender is, for people; others, of later releases, are
dropped. Owns that text; decides nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

from .address import PeerId, check_name, parse_identity
from .errors import AddressError, HandshakeRefused, ReleaseRefused
from .wire import WireError

GREETING = b"\x03"
WELCOME = b"\x04"
REFUSAL = b"\x05"
LONGEST = 512  # bytes of a greeting, welcome or refusal
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_OBEYS = re.compile(r"the later head ([A-Za-z0-9_.-]{1,64}#[0-9]{1,18}),")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_VERSIONS = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_NAMED = re.compile(r"([a-z_]+)=([^=].*)")
_RELEASE = re.compile(r"[0-9A-Za-z.+!_-]{1,40}")


@dataclass(frozen=True, slots=True, order=True)
class Versions:
    """The versions of the protocol that a release speaks: its own, and the last release's."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest}-{self.highest}"

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse "LOWEST-HIGHEST", or one number. Raises WireError."""
        if (found := _VERSIONS.fullmatch(text)) is None or int(found[1]) > int(found[2] or found[1]):
            raise WireError(f"{text[:16]!r} names no versions")
        return cls(int(found[1]), int(found[2] or found[1]))

    def common(self, offered: Versions) -> int:
        """Return the highest version that both speak. Raises HandshakeRefused."""
        if max(self.lowest, offered.lowest) > (both := min(self.highest, offered.highest)):
            older = self if offered.lowest > self.highest else offered
            raise HandshakeRefused(
                f"protocol {offered} was offered and this node speaks {self}, which is too far apart; upgrade the release "
                f"that speaks {older} first, by one release at a time"
            )
        return both


SPOKEN = Versions(5, 6)  # the last release's and ours; ours counts releases whose messages differ (CONTRIBUTING.md)


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
    versions: Versions = SPOKEN
    release: str = ""

    def pack(self) -> bytes:
        words = f"blockwright {self.versions} {self.lane.value} {self.sender} {self.to}"
        return GREETING + (words + _said(self.release)).encode()


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
    version: int = SPOKEN.highest

    def pack(self) -> bytes:
        terms = f"{self.heartbeat:g} {self.silence:g} {self.orphan_grace:g}"
        return WELCOME + f"{self.head} {self.own} {terms} {self.version}".encode()


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The request of a node of that name to join. secret: from an invitation, or empty."""

    name: str
    secret: str = field(default="", repr=False)
    versions: Versions = SPOKEN
    release: str = ""

    def pack(self) -> bytes:
        words = f"blockwright {self.versions} join {check_name(self.name)} {self.secret}"
        return GREETING + (words.rstrip() + _said(self.release)).encode()


@dataclass(frozen=True, slots=True)
class ReturnRequest:
    """The request of a member that has lost its head to be taken back.

    epoch: of the highest head that it has heard of. attempt: the number of this request among those of this member, from 1.
    """

    sender: PeerId
    epoch: int
    attempt: int
    ticket: str = field(repr=False)
    versions: Versions = SPOKEN
    release: str = ""

    def pack(self) -> bytes:
        words = f"blockwright {self.versions} again {self.sender} {self.epoch} {self.attempt} {self.ticket}"
        return GREETING + (words + _said(self.release)).encode()


def parse(frame: bytes) -> Greeting | JoinRequest | ReturnRequest:
    """Parse a greeting. Raises WireError (no greeting) and HandshakeRefused (no common version)."""
    if frame[:1] != GREETING or len(frame) > LONGEST:
        raise WireError(f"a connection begins with {frame[:16].hex()}, which is no greeting")
    try:
        words = frame[1:].decode("ascii").split(" ")
        if len(words) < 2 or words[0] != "blockwright":
            raise ValueError("it does not begin with blockwright and its versions")
        versions = Versions.parse(words[1])
        said = [word for word in words[2:] if not _NAMED.fullmatch(word)]
        named = {found[1]: found[2] for word in words[2:] if (found := _NAMED.fullmatch(word))}
        release = named.get("release", "") if _RELEASE.fullmatch(named.get("release", "")) else ""
        try:
            SPOKEN.common(versions)
        except HandshakeRefused as error:
            raise ReleaseRefused(str(error), name="".join(said[1:2])[:64], release=release) from None
        if len(said) in (2, 3) and said[0] == "join":
            return JoinRequest(check_name(said[1]), "".join(said[2:]), versions, release)
        if len(said) == 5 and said[0] == "again":
            epoch, attempt = (parse_identity(f"number#{word}").incarnation for word in said[2:4])
            return ReturnRequest(parse_identity(said[1]), epoch, attempt, said[4], versions, release)
        lane, sender, to = said
        return Greeting(parse_identity(sender), parse_identity(to), Lane(lane), versions, release)
    except (ValueError, AddressError) as error:
        raise WireError(f"a greeting that cannot be read: {error}") from error


def _said(release: str) -> str:
    return f" release={release}" if release else ""


@cache
def own_release() -> str:
    """Return the installed version of this package, for people; empty where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # of forty modules, which few programs need

    try:
        return version(__name__.partition(".")[0])
    except PackageNotFoundError:
        return ""


def pack_welcome(self: PeerId, other: PeerId, spoken: int = SPOKEN.highest) -> bytes:
    return WELCOME + f"{self} {other} {spoken}".encode()


def pack_refusal(reason: str) -> bytes:
    return (REFUSAL + _UNPRINTABLE.sub("?", reason).encode())[:LONGEST]


def parse_answer(frame: bytes) -> tuple[PeerId, PeerId]:
    """Return (the welcoming node, the welcomed node).

    Raises HandshakeRefused with the other end's sentence, WireError, AddressError.
    """
    own, other, chosen = _welcome(frame, 3)
    _check_version(chosen)
    return parse_identity(own), parse_identity(other)


def parse_admission(frame: bytes) -> Admission:
    """Parse the answer to a ``JoinRequest`` or ``ReturnRequest``. Raises the same errors as ``parse_answer``."""
    head, own, *terms, chosen = _welcome(frame, 6)
    for term in terms:
        if not _SECONDS.fullmatch(term):
            raise WireError(f"{term[:16]!r} is no number of seconds")
    return Admission(
        parse_identity(head), parse_identity(own), float(terms[0]), float(terms[1]), float(terms[2]), _check_version(chosen)
    )


def _check_version(text: str) -> int:
    """Return the version that the other end chose. Raises WireError, HandshakeRefused."""
    return SPOKEN.common(Versions.parse(text))


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
    if frame[:1] != WELCOME or len(found := [word for word in text.split(" ") if not _NAMED.fullmatch(word)]) != words:
        raise WireError(f"a greeting was answered with {frame[:16].hex()}")
    return found
