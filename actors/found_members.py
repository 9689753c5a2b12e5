"""The members of the head before that a new head finds, and their accounts.

Owns the order of taking over: members come, they tell, ``policies/control/adoption.py`` says what follows, the tree of
actors is started around the living processes, and then the controller acts. Decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..policies.control.adoption import Adopted, KeptState, StateKeeping, ToldGateway, ToldWorker, adopt, newest
from ..policies.control.state import ControllerState
from ..runtime.cluster.cluster import ClusterHead
from ..runtime.cluster.join_text import GATEWAY, WORKER
from .kept_state import ask_gateways, ask_workers, unpack_state
from .members import stand_again
from .settings.faults import FaultSettings

log = logging.getLogger("blockwright.cluster")
PATIENCE = 1.0  # seconds for members to come
UNWANTED = "the new head has no use for it"
SILENT = "it did not tell the new head what it holds"


@dataclass(frozen=True, slots=True)
class Succession:
    """A head's place among the heads of one keeper.

    secret: by which heads know the members of the ones before. first: there was none. program: "module:function" of a head.
    keeper: its process.
    """

    epoch: int
    secret: bytes
    first: bool
    program: str
    keeper: int = 0


@dataclass(frozen=True, slots=True)
class FoundMembers:
    """The members that a new head has found. workers: the accounts of workers. silent: nodes without one."""

    keeping: StateKeeping | None = None
    workers: tuple[ToldWorker, ...] = ()
    gateways: tuple[str, ...] = ()  # nodes
    silent: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()  # that the next head needs

    @property
    def sentence(self) -> str:
        count, fronts = len(self.workers), len(self.gateways)
        return f"adopted {count} worker{'s' * (count != 1)} and {fronts} gateway process{'es' * (fronts != 1)}"


async def find_members(
    cluster: ClusterHead,
    fresh: ControllerState,
    faults: FaultSettings,
    workers: Collection[str],
    gateways: Collection[str],
    succession: Succession | None,
) -> FoundMembers:
    """Wait for the members of the head before, if there was one, and ask what they have.

    workers, gateways: names that the settings give.
    """
    if succession is None or not faults.orphan_grace:
        return FoundMembers()
    programs = (succession.program,)
    if succession.first:
        return FoundMembers(StateKeeping(keeper=succession.keeper), programs=programs)
    came = await cluster.adopting(PATIENCE)
    working = [name for name in came if name in workers or cluster.role(name) == WORKER]
    fronts = [name for name in came if name in gateways or cluster.role(name) == GATEWAY]
    told = await ask_workers(cluster.node, working)
    answers = await ask_gateways(cluster.node, fronts)
    accounts: list[ToldWorker | ToldGateway] = [*told, *answers]
    version = max((one.version for one in accounts), default=0)
    kept = newest(one.kept for one in accounts)
    adopted = _adopted(fresh, kept, told, version)
    silent = {*working, *fronts} - {one.name for one in told} - {one.address.partition("/")[0] for one in answers}
    answering = tuple(one.address.partition("/")[0] for one in answers)
    keeping = StateKeeping(adopted, faults.drain_timeout, succession.keeper)
    return FoundMembers(keeping, tuple(told), answering, tuple(sorted(silent)), programs)


def _adopted(fresh: ControllerState, kept: KeptState | None, told: Sequence[ToldWorker], version: int) -> Adopted:
    if kept is not None:
        try:
            return adopt(fresh, unpack_state(kept.packed), told, max(version, kept.version))
        except (ValueError, KeyError) as error:
            log.warning("models are placed anew, as what members keep of the last head is of another release: %s", error)
    return adopt(fresh, None, told, version)


async def settle_members(cluster: ClusterHead, found: FoundMembers) -> bool:
    """Give each member that joined by itself an actor that stands for it, and end who is not wanted.

    Return whether there was a head before.
    """
    adopted = found.keeping.adopted if found.keeping is not None else None
    if adopted is None:
        return False
    for name, member in cluster.members().items():
        if member.joined and member.state == "up":
            await stand_again(cluster.node, cluster, name, member.id.incarnation)
    for name, why in [*((one, UNWANTED) for one in adopted.strangers), *((one, SILENT) for one in found.silent)]:
        log.warning("node %s is ended: %s", name, why)
        await cluster.kill(name, why)
    return True
