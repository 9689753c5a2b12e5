"""Invitations to a cluster: each lets one node in, once, and expires.

Owns the text for the person who starts that node (where the head is, the key that must answer there, and a secret),
and what the head remembers of it: a digest of the secret and when it is over. Time comes in as an argument.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import sys
from dataclasses import dataclass, field

from ...transport.errors import AddressError, HandshakeRefused
from .join_text import NODE, WORKER, JoinText
from .join_text import PREFIX as TEXT

PREFIX = "bw1-"
MOST = 256  # open at once
_SECRET = re.compile(r"[0-9a-f]{64}")
LONGEST = 4096  # characters of a file that are looked at
ANY = (PREFIX, TEXT, "tcp://", "ipc://")  # how what admits a node begins
JOIN_TEXT = f"join text (it would begin with {TEXT})"
ANY_TEXT = f"invitation (it would begin with {PREFIX}), join text ({TEXT}) or address"
MAKE_TEXT = "make one with blockwright keys join, or with serve --join-file"
MAKE_ANY = "copy the invitation again, or make a join text with blockwright keys join --role node"


@dataclass(frozen=True, slots=True)
class Invitation:
    """The content of an invitation. Its text is as good as a key: the first node that uses it joins."""

    endpoint: str
    secret: str = field(repr=False)

    def pack(self) -> str:
        return PREFIX + base64.urlsafe_b64encode(f"{self.endpoint} {self.secret}".encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Invitation:
        """Parse an invitation. Raises AddressError, which does not repeat the text."""
        body = text.removeprefix(PREFIX)
        try:
            endpoint, secret = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode().split(" ")
            if not text.startswith(PREFIX) or not _SECRET.fullmatch(secret):
                raise ValueError
        except (ValueError, binascii.Error):
            raise AddressError("the invitation cannot be read; copy the whole of it") from None
        return cls(endpoint, secret)


def given(where: str, role: str) -> str:
    """Read the value of ``--join`` of a node of that role, which is the text itself, "-" for a line of standard input, or
    "@FILE" for what that file holds. Raises AddressError, also for a text that was cut off, which does not repeat what it
    read: that may be most of a secret.
    """
    if where != "-" and not where.startswith("@"):
        return _whole(where, role)
    make = MAKE_TEXT if role == WORKER else f"make one with blockwright keys join --role {role}"
    wanted, begins, remedy = (ANY_TEXT, ANY, MAKE_ANY) if role == NODE else (JOIN_TEXT, (TEXT,), make)
    text = sys.stdin.readline(LONGEST) if where == "-" else _content(where, remedy)
    if not (text := text.strip()).startswith(begins):
        source = "standard input" if where == "-" else "that file"
        raise AddressError(f"--join is {where!r}, but {source} holds no {wanted}; {remedy}")
    return _whole(text, role)


def _whole(text: str, role: str) -> str:
    """Return a text that can be read, or an address where the role may join by that. Raises AddressError."""
    try:
        if role != NODE or text.startswith(TEXT):
            JoinText.parse(text)
        elif text.startswith(PREFIX):
            Invitation.parse(text)
    except AddressError as error:
        hint = f", or give @{text} for what that file holds" if os.path.isfile(text) else ""
        raise AddressError(f"--join: {error}{hint}") from None
    return text


def _content(where: str, remedy: str) -> str:
    """Read the file of ``@FILE``. Raises AddressError; ``remedy``: what to do if there is none."""
    try:
        with open(where[1:], encoding="utf-8-sig", errors="replace") as file:
            return file.read(LONGEST)
    except IsADirectoryError:
        raise AddressError(f"--join is {where!r}, but that is a folder; name a file in it") from None
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            remedy = "name a file that you may read"
        raise AddressError(f"--join is {where!r}, but that file cannot be read ({error.strerror}); {remedy}") from None


class Invitations:
    """The invitations that the head remembers."""

    def __init__(self) -> None:
        self._open: dict[bytes, float] = {}  # when each is over, by digest

    def issue(self, until: float) -> str:
        """Return a new secret. Raises ValueError when too many are open."""
        if len(self._open) >= MOST:
            raise ValueError(f"{MOST} invitations are open; wait until some are used or expired")
        secret = secrets.token_hex(32)
        self._open[_digest(secret)] = until
        return secret

    def any(self, now: float) -> bool:
        """Return True if an invitation could be redeemed."""
        self._open = {digest: until for digest, until in self._open.items() if now < until}
        return bool(self._open)

    def check(self, secret: str, now: float) -> None:
        """Raise HandshakeRefused unless the invitation can be redeemed."""
        self._find(secret, now)

    def redeem(self, secret: str, now: float) -> None:
        """Once. Raises HandshakeRefused."""
        digest = self._find(secret, now)
        del self._open[digest]

    def _find(self, secret: str, now: float) -> bytes:
        if self.any(now):
            wanted = _digest(secret)
            for digest in self._open:
                if hmac.compare_digest(digest, wanted):
                    return digest
        raise HandshakeRefused("the invitation is used, expired or invalid; ask the head for a new one")


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
