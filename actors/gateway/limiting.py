"""A gateway's way to the limiter: it is asked for each request, and once a second for this gateway's share of the limits.

When it does not answer, requests are charged to the share (``policies/requests/quota_shares.py``), and no request waits for
it until the next share has come.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from ...policies.requests.quota_shares import QuotaShare, SharedQuotas
from ...policies.requests.rate_limit import Limits, LimitStatus, Verdict, limits_for
from ...runtime.actor.actor import ActorNode
from ...runtime.base.errors import RuntimeFault
from ..rate_limiter import Limiter

log = logging.getLogger(__name__)
SECONDS = 1.0  # between two shares, and for an answer


class Limiting:
    """The limits as one gateway applies them (see the module). limiter: its address; empty: there are no limits."""

    def __init__(self, limiter: str = "", limits: Mapping[str, Limits] | None = None) -> None:
        self._limiter = limiter
        self._limits = dict(limits or {})
        self._quotas = SharedQuotas(self._limits)
        self._next = 0.0
        self._sharing: asyncio.Task[None] | None = None

    async def charge(self, node: ActorNode, tenant: str, tokens: int) -> Verdict:
        """Charge a request of at most ``tokens`` tokens; charge nothing if the verdict refuses it."""
        if not self._limiter:
            return Verdict()
        if not self._quotas.lost:
            try:
                verdict: Verdict = await node.ref(self._limiter, Limiter).admit(node.name, tenant, tokens, timeout=SECONDS)
            except RuntimeFault as fault:
                self._lost(node, fault)
            else:
                if not verdict.refused:
                    self._quotas.begun(tenant)
                return verdict
        return self._quotas.admit(tenant, tokens, node.clock.now(), time.time())

    def settle(self, node: ActorNode, tenant: str, charged: int, used: int) -> None:
        """Settle the charge of an admitted request that is over."""
        if not self._limiter:
            return
        if not self._quotas.lost:
            node.ref(self._limiter).end.cast(node.name, tenant, charged, used)
        self._quotas.end(tenant, charged, used, node.clock.now())

    async def standings(self, node: ActorNode, tenants: list[str]) -> dict[str, dict[str, LimitStatus]]:
        """Return the state of the limits by tenant and limit; nothing while the limiter does not answer."""
        if not self._limiter or self._quotas.lost:
            return {}
        try:
            found: dict[str, dict[str, LimitStatus]] = await node.ref(self._limiter, Limiter).standings(tenants)
        except RuntimeFault:  # it is restarting; the rest of the caller's answer is still useful
            return {}
        return found

    def limit(self, tenant: str, name: str) -> int:
        """Return the value of a limit."""
        value: int = getattr(limits_for(self._limits, tenant), name)
        return value

    def tick(self, node: ActorNode) -> None:
        """Fetch this gateway's share, if the interval is over and the last answer has come."""
        now = node.clock.now()
        if not self._limiter or now < self._next or (self._sharing is not None and not self._sharing.done()):
            return
        self._next = now + SECONDS
        self._sharing = asyncio.create_task(self._share(node))

    async def stop(self) -> None:
        """Fetch no more shares."""
        if self._sharing is not None:
            self._sharing.cancel()
            await asyncio.gather(self._sharing, return_exceptions=True)

    async def _share(self, node: ActorNode) -> None:
        quotas, limiter = self._quotas, node.ref(self._limiter, Limiter)
        counted = quotas.report(node.clock.now(), time.time()) if quotas.lost or not quotas.limiter else {}
        try:
            share: QuotaShare = await limiter.share(node.name, quotas.limiter, counted, timeout=SECONDS)
            if share.limiter != quotas.limiter and quotas.limiter and not counted:  # another one, since the last second
                quotas.lose(node.clock.now(), time.time())
                return
        except RuntimeFault as fault:
            self._lost(node, fault)
            return
        quotas.take(share, node.clock.now())

    def _lost(self, node: ActorNode, fault: RuntimeFault) -> None:
        if not self._quotas.lost and not node.stopping:
            log.warning("limits are kept by this gateway's share of them, since the limiter does not answer: %s", fault)
        self._quotas.lose(node.clock.now(), time.time())
