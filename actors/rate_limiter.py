"""Rate limiter actor: the only owner of the tenants' usage. Lives on the head; every gateway asks it.

A gateway that dies takes its requests with it, so their slots are freed then. Decides nothing itself: see
``policies/requests/rate_limit.py``.
"""

from __future__ import annotations

import time

from ..policies.requests.rate_limit import Limits, LimitStatus, Quotas, Verdict
from ..runtime.actor.actor import Actor
from ..runtime.actor.endpoint import endpoint
from ..runtime.base.down import Down
from .settings.tenants import RATE_LIMITS, TenantSettings


def limits_of(settings: TenantSettings) -> dict[str, Limits]:
    """Return the limits by tenant; empty if there are none."""
    tenants = {tenant for name in RATE_LIMITS for tenant in getattr(settings, name)}
    default = {name: getattr(settings, name).get("*", 0) for name in RATE_LIMITS}
    return {
        t: Limits(**{name: getattr(settings, name).get(t, default[name]) for name in RATE_LIMITS}) for t in sorted(tenants)
    }


class Limiter(Actor):
    """Rate limiter actor (see the module)."""

    def __init__(self, limits: dict[str, Limits]) -> None:
        self.quotas = Quotas(limits)
        self._watched: set[str] = set()  # gateway nodes

    @endpoint
    async def admit(self, gateway: str, tenant: str, tokens: int) -> Verdict:
        """Charge a request of at most ``tokens`` tokens. The node ``gateway`` will report its end."""
        if gateway != self.node.name and gateway not in self._watched:
            self._watched.add(gateway)
            self.node.monitor(gateway, self._gone)
        return self.quotas.admit(tenant, tokens, self.node.clock.now(), time.time(), gateway)

    @endpoint(urgent=True)
    async def end(self, gateway: str, tenant: str, charged: int, used: int) -> None:
        self.quotas.end(tenant, charged, used, self.node.clock.now(), gateway)

    @endpoint
    async def limit(self, tenant: str, name: str) -> int:
        """Return the value of a limit."""
        return self.quotas.limit(tenant, name)

    @endpoint
    async def standings(self, tenants: list[str]) -> dict[str, dict[str, LimitStatus]]:
        """Return the state of each limit of ``tenants``, and of any other active tenant; by tenant and limit."""
        return self.quotas.standings(tenants, self.node.clock.now(), time.time())

    def _gone(self, down: Down) -> None:
        self._watched.discard(down.node)
        self.quotas.forget(down.node)
