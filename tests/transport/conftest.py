import asyncio
from collections.abc import Callable

import pytest
import uvloop

from blockwright.tests.waiting import PATIENCE
from blockwright.transport.address import PeerId
from blockwright.transport.errors import HandshakeRefused


class Recorder:
    """A receiver that records its calls, and lets a test wait for them."""

    def __init__(self) -> None:
        self.messages: list[tuple[PeerId, bytes, list[bytes]]] = []
        self.links: list[tuple] = []
        self.lost: list[PeerId] = []
        self.causes: list[str] = []
        self.broken: list[PeerId] = []
        self.garbage: list[str] = []
        self._changed = asyncio.Event()

    def on_message(self, peer, body, buffers):
        self.messages.append((peer, bytes(body), [bytes(b) for b in buffers]))
        self._changed.set()

    def on_link(self, peer, frames):
        self.links.append((peer, [bytes(frame) for frame in frames]))
        self._changed.set()

    def on_link_broken(self, peer):
        self.broken.append(peer)
        self._changed.set()

    def on_lost(self, peer, cause):
        self.lost.append(peer)
        self.causes.append(cause)
        self._changed.set()

    def on_garbage(self, reason):
        self.garbage.append(reason)
        self._changed.set()

    def on_join(self, name, key, secret):
        raise HandshakeRefused(f"{name} is not wanted")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def recorder():
    return Recorder


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on each kind of event loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def runner(main):
        with asyncio.Runner(loop_factory=factory) as inner:
            return inner.run(main)

    return runner
