"""Rate limits of tenants at the HTTP front: charge a checked request, or refuse it with a 429.

A request is charged with the most that it can cost; the rest is returned when it ends. The limiter actor keeps the accounts
(one actor for all gateways); without limits it is not called. Headers say what is left, as in OpenAI's API.
"""

from __future__ import annotations

import asyncio
import math

from aiohttp import web

from ...actors.gateway.port import GatewayPort
from ...policies.requests.rate_limit import LimitStatus, Verdict
from ..errors import ApiError
from .auth import ApiCaller

_WORDS = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "tokens_per_day": "tokens per day",
    "concurrent_requests": "requests at a time",
}


class Charge:
    """The charge for one request."""

    def __init__(self, port: GatewayPort, tenant: str, tokens: int, verdict: Verdict) -> None:
        self.verdict = verdict
        self._port = port
        self._tenant = tenant
        self._tokens = tokens

    def end(self, used: int) -> None:
        """End the request after ``used`` tokens and return the rest. Idempotent."""
        port, tokens = self._port, self._tokens
        self._tokens = 0
        if tokens:
            port.settle(self._tenant, tokens, used)


class TenantLimits:
    """The rate limits of all tenants (see the module)."""

    def __init__(self, port: GatewayPort) -> None:
        self._port = port

    async def enter(self, caller: ApiCaller, tokens: int, limit_name: str = "") -> Charge:
        """Charge a request that costs at most ``tokens``; raise a 429 that says how long to wait.

        ``limit_name``: the field by which the request limits its answer; empty: it has no answer to limit.
        """
        asking = asyncio.ensure_future(self._port.charge(caller.tenant, tokens))
        try:
            verdict = await asyncio.shield(asking)
        except asyncio.CancelledError:  # the client disconnected; a charge that is on its way must be returned
            asking.add_done_callback(lambda done: self._return(caller.tenant, tokens, done))
            raise
        if not verdict.refused:
            return Charge(self._port, caller.tenant, tokens, verdict)
        limit = await self._port.limit(caller.tenant, verdict.refused)
        words = _WORDS[verdict.refused]
        asked = f"; this request may cost {tokens}" if "tokens" in verdict.refused else ""
        if verdict.retry_after is None:
            less = f"lower {limit_name} or " if limit_name else ""
            remedy = f"that is more than the limit: {less}shorten the prompt"
        else:
            remedy = f"try again in {verdict.retry_after:.1f} s"
        error = ApiError(
            429,
            f"tenant {caller.tenant!r} is limited to {limit} {words}{asked}; {remedy}",
            kind="tokens" if "tokens" in verdict.refused else "requests",
            code="rate_limit_exceeded",
            retry_after=verdict.retry_after,
        )
        error.headers = rate_headers(verdict)
        raise error

    def _return(self, tenant: str, tokens: int, asked: asyncio.Future[Verdict]) -> None:
        if not asked.cancelled() and asked.exception() is None and not asked.result().refused:
            Charge(self._port, tenant, tokens, asked.result()).end(0)


def rate_headers(verdict: Verdict) -> dict[str, str]:
    """Return ``x-ratelimit-{limit,remaining,reset}-{requests,tokens}`` for the limits that exist."""
    made: dict[str, str] = {}
    for name, standing in (("requests", verdict.requests), ("tokens", verdict.tokens)):
        if standing is not None:
            made |= {
                f"x-ratelimit-limit-{name}": str(standing.limit),
                f"x-ratelimit-remaining-{name}": str(standing.remaining),
                f"x-ratelimit-reset-{name}": _span(standing),
            }
    return made


def _span(standing: LimitStatus) -> str:
    """Return the time until a reset in OpenAI's form: ``6m0s``, ``1.5s``."""
    minutes, seconds = divmod(math.ceil(standing.reset * 10) / 10, 60)
    shown = f"{seconds:g}s"
    return f"{int(minutes)}m{shown}" if minutes else shown


CHARGE = web.RequestKey("charge", Charge)
