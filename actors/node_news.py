"""News of nodes: reports what the head learns of the lives of nodes to the actors that act on it.

Owns who hears of which role. Decides nothing, and keeps the order of the membership.
"""

from __future__ import annotations

from collections.abc import Collection

from ..policies.cluster.reach import both_live, whom_to_ask
from ..runtime.actor.ref import Ref
from ..runtime.base.down import Down
from ..runtime.cluster.cluster import ClusterHead
from ..runtime.cluster.join_text import GATEWAY as GATEWAY_ROLE
from ..runtime.cluster.join_text import PREDICTOR as PREDICTOR_ROLE
from ..runtime.cluster.join_text import WORKER as WORKER_ROLE
from .conditions import Published
from .members import MEMBERS
from .predictor.admission import PREDICTOR_ADMISSION
from .predictor.messages import NODE
from .settings.settings import Settings
from .supervision_tree import HEAD

UNASKED = "the dispatch policy of the new head asks no predictor"


def tell_of_nodes(
    cluster: ClusterHead,
    controller: Ref,
    answering: Published[tuple[str, ...]],
    workers: Collection[str],
    gateways: Collection[str],
) -> None:
    """Report changes of the membership as messages to the controller, which informs the gateways."""

    def launched(name: str, incarnation: int, failure: str) -> None:
        if name in workers and failure:
            controller.worker_down.cast(name, incarnation, f"not started: {failure}")
        elif name in workers:
            controller.worker_starting.cast(name, incarnation, cluster.pid(name))

    def up(name: str, incarnation: int) -> None:
        if _works(cluster, workers, name):
            controller.worker_up.cast(name, incarnation)
        elif name in gateways:
            controller.gateway_up.cast(f"{name}/gateway")
            answering.publish((*answering.value, name))
        elif cluster.role(name) == GATEWAY_ROLE:
            controller.gateway_up.cast(f"{name}/gateway")

    def adopted(name: str, incarnation: int) -> None:
        if cluster.members()[name].joined:
            cluster.node.ref(f"{HEAD}/{MEMBERS}").back.cast(name, incarnation)
        if _works(cluster, workers, name):
            controller.worker_back.cast(name, incarnation)
        elif name in gateways or cluster.role(name) == GATEWAY_ROLE:
            controller.gateway_up.cast(f"{name}/gateway")
            if name in gateways:
                answering.publish((*(one for one in answering.value if one != name), name))

    def down(what: Down) -> None:
        if _works(cluster, workers, what.node):
            controller.worker_down.cast(what.node, what.incarnation, what.cause)
        elif what.node in gateways:
            controller.gateway_down.cast(f"{what.node}/gateway")
            answering.publish(tuple(name for name in answering.value if name != what.node))
        elif cluster.role(what.node) == GATEWAY_ROLE:
            controller.gateway_down.cast(f"{what.node}/gateway")

    _rule_reach(cluster, controller, workers, gateways)
    cluster.on_launch(launched)
    cluster.on_up(up)
    cluster.on_adopt(adopted)
    cluster.on_down(down)


def _rule_reach(cluster: ClusterHead, controller: Ref, workers: Collection[str], gateways: Collection[str]) -> None:
    """Say what follows where members do not reach each other, or the head does not reach one."""

    def works(name: str) -> bool:
        return _works(cluster, workers, name)

    def role(name: str) -> str:
        return WORKER_ROLE if name in workers else GATEWAY_ROLE if name in gateways else cluster.role(name)

    def cut() -> None:
        controller.cuts.cast([(one, other) for one, other in cluster.cuts if works(one) and works(other)])

    def witnesses(name: str) -> list[str]:
        """Return the gateways that are asked about a worker."""
        joined = [one for one in cluster.node.peers() if cluster.role(one) == GATEWAY_ROLE]
        return whom_to_ask(joined, gateways) if works(name) else []

    cluster.spare(lambda name: role(name) == GATEWAY_ROLE)
    cluster.keep_both(lambda one, other: both_live(role(one), role(other)))
    cluster.on_cut(cut)
    cluster.ask(witnesses)


def _works(cluster: ClusterHead, workers: Collection[str], name: str) -> bool:
    return name in workers or cluster.role(name) == WORKER_ROLE


def tell_of_predictors(cluster: ClusterHead, settings: Settings, workers: Collection[str]) -> None:
    """Report workers that joined, and processes of predictors, to the actor that says who predicts whom."""
    if not _predicts(settings):
        return
    admission = cluster.node.ref(f"{HEAD}/{PREDICTOR_ADMISSION}")

    def role(name: str) -> str:
        return _predicting(cluster, workers, name)

    def up(name: str, incarnation: int) -> None:
        if role(name):
            admission.up.cast(name, role(name))

    def back(name: str, incarnation: int) -> None:
        if role(name):
            admission.back.cast({name: role(name)})

    def down(what: Down) -> None:
        if role(what.node):
            admission.down.cast(what.node)

    cluster.on_up(up)
    cluster.on_adopt(back)
    cluster.on_down(down)


async def take_over_predictors(cluster: ClusterHead, settings: Settings, workers: Collection[str]) -> None:
    """Report those of them that have come back before there was an actor to report them to, all at once.

    Processes of predictors that joined end if the settings of the new head ask none.
    """
    came = [name for name, member in cluster.members().items() if member.adopted and member.state == "up"]
    roles = {name: role for name in came if (role := _predicting(cluster, workers, name))}
    if _predicts(settings):
        cluster.node.ref(f"{HEAD}/{PREDICTOR_ADMISSION}").back.cast(roles)
        return
    for name in [name for name, role in roles.items() if role == PREDICTOR_ROLE and name != NODE]:
        await cluster.kill(name, UNASKED)


def _predicts(settings: Settings) -> bool:
    return bool(settings.joining.listen) and settings.dispatching.predicts


def _predicting(cluster: ClusterHead, workers: Collection[str], name: str) -> str:
    """Return the role of a process of predictors or of a worker that joined; "" for any other node."""
    role = PREDICTOR_ROLE if name == NODE else cluster.role(name)
    return role if role in (WORKER_ROLE, PREDICTOR_ROLE) and name not in workers else ""
