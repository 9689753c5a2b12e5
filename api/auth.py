"""API keys: who is asking. Deny by default; the middleware lets only the health probes through without one.

Keys are kept and compared as hashes, all of them each time, so that the time taken tells nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping


class Keys:
    """Key -> tenant. With no keys everybody is the tenant ""."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._tenants = [(_digest(key), tenant) for key, tenant in keys.items()]

    @property
    def required(self) -> bool:
        return bool(self._tenants)

    def tenant(self, authorization: str | None) -> str | None:
        """The tenant of an ``Authorization`` header; None for a missing or wrong key."""
        if not self._tenants:
            return ""
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        found = None
        for digest, tenant in self._tenants:
            if hmac.compare_digest(digest, given) and scheme.lower() == "bearer":
                found = tenant
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
