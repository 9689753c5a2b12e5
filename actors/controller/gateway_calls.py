"""The controller's calls to gateways and to the workers' supervisor, as its state machine's effects ask for them.

There are calls for applications on demand, for starting and stopping workers, and for dropping and restoring parameters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from ...policies.cluster.demand import Use, combined
from ...policies.control.drop_events import (
    AwaitSwitched,
    OverloadEffect,
    OverloadEvent,
    RequestsSwitched,
    RoutesLeft,
)
from ...policies.control.events import (
    AskUsage,
    AwaitQuiet,
    DemandEffect,
    DemandEvent,
    GiveUpWorker,
    Quiet,
    Recheck,
    RecheckLater,
    ScalingEffect,
    ScalingEvent,
    StartWorker,
    StopWorker,
    UsageAnswer,
    Vacated,
    VacateWorker,
    WishWorkers,
    WorkerStopped,
)
from ...policies.control.route_switch import SwitchFigures, SwitchRoutes
from ...policies.control.state import ControllerState
from ...runtime.actor.actor import ActorNode
from ...runtime.base.clock import first_within
from ...runtime.base.errors import ActorDied, NoSuchActor
from ...runtime.cluster.process import JoinedProcess
from ...runtime.supervisor import Supervisor
from ..gateway.port import GatewayPlace, GatewayStatus
from ..members import MEMBERS
from .worker_calls import ask_until_answered

ASK_SECONDS = 1.0  # a gateway later than this counts as having no requests
QUIET_SECONDS = 3600.0
LEAVE_SECONDS = 60.0  # timeout for a gateway's requests to leave routes
SWITCH_SECONDS = 120.0  # timeout for a gateway's requests to get their pages
ANSWER_SECONDS = 5.0  # timeout of a gateway's answer, beyond the grace
STOP_SECONDS = 60.0  # timeout for a killed process to end


class GatewayCalls:
    """Calls of one controller. ``publishing`` is the lock held while a publication leaves."""

    def __init__(self, node: ActorNode, gateways: Sequence[str], publishing: asyncio.Lock, state: ControllerState) -> None:
        self._node = node
        self._gateways = gateways
        self._publishing = publishing
        self._dispatchers: list[str] = []  # once they are not those of the settings alone
        self._cuts: list[tuple[str, str]] = []  # pairs of workers that do not reach each other
        self._state = state

    def tell_fronts(self) -> None:
        """Tell each process that answers HTTP, and the head's own front, of all of them."""
        nodes = list(dict.fromkeys([self._node.name, *(gateway.partition("/")[0] for gateway in self._gateways)]))
        for node in nodes:
            self._node.ref(f"{node}/peer").fronts.cast(nodes)
        gateways = [gateway.partition("/")[0] for gateway in self._gateways]
        for gateway in self._gateways:
            self._node.ref(gateway).gateways.cast(gateways)
            self._node.ref(gateway).cuts.cast(self._cuts)
            if self._dispatchers:
                self._node.ref(gateway).dispatchers.cast(self._dispatchers)

    def tell_lives(self, gateways: Iterable[str], lives: Iterable[tuple[str, int]]) -> None:
        """Tell these gateways of the lives of workers."""
        for gateway, (worker, incarnation) in product(gateways, lives):
            self._node.ref(gateway).up.cast(worker, incarnation)

    def tell_cuts(self, pairs: list[tuple[str, str]]) -> None:
        """Tell all gateways which pairs of workers do not reach each other: all of them."""
        self._cuts = pairs
        for gateway in self._gateways:
            self._node.ref(gateway).cuts.cast(pairs)

    def tell_dispatchers(self, addresses: list[str]) -> None:
        """Tell all gateways of the dispatchers that they may ask."""
        self._dispatchers = addresses
        for gateway in self._gateways:
            self._node.ref(gateway).dispatchers.cast(addresses)

    async def statuses(self) -> list[dict[str, Any]]:
        """Return the part of ``/admin/cluster`` about gateways; of one that does not answer its name alone."""
        gateways = list(self._gateways)
        asked = [self._node.ref(g).status(timeout=ASK_SECONDS, returns=GatewayStatus) for g in gateways]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [gateway_view(address, one) for address, one in zip(gateways, answers, strict=True)]

    async def demand(self, effect: DemandEffect, handle: Callable[[DemandEvent], object]) -> None:
        """Carry out an effect of applications on demand. ``handle`` takes the answer."""
        match effect:
            case AskUsage():
                async with self._publishing:  # wait until earlier publications are out: requests they let start wait no more
                    pass
                asked = [self._node.ref(g).uses(timeout=ASK_SECONDS, returns=dict[str, Use]) for g in self._gateways]
                answers = await asyncio.gather(*asked, return_exceptions=True)
                handle(UsageAnswer(combined(answer for answer in answers if isinstance(answer, dict))))
            case AwaitQuiet(application):
                async with self._publishing:
                    version = self._state.version
                awaited = [self._node.ref(g).quiet(application, version, timeout=QUIET_SECONDS) for g in self._gateways]
                await asyncio.gather(*awaited, return_exceptions=True)  # a gateway that is gone has no requests
                handle(Quiet(application))
            case RecheckLater(seconds, worker, application):
                await first_within(self._node.clock, seconds, ())
                handle(Recheck(worker, application))

    async def switch(self, effect: OverloadEffect, handle: Callable[[OverloadEvent], object]) -> None:
        """Carry out an effect of dropping and restoring parameters. ``handle`` takes the answer.

        A gateway that is gone has no requests.
        """
        refs = [self._node.ref(gateway) for gateway in self._gateways]
        match effect:
            case SwitchRoutes(number):
                async with self._publishing:
                    order = replace(effect, version=self._state.version, gateways=len(refs))
                asked = [partial(ref.switch, order, timeout=LEAVE_SECONDS, returns=int) for ref in refs]
                answers = await self._answers(asked)
                handle(RoutesLeft(number, sum(answer for answer in answers if isinstance(answer, int))))
            case AwaitSwitched(number):
                asked = [partial(ref.switched, number, timeout=SWITCH_SECONDS, returns=SwitchFigures) for ref in refs]
                answers = await self._answers(asked)
                handle(RequestsSwitched(number, tuple(answer for answer in answers if isinstance(answer, SwitchFigures))))

    async def scale(self, effect: ScalingEffect, handle: Callable[[ScalingEvent], object]) -> None:
        """Carry out an effect of starting and stopping workers. ``handle`` takes the answer."""
        supervisor = self._node.ref(f"{self._node.name}/workers", Supervisor)
        match effect:
            case StartWorker(worker, _):
                with suppress(ActorDied):  # the cluster stops, the supervisor with it
                    await supervisor.start_child(worker)
            case WishWorkers(workers, why):
                self._node.ref(f"{self._node.name}/{MEMBERS}").wish.cast(workers, why)
            case VacateWorker(worker, grace, _):
                async with self._publishing:
                    version = self._state.version
                asked = [
                    self._node.ref(g).vacated(worker, version, grace, timeout=grace + ANSWER_SECONDS) for g in self._gateways
                ]
                await asyncio.gather(*asked, return_exceptions=True)  # a gateway that is gone has nothing there
                handle(Vacated(worker))
            case GiveUpWorker(worker, _):
                with suppress(ActorDied):
                    await supervisor.stop_child(worker, timeout=STOP_SECONDS)
            case StopWorker(worker, joined) if joined:
                with suppress(ActorDied, NoSuchActor):  # it is gone already
                    await self._node.ref(f"{self._node.name}/{worker}", JoinedProcess).dismiss(joined)
                handle(WorkerStopped(worker))
            case StopWorker(worker):
                try:
                    with suppress(ActorDied):  # as above
                        await supervisor.stop_child(worker, timeout=STOP_SECONDS)
                finally:
                    handle(WorkerStopped(worker))

    async def _answers(self, asked: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> list[Any]:
        """Return the answer, or the error, of each gateway; a silent gateway is asked again."""
        return await asyncio.gather(*(ask_until_answered(self._node.clock, ask) for ask in asked), return_exceptions=True)


def gateway_view(address: str, status: GatewayStatus | BaseException) -> dict[str, Any]:
    """Return a gateway as ``/admin/cluster`` shows it."""
    place = status.place if isinstance(status, GatewayStatus) else GatewayPlace("", 0)
    state, requests = "silent", 0
    if isinstance(status, GatewayStatus):
        state, requests = "draining" if status.draining else "ready", status.requests
    shown = {"host": place.host, "pid": place.pid, "address": place.address, "labels": dict(place.labels)}
    return {"id": address.partition("/")[0], **shown, "joined": place.joined, "state": state, "requests": requests}
