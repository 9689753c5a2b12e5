"""Authentication by API keys: the caller of a request, and the models that a key may use.

Access is denied by default. The middleware lets only the health probes through without a key. Keys are stored and compared
as hashes, and each check compares all of them, so that the time it takes reveals nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from ...policies.requests.request_ownership import Viewer
from ...policies.requests.urgency import NAMED_CLASSES, TIERS, class_of
from ..errors import ApiError


@dataclass(frozen=True, slots=True)
class ApiCaller:
    """The owner of a key: its tenant, and a name for the key that does not reveal it.

    ``admin``: the caller may use ``/admin``. ``everything``: the key is an admin key, which may see the requests of all
    keys. If no key is an admin key, every key may use ``/admin``, but none sees the requests of another.
    """

    tenant: str = ""
    key: str = ""
    admin: bool = True
    everything: bool = False

    @property
    def viewer(self) -> Viewer:
        return Viewer(self.key, self.everything)


class Keys:
    """The keys and their owners. Without keys every caller is the tenant "" and may do everything.

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

    def caller(self, authorization: str | None, api_key: str | None = None, *, own_page: bool = False) -> ApiCaller | None:
        """Return the caller that the headers ``Authorization`` and ``x-api-key`` name; None for missing or wrong keys.

        A right key in the first comes before one in the second. own_page: accept also Basic, with the key as the password.
        Browsers add Basic by themselves, so it counts only if no page of another site can have caused the request.
        """
        if not self._callers:
            return ApiCaller()
        scheme, _, key = (authorization or "").partition(" ")
        known = scheme.lower() == "bearer"
        if own_page and scheme.lower() == "basic":
            key, known = _password(key), True
        first = self._owner(key, known=known)
        second = self._owner(api_key or "", known=api_key is not None)
        return first or second

    def _owner(self, key: str, *, known: bool) -> ApiCaller | None:
        """Return the owner of a key. ``known``: the key came in a way that counts."""
        given = _digest(key.strip())
        found = None
        for digest, caller in self._callers:
            if hmac.compare_digest(digest, given) and known:
                found = caller
        return found


def _password(credentials: str) -> str:
    """Return the password in ``base64(name:password)``, or an empty text if that is malformed."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


class ModelAccess:
    """The models that each tenant may use.

    ``models``: tenant -> comma-separated model ids. A tenant without an entry may use all.
    """

    def __init__(self, models: Mapping[str, str]) -> None:
        self._models = {tenant: frozenset(m.strip() for m in text.split(",")) for tenant, text in models.items()}

    def may_use(self, caller: ApiCaller, model: str) -> bool:
        allowed = self._models.get(caller.tenant)
        return allowed is None or model in allowed

    def check(self, caller: ApiCaller, model: str) -> None:
        """Raise a 403 if the caller may not use the model."""
        if not self.may_use(caller, model):
            served = ", ".join(sorted(self._models[caller.tenant]))
            message = f"the API key of tenant {caller.tenant!r} may not use model {model!r}; it may use: {served}"
            raise ApiError(403, message, param="model", code="permission_denied")


class ServiceClasses:
    """The highest service class that each tenant may ask for.

    ``highest``: tenant, or * for all others -> class. Tenants without an entry, and callers without keys, may ask for all.
    """

    def __init__(self, highest: Mapping[str, str]) -> None:
        self._highest = dict(highest)

    def check(self, caller: ApiCaller, tier: str | None) -> None:
        """Raise a 403 if the caller may not ask for the class of a service tier. ``tier``: as asked for; None: not named."""
        highest = self._highest.get(caller.tenant, self._highest.get("*", "")) if caller.tenant else ""
        if highest and NAMED_CLASSES.index(class_of(tier or "default")) < NAMED_CLASSES.index(highest):
            may = ", ".join(name for name in TIERS if NAMED_CLASSES.index(class_of(name)) >= NAMED_CLASSES.index(highest))
            asked = f"use service_tier {tier!r}" if tier else "leave out service_tier"
            message = f"the API key of tenant {caller.tenant!r} may not {asked}; give service_tier as one of: {may}"
            raise ApiError(403, message, param="service_tier", code="permission_denied")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
