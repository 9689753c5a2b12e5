"""The accounts of tenants as a gateway uses them: those of the limiter on the head, or a share of its own without a head.

While no head is there, each gateway admits at most its share: the limit divided by the number of gateways. So all of them
together admit no more than before, beside what was spent already. Owns the share; the limiter owns the accounts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from ...policies.requests.rate_limit import Limits, LimitStatus, Quotas, Verdict, share_of
from ...policies.requests.refusal import Refusal, RequestRefused
from ...runtime.actor.actor import ActorNode
from ...runtime.base.errors import Away, RuntimeFault
from ..rate_limiter import Limiter


class TenantAccounts:
    """The accounts at one gateway (see the module).

    limiter: its address; empty without limits. limits: by tenant. gateways: their number.
    """

    def __init__(self, limiter: str = "", limits: Mapping[str, Limits] | None = None, gateways: int = 1) -> None:
        self._limiter = limiter
        shares = {tenant: share_of(limit, gateways) for tenant, limit in (limits or {}).items()}
        self._own = Quotas(shares)
        self._running: Counter[str] = Counter()  # requests that were charged to the own share, by tenant

    async def charge(self, node: ActorNode, tenant: str, tokens: int, *, alone: bool) -> Verdict:
        """Charge a request. alone: the gateway outlives its head. Raises RequestRefused where no account can be read."""
        if not self._limiter:
            return Verdict()
        try:
            verdict: Verdict = await node.ref(self._limiter, Limiter).admit(node.name, tenant, tokens)
        except RuntimeFault as fault:
            if alone and isinstance(fault, Away):
                return self._charge_own(node, tenant, tokens)
            message = f"the account of tenant {tenant!r} cannot be read now ({fault}); try again"
            raise RequestRefused(Refusal.UNAVAILABLE, message, 1.0) from fault
        return verdict

    def _charge_own(self, node: ActorNode, tenant: str, tokens: int) -> Verdict:
        verdict = self._own.admit(tenant, tokens, node.clock.now(), time.time())
        self._running[tenant] += not verdict.refused
        return verdict

    def settle(self, node: ActorNode, tenant: str, charged: int, used: int) -> None:
        """Give back what an admitted request has not used."""
        if self._running[tenant]:
            self._running[tenant] -= 1
            self._own.end(tenant, charged, used, node.clock.now())
        elif self._limiter:
            node.ref(self._limiter).end.cast(node.name, tenant, charged, used)

    async def standings(self, node: ActorNode, tenants: list[str]) -> dict[str, dict[str, LimitStatus]]:
        """Return the state of each limit; nothing while the limiter is away: the rest of an answer is still useful."""
        if not self._limiter:
            return {}
        try:
            found: dict[str, dict[str, LimitStatus]] = await node.ref(self._limiter, Limiter).standings(tenants)
        except RuntimeFault:
            return {}
        return found

    async def limit(self, node: ActorNode, tenant: str, name: str) -> int:
        """Return the value of a limit."""
        value: int = await node.ref(self._limiter, Limiter).limit(tenant, name)
        return value
