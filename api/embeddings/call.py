"""One request for vectors in progress: it starts a sequence for each text, a few at a time, and collects their vectors.

A client that disconnects cancels the handler, and the handler's end cancels the sequences. Texts are token ids here.
"""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ...actors.gateway.port import Generation, ModelInfo
from ...policies.plan.pooling import Pooling
from ...policies.plan.sampling import SamplingParams
from ...policies.requests.refusal import RequestRefused
from ...policies.requests.request_ownership import sequence_id
from ...policies.sweep.events import TokensEmitted
from ...runtime.base.scope import current_traceparent
from ..answers import VectorUsage
from ..errors import ApiError, bad_request
from ..http.catalog import ServedModel
from ..http.context import ASKED, CALL_ID, CALLER, METER, OFFLINE, PROGRESS, CallContext, Front
from ..http.limits import CHARGE
from ..http.metrics import Meter
from ..openai.prompt_limits import check_vocabulary
from ..openai.reading import each
from .fields import VectorOptions

TOGETHER = 256  # sequences of one request at a time
MANY = 1 << 14  # numbers of an answer; to write this number takes some milliseconds


@dataclass(slots=True, kw_only=True)
class VectorCall:
    """One request in progress. ``request``: the caller. ``write``: makes the answer of all vectors, in their order."""

    front: Front
    request: CallContext
    info: ModelInfo
    served: ServedModel
    options: VectorOptions
    prefix: str  # of the request's id
    pooling: Pooling
    prompts: list[list[int]]
    write: Callable[[VectorCall, Sequence[tuple[float, ...]]], bytes]
    id: str = ""
    created: int = 0  # seconds since the epoch
    cached: int = 0  # tokens found in the prefix cache
    _vectors: dict[int, bytes] = field(default_factory=dict)

    @property
    def sequences(self) -> int:
        """The number of sequences that it runs."""
        return len(self.prompts)

    @property
    def limit(self) -> int:
        """The tokens that it may draw: none; a vector counts as one for the order of batches."""
        return len(self.prompts)

    def usage(self) -> VectorUsage:
        tokens = sum(map(len, self.prompts))
        return {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    async def whole(self) -> bytes:
        """Return the JSON of the answer; raise ApiError or RequestRefused."""
        async with self._counted() as meter:
            await self._run(meter)
        vectors = [self._vectors[index] for index in range(len(self.prompts))]

        def answer() -> bytes:
            return self.write(self, [numbers(vector) for vector in vectors])

        size = sum(map(len, vectors)) // 4
        return answer() if size < MANY else await self.front.run_in_thread(answer)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[Meter]:
        """Name, charge and measure the request."""
        front, asking = self.front, self.request
        self.id = asking[CALL_ID] = front.new_id(self.prefix)
        front.name_request(asking, self.options.request_id)
        offline = asking.get(OFFLINE) is not None
        tokens = sum(map(len, self.prompts))
        charge = None
        if not offline:  # lines of batches are not charged to the limits of online requests
            charge = asking[CHARGE] = await front.limits.enter(asking[CALLER], tokens)
        complete = False
        try:
            self.created = int(time.time())
            asking[ASKED] = {}
            tenant = asking[CALLER].tenant
            meter = asking[METER] = front.metrics.begin(self.info.id, tokens, 1, None, tenant, offline=offline)
            try:
                yield meter
                complete = True
            except RequestRefused as refused:
                refused.limit = ""
                raise
            finally:
                meter.close(complete=complete)
        finally:
            if charge is not None:
                charge.end(tokens if complete else 0)

    async def _run(self, meter: Meter) -> None:
        """Run all sequences; the first failure cancels the others."""
        waiting = iter(range(len(self.prompts)))
        await each(self.prompts[:TOGETHER], lambda _: self._work(waiting, meter))

    async def _work(self, waiting: Iterator[int], meter: Meter) -> None:
        for index in waiting:
            await self._one(index, meter)

    async def _one(self, index: int, meter: Meter) -> None:
        stream = self.front.port.generate(self._sequence(index))
        if self.request.get(PROGRESS) is None:
            self.request[PROGRESS] = stream.progress
        try:
            async for news in stream:
                if isinstance(news, TokensEmitted) and news.vector:
                    progress = stream.progress()
                    meter.began(progress, looked=not self.pooling.whole, first=True)
                    meter.finished("stop", 0)
                    self.cached += progress.cached
                    self._vectors[index] = news.vector
        finally:
            stream.cancel()
        if index not in self._vectors:
            raise ApiError(500, f"text {index} ended without a vector; the server's log has the details")

    def _sequence(self, index: int) -> Generation:
        caller, place = self.request[CALLER], self.request.get(OFFLINE)
        return Generation(
            id=sequence_id(self.id, index),
            application=self.info.id,
            prompt=self.prompts[index],
            max_tokens=0,
            stop_tokens=[],
            sampling=SamplingParams(temperature=0.0, pooling=self.pooling),
            tenant=caller.tenant,
            key=caller.key,
            priority=self.options.urgency,
            salt=self.front.cache_salt(caller.tenant, self.options.cache_salt),
            trace=current_traceparent(),
            offline=place is not None,
            home=place.home if place is not None else "",
            side=place.side if place is not None else "",
        )


def numbers(vector: bytes) -> tuple[float, ...]:
    """Return the float32 values of a vector."""
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def fitted(tokens: list[int], info: ModelInfo, served: ServedModel, options: VectorOptions, name: str) -> list[int]:
    """Return a text's tokens, truncated as the request wants; raise a 400 if there is none, or too many, or a wrong one.

    ``name``: the field with the text.
    """
    if (keep := options.truncate_prompt_tokens) == 0:
        message = "truncate_prompt_tokens is 0, which leaves no text; give at least 1, or -1 for as many as fit"
        raise bad_request(message, "truncate_prompt_tokens")
    if keep is not None:
        keep = info.max_length if keep < 0 else keep
        tokens = tokens[max(0, len(tokens) - keep) :]
    if not tokens:
        raise bad_request(f"{name} has no tokens; give at least one character", name)
    if len(tokens) > info.max_length:
        raise bad_request(
            f"{name} has {len(tokens)} tokens, but the context of {info.id} holds {info.max_length}; shorten it, or send "
            "truncate_prompt_tokens",
            name,
            "context_length_exceeded",
        )
    check_vocabulary(tokens, served, name)
    return tokens
