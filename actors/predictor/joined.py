"""The life of a process of predictors that joins a server from another machine: it joins, predicts, and leaves when asked.

It has nothing to move: dispatchers elsewhere go on, and predictors begin anew where the head says.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from ...runtime.base.errors import NoSuchActor, RemoteError, RuntimeFault
from ...runtime.cluster.join_text import PREDICTOR
from ...runtime.cluster.joining import enter
from ...runtime.node.node import Node
from ..logs import set_up
from ..member_calls import ANSWER, HeadLost, JoinRefused, look
from ..members import RELEASE
from ..settings.settings import Settings
from ..supervision_tree import HEAD
from .admission import PREDICTOR_ADMISSION
from .coverage import start_predictors


@dataclass(frozen=True, slots=True)
class PredictorStarting:
    """The values that its starter gives a process of predictors.

    text: the join text. name: of the process, or empty. listen: where members reach it, or empty. labels: its starter's.
    """

    text: str
    name: str = ""
    listen: str = ""
    labels: dict[str, str] = field(default_factory=dict)


async def serve(given: PredictorStarting, say: Callable[[str], None]) -> bool:
    """Predict until the cluster or a signal ends it; return whether a signal asked for the end.

    Raises JoinRefused, TransportError.
    """
    node = await enter(given.text, PREDICTOR, name=given.name, listen=given.listen)
    loop, asked = asyncio.get_running_loop(), False

    def end(name: str) -> None:
        nonlocal asked
        asked = True
        node.close(f"{name} was received")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number.name)
    try:
        settings = await enlist(node, given.labels)
        set_up(settings.logs.log_format, settings.logs.log_level, node.name)
        try:
            await start_predictors(node, settings, [], given.labels)
        except RuntimeFault as error:
            raise HeadLost(f"the head was lost while the predictors started: {error}") from None
        node.peering.announce_ready()
        say(f"predictors {node.id} of {node.head} are ready at {node.endpoint.partition('?')[0]}")
        await node.closed.wait()
        say(f"predictors {node.id} leave: {node.farewell}")
        return asked
    finally:
        await node.stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def enlist(node: Node, labels: dict[str, str]) -> Settings:
    """Ask the head to take these predictors in, and return the settings. Raises JoinRefused."""
    why, _ = await look(node)
    if why:
        raise JoinRefused(why)
    head = node.ref(f"{HEAD}/{PREDICTOR_ADMISSION}")
    who = node.name, node.incarnation, RELEASE
    try:
        settings: Settings = await head.enlist(*who, labels, timeout=ANSWER, returns=Settings)
    except NoSuchActor:
        wanted = "no predictor is asked by the dispatch policy of this server; start it with --set dispatch=ours, or another"
        raise JoinRefused(f"{wanted} that forecasts") from None
    except RemoteError as error:
        raise JoinRefused(error.text) from None
    except RuntimeFault as error:
        raise HeadLost(f"the head did not take these predictors in: {error}; start them again") from None
    return settings
