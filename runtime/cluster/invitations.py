"""Invitations to a cluster: each lets one node in, once, and expires.

Owns the text for the person who starts that node (where the head is, the key that must answer there, and a secret),
and what the head remembers of it: a digest of the secret and when it is over. Time comes in as an argument.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import sys
from dataclasses import dataclass, field

from ...transport.errors import AddressError, HandshakeRefused
from .join_text import PREFIX as TEXT

PREFIX = "bw1-"
MOST = 256  # open at once
_SECRET = re.compile(r"[0-9a-f]{64}")
LONGEST = 4096  # characters of a file that are looked at


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


def given(where: str) -> str:
    """Read the value of ``--join``: an address, an invitation or a join text; "-" is a line of standard input, "@FILE" what
    that file holds. Raises AddressError, which does not repeat what was read: it may be most of an invitation.
    """
    if where == "-":
        source, text = "standard input", sys.stdin.readline(LONGEST)
    elif where.startswith("@"):
        source, text = where[1:], _content(where[1:])
    else:
        return where
    if not (text := text.strip()).startswith((PREFIX, TEXT, "tcp://", "ipc://")):
        raise AddressError(f"{source} holds no invitation (it would begin with {PREFIX}) and no address")
    return text


def _content(name: str) -> str:
    try:
        with open(name, encoding="utf-8-sig", errors="replace") as file:
            return file.read(LONGEST)
    except OSError as error:
        raise AddressError(f"the invitation in {name!r} cannot be read: {error.strerror}") from error


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
