"""Join texts: each lets nodes of one role into a cluster, any number of times, until it expires or is revoked.

The head remembers nothing of them: it finds its own signature in what a node brings. So a text can be made before the head
runs, with its secret key alone. Pure: time comes in as an argument.

    TEXT    "bwj1-" and base64 of "ADDRESS,… KEY ROLE EXPIRES ID SIGNATURE"
    TICKET  "bwj1-ROLE.EXPIRES.ID.DIGEST.SIGNATURE"  what a node sends to the head; DIGEST: of the addresses
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ...transport.address import is_wildcard, keyed, tcp_parts
from ...transport.curve import NodeKeys
from ...transport.errors import AddressError, HandshakeRefused

PREFIX = "bwj1-"
WORKER = "worker"
GATEWAY = "gateway"
PREDICTOR = "predictor"
LAUNCHED = "launched"  # a worker that the head's launcher starts: the text is for one life of it alone
NODE = "node"
ROLES = (WORKER, GATEWAY, PREDICTOR, NODE)
MOST_ADDRESSES = 16
LONGEST = 4096  # characters of a text
_KEY = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{12}")
_SECONDS = re.compile(r"[1-9][0-9]{0,11}")
_MADE_BY = "blockwright keys join"


@dataclass(frozen=True, slots=True)
class JoinText:
    """The content of a join text, which is as good as a key.

    addresses: of the head, "tcp://HOST:PORT" each. key: of the head, hexadecimal. expires: seconds of Unix time.
    """

    addresses: tuple[str, ...]
    key: str
    role: str
    expires: int
    id: str
    signature: str = field(repr=False)

    def pack(self) -> str:
        words = f"{','.join(self.addresses)} {self.key} {self.role} {self.expires} {self.id} {self.signature}"
        return PREFIX + base64.urlsafe_b64encode(words.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> JoinText:
        """Parse a text. Raises AddressError, which does not repeat it."""
        body = text.strip().removeprefix(PREFIX)
        try:
            if not text.strip().startswith(PREFIX) or len(text) > LONGEST:
                raise ValueError
            words = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True).decode("ascii")
            places, key, role, expires, id, signature = words.split(" ")
            if not (_KEY.fullmatch(key) and _SECONDS.fullmatch(expires) and _ID.fullmatch(id) and _KEY.fullmatch(signature)):
                raise ValueError
            addresses = check_addresses(places.split(","))
        except (ValueError, binascii.Error):
            raise AddressError(f"the join text cannot be read; copy the whole line that {_MADE_BY} printed") from None
        return cls(addresses, key, role, int(expires), id, signature)

    @property
    def ticket(self) -> str:
        """The part of the text that a node sends to the head."""
        return f"{PREFIX}{self.role}.{self.expires}.{self.id}.{_digest(self.addresses)}.{self.signature}"

    @property
    def endpoints(self) -> list[str]:
        """The addresses of the head, each with the key that must answer there."""
        return [keyed(address, self.key) for address in self.addresses]

    def check_role(self, role: str) -> None:
        """Raise AddressError unless the text admits this role."""
        if self.role != role and (role, self.role) != (WORKER, LAUNCHED):
            raise AddressError(
                f"the join text admits the role {self.role}, and this is a {role}; make one with {_MADE_BY} --role {role}"
            )


class JoinTexts:
    """The texts of one cluster: made and checked with the secret key of its head.

    revoked: ids of texts that are refused.
    """

    def __init__(self, keys: NodeKeys, revoked: Collection[str] = ()) -> None:
        self._keys = keys
        self._secret = hmac.digest(keys.secret, b"blockwright join texts", "sha256")
        self._revoked = frozenset(revoked)

    def issue(self, addresses: Sequence[str], role: str, expires: int) -> JoinText:
        """Return a new text. Raises AddressError for a role or address that cannot be."""
        if role not in (*ROLES, LAUNCHED):
            raise AddressError(f"there is no role {role!r}; choose one of {', '.join(ROLES)}")
        places, id = check_addresses(addresses), secrets.token_hex(6)
        return JoinText(places, self._keys.name, role, expires, id, self._sign(role, expires, id, _digest(places)))

    def check(self, ticket: str, now: float) -> str:
        """Return the role that a ticket admits. ``now``: seconds of Unix time. Raises HandshakeRefused."""
        words = ticket.removeprefix(PREFIX).split(".")
        if not ticket.startswith(PREFIX) or len(words) != 5 or not _SECONDS.fullmatch(words[1]):
            raise HandshakeRefused(f"the join text cannot be read; make another with {_MADE_BY}")
        role, expires, id, digest, signature = words
        if not hmac.compare_digest(self._sign(role, int(expires), id, digest).encode(), signature.encode()):
            raise HandshakeRefused(
                f"the join text is not of this cluster, or was changed; make one from the head's keys with {_MADE_BY}"
            )
        if id in self._revoked:
            raise HandshakeRefused(f"the join text {id} is revoked (revoked_joins); make another with {_MADE_BY}")
        if now >= int(expires):
            raise HandshakeRefused(f"the join text {id} expired at {moment(int(expires))}; make another with {_MADE_BY}")
        return role

    @staticmethod
    def id_of(ticket: str) -> str:
        """Return the id of the text that a ticket was made from, once the ticket is checked."""
        return ticket.split(".")[2]

    def _sign(self, role: str, expires: int, id: str, digest: str) -> str:
        words = f"{self._keys.name} {role} {expires} {id} {digest}"
        return hmac.new(self._secret, words.encode(), hashlib.sha256).hexdigest()


def check_addresses(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in full: ``HOST:PORT`` stands for ``tcp://HOST:PORT``. Raises AddressError."""
    found = []
    for one in addresses:
        full = one if "://" in one else f"tcp://{one}"
        try:
            host, port = tcp_parts(full)
        except AddressError:
            raise AddressError(
                f"{one[:200]!r} is not of the form HOST:PORT; give a host and a port up to 65535, such as head.example:7000"
            ) from None
        if not port or "?" in full:
            raise AddressError(f"{one[:200]!r} names no port at which the head listens; give HOST:PORT")
        if is_wildcard(host):
            raise AddressError(f"{one[:200]!r} stands for every address of the head; give the one at which nodes reach it")
        found.append(full)
    if not 0 < len(found) <= MOST_ADDRESSES:
        raise AddressError(f"{len(found)} addresses are given; give 1 to {MOST_ADDRESSES}")
    return tuple(found)


def moment(seconds: float) -> str:
    """Return a time for people: "2026-11-30 12:45 UTC"."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _digest(addresses: Sequence[str]) -> str:
    return hashlib.sha256(",".join(addresses).encode()).hexdigest()[:32]
