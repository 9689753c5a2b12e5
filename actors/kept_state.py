"""The state that members keep for the next head, and the questions with which that collects it.

Owns the packed form of the controller's state, and nothing else. A member that does not answer in time counts as one that
keeps nothing; what it holds is then not known, so it is not adopted.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import zlib
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

import msgpack

from ..policies.control.adoption import ToldGateway, ToldWorker
from ..policies.control.state import ControllerState
from ..policies.plain import Plain
from ..runtime.base.errors import RuntimeFault
from ..runtime.node.node import Node

log = logging.getLogger("blockwright.cluster")
MOST = 1 << 28  # bytes of a state; more is no state of ours
TELL_SECONDS = 2.0  # seconds for a member to answer
QUICK = 1  # level of compression


def pack_state(state: ControllerState) -> bytes:
    """Return a state in packed form. Nothing that is made for it becomes garbage of cycles; to search for that would take
    as long again in a large cluster.
    """
    searches = gc.isenabled()
    gc.disable()
    try:
        return zlib.compress(msgpack.packb(state.snapshot()), QUICK)
    finally:
        if searches:
            gc.enable()


def unpack_state(packed: bytes) -> dict[str, Plain]:
    """Return a snapshot. Raises ValueError for what is none."""
    try:
        body = zlib.decompressobj().decompress(packed, MOST)
        found = msgpack.unpackb(body, strict_map_key=False)
    except (zlib.error, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"the state that a member keeps cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("the state that a member keeps is none")
    return found


async def ask_workers(node: Node, names: Iterable[str]) -> list[ToldWorker]:
    """Return what living workers tell."""
    asked = {f"{name}/blocks": node.ref(f"{name}/blocks").tell(timeout=TELL_SECONDS, returns=ToldWorker) for name in names}
    return await _answers(asked)


async def ask_gateways(node: Node, names: Iterable[str]) -> list[ToldGateway]:
    """Return what living gateways tell."""
    asked = {
        f"{name}/gateway": node.ref(f"{name}/gateway").tell(timeout=TELL_SECONDS, returns=ToldGateway) for name in names
    }
    return await _answers(asked)


async def _answers(asked: Mapping[str, Coroutine[Any, Any, Any]]) -> list[Any]:
    answers = await asyncio.gather(*asked.values(), return_exceptions=True)
    for address, answer in zip(asked, answers, strict=True):
        if isinstance(answer, RuntimeFault):
            log.warning("%s does not tell the new head what it has: %s", address, answer)
        elif isinstance(answer, BaseException):
            raise answer
    return [one for one in answers if not isinstance(one, BaseException)]
