"""The calls of workers and gateways that join by themselves to the head's actors that take them in. Loads no torch."""

from __future__ import annotations

import time
from typing import Any

from ..runtime.actor.ref import Ref
from ..runtime.base.errors import NodeDown, RemoteError, RuntimeFault
from ..runtime.node.node import Node
from .gateway.admission import GATEWAY_ADMISSION, JoinedGatewayConfig
from .members import MEMBERS, PATIENCE, RELEASE
from .supervision_tree import HEAD
from .worker.messages import WorkerConfig
from .worker.starting import Starting

ANSWER = 10.0  # seconds for the head's first answer


class JoinRefused(Exception):
    """A member that cannot take part: one sentence for the person who started it."""


class HeadLost(JoinRefused):
    """A member that lost the head while it started. Started again it may be taken in by another."""


async def look(node: Node) -> tuple[str, float]:
    """Return why the head would refuse this release, or "", and the seconds by which this clock is ahead of the head's.

    Raises JoinRefused if the head's answer does not reach this node.
    """
    kind: Any = tuple[str, float]
    try:
        why, at = await members(node).look(RELEASE, timeout=ANSWER, returns=kind)
    except RemoteError as error:
        raise JoinRefused(f"the head takes no workers in: {error.text}; start it with --listen and --keys") from None
    except NodeDown as error:
        raise HeadLost(f"the head was lost before it took this node in: {error}; start this node again") from None
    except RuntimeFault:
        where = node.endpoint.partition("?")[0]
        raise JoinRefused(
            f"no answer of the head came to {where} within {ANSWER:g} s; open that port to the head, or give "
            "--listen tcp://HOST:PORT where it reaches this machine"
        ) from None
    return why, time.time() - at


async def enlist(node: Node, given: Starting) -> WorkerConfig:
    """Ask the head to take this worker in, and return its configuration. Raises JoinRefused."""
    why, _ = await look(node)
    if why:
        raise JoinRefused(why)
    who = node.name, node.incarnation, RELEASE
    try:
        config: WorkerConfig = await members(node).enlist(
            *who, given.wish, given.labels, timeout=PATIENCE, returns=WorkerConfig
        )
    except RemoteError as error:
        raise JoinRefused(error.text) from None
    except RuntimeFault as error:
        raise HeadLost(f"the head did not take this worker in: {error}; start it again") from None
    return config


async def enlist_gateway(node: Node, labels: dict[str, str]) -> JoinedGatewayConfig:
    """Ask the head to take this gateway in, and return its configuration. Raises JoinRefused."""
    why, _ = await look(node)
    if why:
        raise JoinRefused(why)
    head = node.ref(f"{HEAD}/{GATEWAY_ADMISSION}")
    try:
        config: JoinedGatewayConfig = await head.enlist(
            node.name, node.incarnation, RELEASE, labels, timeout=ANSWER, returns=JoinedGatewayConfig
        )
    except RemoteError as error:
        raise JoinRefused(error.text) from None
    except RuntimeFault as error:
        raise HeadLost(f"the head did not take this gateway in: {error}; start it again") from None
    return config


async def leave(node: Node, why: str) -> None:
    """Ask the head to empty and dismiss this worker. Raises RuntimeFault."""
    await members(node).leave(node.name, node.incarnation, why)


def members(node: Node) -> Ref:
    return node.ref(f"{HEAD}/{MEMBERS}")
