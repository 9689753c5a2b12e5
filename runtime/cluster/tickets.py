"""Tickets: with one a member of an earlier head comes back to the next head as what it was.

A head gives each member a ticket and renews it while it lives. The next head has the same secret, so it finds its own
signature in what a member brings and needs to remember nothing. Pure: time comes in as an argument.

    TICKET  "bwt1:NAME:INCARNATION:KIND:ROLE:KEY:EXPIRES:SIGNATURE"
            KIND: "launched" or "joined"; ROLE, KEY: "-" if there is none
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass

from ...transport.address import PeerId, parse_identity
from ...transport.errors import AddressError, HandshakeRefused

PREFIX = "bwt1"
NONE = "-"
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SECONDS = re.compile(r"[1-9][0-9]{0,11}")


@dataclass(frozen=True, slots=True)
class MemberTicket:
    """The content of a ticket.

    role: of its join text, or "". joined: no head launched it. key: of the member, hexadecimal, "" without keys. expires:
    seconds of Unix time.
    """

    member: PeerId
    role: str
    joined: bool
    key: str
    expires: int


class Tickets:
    """The tickets of one cluster, made and checked with a secret that all its heads know."""

    def __init__(self, secret: bytes) -> None:
        self._secret = hmac.digest(secret, b"blockwright tickets", "sha256")

    def issue(self, ticket: MemberTicket) -> str:
        """Return the text of a ticket."""
        kind = "joined" if ticket.joined else "launched"
        words = [PREFIX, ticket.member.name, str(ticket.member.incarnation), kind]
        words += [ticket.role or NONE, ticket.key or NONE, str(ticket.expires)]
        return ":".join([*words, self._sign(words)])

    def check(self, text: str, key: str, unix: float) -> MemberTicket:
        """Return what the ticket says that a node with this key brings. Raises HandshakeRefused."""
        words = text.split(":")
        if len(words) != 8 or words[0] != PREFIX or not all(map(_WORD.fullmatch, words)):
            raise HandshakeRefused("the ticket cannot be read; start this node again, so that it joins anew")
        *said, signature = words
        if not hmac.compare_digest(self._sign(said).encode(), signature.encode()):
            raise HandshakeRefused("the ticket is not of this cluster; start this node again, so that it joins anew")
        _, name, incarnation, kind, role, owner, expires = said
        try:
            member = parse_identity(f"{name}#{incarnation}")
        except AddressError:
            raise HandshakeRefused("the ticket names no node; start this node again, so that it joins anew") from None
        if not _SECONDS.fullmatch(expires) or unix >= int(expires):
            raise HandshakeRefused(f"the ticket of {member} has expired; start this node again, so that it joins anew")
        if owner != (key or NONE):
            raise HandshakeRefused(f"the ticket of {member} belongs to another key; start this node again")
        return MemberTicket(member, "" if role == NONE else role, kind == "joined", key, int(expires))

    def _sign(self, words: list[str]) -> str:
        return hmac.new(self._secret, ":".join(words).encode(), hashlib.sha256).hexdigest()
