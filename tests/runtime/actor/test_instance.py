from __future__ import annotations

import asyncio

from blockwright.runtime import Actor, DeadlineExceeded, ManualClock, RuntimeFault, endpoint
from blockwright.runtime.actor.endpoint import ActorEndpoint
from blockwright.runtime.actor.instance import ActorInstance, Delivery


class Notes(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []

    @endpoint
    async def note(self, n: int) -> int:
        self.seen.append(n)
        return n


class Result:
    def __init__(self) -> None:
        self.values: list[object] = []
        self.faults: list[RuntimeFault] = []

    def returned(self, endpoint: ActorEndpoint, value: object) -> None:
        self.values.append(value)

    def failed(self, fault: RuntimeFault) -> None:
        self.faults.append(fault)


async def test_what_expired_on_the_way_is_dropped_before_it_runs():
    clock = ManualClock()
    actor = Notes()
    result = Result()
    instance = ActorInstance(actor, "notes", clock, 10)
    instance.begin()
    for n, left in ((1, 5.0), (2, 0.5), (3, None)):
        deadline = None if left is None else clock.now() + left
        instance.deliver(Delivery(actor.endpoints["note"], (n,), {}, result, deadline=deadline, trace=b""))
    clock.advance(1.0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert actor.seen == [1, 3] == result.values
    assert [type(f) for f in result.faults] == [DeadlineExceeded]


async def test_a_message_cancelled_between_start_and_first_step_does_not_run():
    clock = ManualClock()
    actor = Notes()
    result = Result()
    instance = ActorInstance(actor, "notes", clock, 10)
    instance.begin()
    deliveries = [Delivery(actor.endpoints["note"], (n,), {}, result, deadline=None, trace=b"") for n in (1, 2, 3)]
    for delivery in deliveries:
        instance.deliver(delivery)
    deliveries[0].cancel()  # its task exists and has not run
    deliveries[1].cancel()  # it waits
    for _ in range(10):
        await asyncio.sleep(0)
    assert actor.seen == [3] == result.values
    assert result.faults == []
