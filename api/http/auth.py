"""Authentication by API keys: who is asking, and which models a key may use. Deny by default; the middleware lets only the
health probes through without one.

Keys are kept and compared as hashes, all of them each time, so that the time taken tells nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from ...policies.requests.request_ownership import Viewer
from ..errors import ApiError


@dataclass(frozen=True, slots=True)
class ApiCaller:
    """A key, by its tenant and by a name that does not tell it.

    ``admin``: it may use ``/admin``; ``everything``: it is an admin key, which may see the requests of all keys. Where no
    key is an admin key all may use ``/admin``, and yet none sees the requests of another.
    """

    tenant: str = ""
    key: str = ""
    admin: bool = True
    everything: bool = False

    @property
    def viewer(self) -> Viewer:
        return Viewer(self.key, self.everything)


class Keys:
    """Who each key belongs to. With no keys everybody is the tenant "" and may do everything.

    ``admins`` are further keys. While there are none, every key may use ``/admin``.
    """

    def __init__(self, keys: Mapping[str, str], admins: Mapping[str, str] | None = None) -> None:
        known = {**keys, **(admins or {})}
        self._callers = [(_digest(key), self._caller(key, tenant, admins or {})) for key, tenant in known.items()]

    @staticmethod
    def _caller(key: str, tenant: str, admins: Mapping[str, str]) -> ApiCaller:
        return ApiCaller(tenant, _digest(key).hex()[:16], admin=not admins or key in admins, everything=key in admins)

    @property
    def required(self) -> bool:
        return bool(self._callers)

    def caller(self, authorization: str | None, *, own_page: bool = False) -> ApiCaller | None:
        """Of an ``Authorization`` header; None for a missing or wrong key.

        own_page: no page of another site makes the browser ask, so that what the browser adds by itself (Basic, with the
        key as the password) may count too.
        """
        if not self._callers:
            return ApiCaller()
        scheme, _, key = (authorization or "").partition(" ")
        known = scheme.lower() == "bearer"
        if own_page and scheme.lower() == "basic":
            key, known = _password(key), True
        given = _digest(key.strip())
        found = None
        for digest, caller in self._callers:
            if hmac.compare_digest(digest, given) and known:
                found = caller
        return found


def _password(credentials: str) -> str:
    """Of ``base64(name:password)``; empty where it is none."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


class ModelAccess:
    """``models``: tenant -> model ids with commas between; tenants without an entry may use all."""

    def __init__(self, models: Mapping[str, str]) -> None:
        self._models = {tenant: frozenset(m.strip() for m in text.split(",")) for tenant, text in models.items()}

    def may_use(self, caller: ApiCaller, model: str) -> bool:
        allowed = self._models.get(caller.tenant)
        return allowed is None or model in allowed

    def check(self, caller: ApiCaller, model: str) -> None:
        """Raises a 403."""
        if not self.may_use(caller, model):
            served = ", ".join(sorted(self._models[caller.tenant]))
            message = f"the API key of tenant {caller.tenant!r} may not use model {model!r}; it may use: {served}"
            raise ApiError(403, message, param="model", code="permission_denied")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
