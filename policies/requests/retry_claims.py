"""Claims of requests with an ``Idempotency-Key``: which gateway runs a key's request, so that a retry at another finds it.

Each key has a keeper among the gateways that live, by its hash; the keeper knows who runs it. When a keeper is gone, the
gateways that run something claim it at the next one. Pure: time comes in as an argument.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

MOST = 16_384  # claims that are kept; the oldest that has ended goes first


def keeper_of(key: str, gateways: Collection[str]) -> str:
    """Return the keeper of a key among these gateways; it changes for the keys of one that goes, and for no others."""

    def weight(gateway: str) -> bytes:
        return hashlib.blake2b(f"{gateway} {key}".encode(), digest_size=8).digest()

    return max(gateways, key=lambda gateway: (weight(gateway), gateway))


@dataclass(slots=True)
class _Claim:
    gateway: str
    ended: float | None = None


class RetryClaims:
    """The claims that one gateway keeps. ``window``: seconds for which a claim outlives its run, as the answer does."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._claims: OrderedDict[str, _Claim] = OrderedDict()

    def claim(self, key: str, gateway: str, now: float, instead_of: str = "") -> str:
        """Return the gateway that runs a key's request: the claimant, if none does.

        instead_of: the gateway that had it, and turned out to have it no more.
        """
        known = self._claims.get(key)
        if known is not None and known.gateway not in ("", instead_of) and not self._over(known, now):
            return known.gateway
        self._claims[key] = _Claim(gateway)
        self._claims.move_to_end(key)
        while len(self._claims) > MOST:
            ended = (one for one, claim in self._claims.items() if claim.ended is not None)
            del self._claims[next(ended, next(iter(self._claims)))]
        return gateway

    def end(self, key: str, gateway: str, now: float, *, kept: bool) -> None:
        """Note the end of a run. ``kept``: it has an answer, which a retry gets within the window."""
        known = self._claims.get(key)
        if known is None or known.gateway != gateway:
            return
        if kept:
            known.ended = now
        else:
            del self._claims[key]

    def forget(self, gateway: str) -> None:
        """Forget the claims of a gateway that is gone, with its answers."""
        for key in [key for key, claim in self._claims.items() if claim.gateway == gateway]:
            del self._claims[key]

    def _over(self, claim: _Claim, now: float) -> bool:
        return claim.ended is not None and now - claim.ended > self._window
