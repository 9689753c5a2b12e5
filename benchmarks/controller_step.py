"""Timing of the controller in the checkout of the interpreter that runs it; the child of ``controller.py``.

    python benchmarks/controller_step.py WORKERS APPLICATIONS SECONDS

Prints a JSON list of (case, metrics). Time is virtual, processor time is real. Only parts of the package that older
checkouts also have are used.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from inspect import signature
from typing import Any, cast

import msgpack

from blockwright.policies.control.events import (
    Application,
    AskCapacity,
    Effect,
    Event,
    KvCapacity,
    Load,
    Loaded,
    Serve,
    WorkerDown,
    WorkerHeartbeat,
    WorkerUp,
)
from blockwright.policies.control.loads import LoadBlock
from blockwright.policies.control.state import ControllerState
from blockwright.policies.model.chain import Component, Kind, KvLayout
from blockwright.runtime.base.buffers import Sink
from blockwright.runtime.base.codec import encode

LAYERS, OWN = 12, 13  # components beside embedding and head; the depth of the one that is an application's own
LAYOUT = KvLayout(2, 64, "bfloat16", 16)
ROOM, HEARTBEAT = 1 << 30, 0.5
KINDS = [Kind.EMBEDDING, *[Kind.ATTENTION, Kind.MLP] * LAYERS, Kind.HEAD]
Metrics = dict[str, float]


def application(number: int) -> Application:
    """Shares all but one component with the others."""
    parts = [
        Component(
            number.to_bytes(8, "big") + bytes([depth]) * 8 if depth == OWN else bytes([depth]) * 16,
            kind, 1 << 20, 384, 384, LAYOUT if kind is Kind.ATTENTION else None,
        )
        for depth, kind in enumerate(KINDS)
    ]  # fmt: skip
    return Application(f"a{number}", f"/models/a{number}", tuple(parts), 4096)


def cpu(work: Callable[[], object]) -> float:
    """Seconds of the processor."""
    began = time.process_time()
    work()
    return time.process_time() - began


def follow(state: ControllerState, event: Event, now: float) -> None:
    """The event and all that comes of it, each load and question answered, in turn."""
    effects: list[Effect] = list(state.handle(event, now))
    for effect in effects:
        if isinstance(effect, Load):
            effects += state.handle(Loaded(effect.worker, effect.incarnation, effect.load), now)
        elif isinstance(effect, AskCapacity):
            effects += state.handle(KvCapacity(effect.worker, effect.incarnation, ROOM), now)


def as_served(names: list[str]) -> dict[str, Any]:
    """The controller's other facts about workers; empty for a state from before there were any."""
    if "scaling" not in signature(ControllerState.__init__).parameters:
        return {}
    from blockwright.actors.settings.autoscaling import AutoscaleSettings
    from blockwright.policies.control.scaling import ScalingPlan

    return {"scaling": ScalingPlan(AutoscaleSettings().rules(len(names)), names)}


def at_rest(workers: int, applications: int) -> ControllerState:
    """All up, all loaded. An older state looks at everything with each event, which is kept from it meanwhile."""
    names = [f"w{n}" for n in range(workers)]
    state: Any = ControllerState(names, stall_timeout=60.0, **as_served(names))  # of any age
    served = tuple(application(number) for number in range(applications))
    old = not hasattr(state, "publication")
    if old:
        state._advance = lambda: None
    state.handle(Serve(served), 0.0)
    for name, worker in state.workers.items():
        effects = state.handle(WorkerUp(name, 1), 0.0)
        for one in served:
            load = LoadBlock(one.files, 0, len(KINDS), [c.id for c in one.components], one.name)
            effects += state.handle(Loaded(name, 1, load), 0.0)
        for effect in effects:
            if isinstance(effect, AskCapacity):
                effects += state.handle(KvCapacity(name, 1, ROOM), 0.0)
        if old:
            state.handle(KvCapacity(name, 1, ROOM), 0.0)
            worker.room_stale, worker.state = False, "ready"
    if old:
        del state._advance
        state.handle(WorkerHeartbeat("w0", 1, 0.0, 0, 0), 0.0)
    assert state.whole
    return cast(ControllerState, state)


def rest(state: ControllerState, seconds: float) -> float:
    """Share of a core that beats without news cost: of as many as come in ``seconds``, or of a few where those take long."""
    beats = [WorkerHeartbeat(name, 1, 0.0, 0, 0) for name in state.workers]
    spent = cpu(lambda: [state.handle(beat, 100.0) for beat in beats[:3]]) / 3
    if spent < 0.001:
        rounds = round(seconds / HEARTBEAT)
        spent = cpu(lambda: [state.handle(beat, 100.0) for _ in range(rounds) for beat in beats]) / (rounds * len(beats))
    return spent * len(beats) / HEARTBEAT


def changes(state: ControllerState, applications: int) -> dict[str, Metrics]:
    """A death, the way back to the last route, one more application up to the first loads."""
    down = cpu(lambda: state.handle(WorkerDown("w1", 1, "killed"), 100.0))
    assert not state.whole
    back = cpu(lambda: follow(state, WorkerUp("w1", 2), 101.0))
    assert state.whole
    more = cpu(lambda: state.handle(Serve((application(applications),)), 200.0))
    return {name: {"cpu_ms": 1e3 * took} for name, took in (("death", down), ("return", back), ("application", more))}


def publication(state: ControllerState) -> Metrics:
    """Measure one recipient's copy of the published routes: its encoding, its size, and its largest message."""
    update = state.publication()
    began = time.process_time()
    pieces = update.split() if hasattr(update, "split") else [update]
    bodies = [len(msgpack.packb(encode(piece, Sink()))) for piece in pieces]
    took = time.process_time() - began
    return {"encode_ms": 1e3 * took, "megabytes": sum(bodies) / 1e6, "message_megabytes": max(bodies) / 1e6}


def main(workers: int, applications: int, seconds: float) -> list[tuple[str, Metrics]]:
    state = at_rest(workers, applications)
    found: list[tuple[str, Metrics]] = [("rest/state", {"core_share": rest(state, seconds)})]
    if hasattr(state, "publication"):
        from controller_node import node

        share = asyncio.run(node(state, HEARTBEAT, seconds))
        found += [("rest/node", {"core_share": share}), ("publication", publication(state))]
    return found + list(changes(state, applications).items())


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
