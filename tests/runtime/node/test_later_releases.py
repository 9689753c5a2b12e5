"""Calls from a node of a later release, which says more than is known here."""

from __future__ import annotations

import pytest

from blockwright.runtime import Actor, DecodeError, endpoint
from blockwright.tests.claims import claim
from blockwright.tests.runtime.conftest import Sides
from blockwright.transport.handshake import SPOKEN, Greeting, Lane, Versions

LATER = Versions(SPOKEN.highest, SPOKEN.highest + 1)


class Ledger(Actor):
    def __init__(self) -> None:
        self.total = 0

    @endpoint
    async def add(self, amount: int, times: int = 1) -> int:
        self.total += amount * times
        return self.total


@pytest.mark.parametrize("sides", ["remote"], indirect=True)
@claim("Neighbouring releases speak: an added field has a default, a removed one a filler", of="actor-runtime")
async def test_arguments_that_a_later_release_adds_are_dropped(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    await sides.spawn(ledger)
    ref = sides.caller.ref(f"{sides.callee.name}/actor")
    for args, kwargs in (((2, 3, True), {}), ((2,), {"hard": True})):
        with pytest.raises(DecodeError, match=r"takes 2 arguments, 3 were given|no .further. parameter .hard."):
            await ref.add(*args, **kwargs)
    said = Greeting(sides.caller.id, sides.callee.id, Lane.CONTROL, LATER)
    transport = sides.callee.parts.transport
    monkeypatch.setattr(transport, "greeting", lambda peer: said if peer == sides.caller.id else None)
    assert await ref.add(2, 3, True) == 6
    assert await ref.add(2, hard=True) == 8
    ref.add.cast(1, 1, True)
    await sides.turns()
    assert ledger.total == 9
    for args, kwargs in ((("x", 1, True), {}), ((), {"hard": True})):
        with pytest.raises(DecodeError, match="amount"):
            await ref.add(*args, **kwargs)
