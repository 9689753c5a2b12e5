"""Rate limiter actor: the owner of the tenants' usage. Lives on the head; every gateway asks it.

A gateway that dies takes its requests with it, so their slots are freed then. Once a second each gateway fetches its share,
by which it goes on without a head. Decides nothing itself: see ``policies/requests/rate_limit.py`` and ``quota_shares.py``.
"""

from __future__ import annotations

import time
from dataclasses import replace

from ..policies.requests.quota_shares import NeedOfGateways, QuotaShare, share_of
from ..policies.requests.rate_limit import Limits, LimitStatus, Quotas, TakenQuota, Verdict
from ..runtime.actor.actor import Actor
from ..runtime.actor.endpoint import endpoint
from ..runtime.base.down import Down
from .settings.tenants import RATE_LIMITS, TenantSettings

SHARING = 3.0  # seconds after its last share in which a gateway counts as one that has a share


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
        self._need = NeedOfGateways()
        self._watched: set[str] = set()  # gateway nodes
        self._sharing: dict[str, float] = {}  # gateway node -> when it fetched its share last

    @endpoint
    async def admit(self, gateway: str, tenant: str, tokens: int) -> Verdict:
        """Charge a request of at most ``tokens`` tokens. The node ``gateway`` will report its end."""
        self._watch(gateway)
        self._need.note(tenant, gateway)
        return self.quotas.admit(tenant, tokens, self.node.clock.now(), time.time(), gateway)

    @endpoint(urgent=True)
    async def end(self, gateway: str, tenant: str, charged: int, used: int) -> None:
        self.quotas.end(tenant, charged, used, self.node.clock.now(), gateway)

    @endpoint
    async def standings(self, tenants: list[str]) -> dict[str, dict[str, LimitStatus]]:
        """Return the state of each limit of ``tenants``, and of any other active tenant; by tenant and limit."""
        return self.quotas.standings(tenants, self.node.clock.now(), time.time())

    @endpoint(urgent=True)
    async def share(self, gateway: str, limiter: str, counted: dict[str, TakenQuota]) -> QuotaShare:
        """Return a gateway's share of the limits.

        limiter: the one that it knows. counted: by the gateway itself, where that is another one or has not answered.
        """
        self._watch(gateway)
        now, wall = self.node.clock.now(), time.time()
        mine = str(self.ref)
        for tenant, taken in counted.items():
            if limiter == mine:  # which knows what was taken before it was lost; the rest is within one share
                self.quotas.count(tenant, gateway, taken.running, now)
            else:
                self.quotas.absorb(tenant, taken, gateway, now, wall)
        self._need.look(gateway)
        self._sharing = {name: at for name, at in self._sharing.items() if now - at < SHARING} | {gateway: now}
        return replace(share_of(self.quotas, self._need, gateway, len(self._sharing), (now, wall)), limiter=mine)

    def _watch(self, gateway: str) -> None:
        if gateway != self.node.name and gateway not in self._watched:
            self._watched.add(gateway)
            self.node.monitor(gateway, self._gone)

    def _gone(self, down: Down) -> None:
        self._watched.discard(down.node)
        self._sharing.pop(down.node, None)
        self._need.forget(down.node)
        self.quotas.forget(down.node)
