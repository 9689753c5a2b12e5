"""The runs of requests with an ``Idempotency-Key`` at other gateways: found by their keepers, and waited for.

When the gateway that runs a request dies, the one that waits for it runs it again; so does a retry that comes later.
"""

from __future__ import annotations

from ...actors.gateway.peers import RetryAnswer
from ...runtime.actor.ref import Ref
from ...runtime.base.errors import RuntimeFault
from ..errors import ApiError
from .idempotency import GivenAnswer

TRIES = 8  # gateways that are asked, each of which has just died or given it up
SECONDS = 3600.0  # for an answer, whose own limits are those of the gateway that makes it


class OtherRuns:
    """See the module. ``peer``: the peer actor of this process."""

    def __init__(self, peer: Ref) -> None:
        self._peer = peer

    async def find(self, owner: str, sent: bytes) -> GivenAnswer | None:
        """See ``RunsElsewhere``."""
        gone = ""
        for _ in range(TRIES):
            runner: str = await self._peer.claim_anywhere(owner, gone)
            if not runner:
                return None
            try:
                found: RetryAnswer = await self._peer.answer_of(runner, owner, sent, timeout=SECONDS, returns=RetryAnswer)
            except RuntimeFault:
                gone = runner
                continue
            if found.status == 0:
                gone = runner
            elif found.status == 200:
                return GivenAnswer(found.body, found.headers)
            else:
                raise ApiError(
                    found.status, found.message, param=found.param, code=found.code, retry_after=found.retry_after
                )
        return None

    def ended(self, owner: str, *, kept: bool) -> None:
        """See ``RunsElsewhere``."""
        self._peer.claim_ended.cast(owner, kept)
