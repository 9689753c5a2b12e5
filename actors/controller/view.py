"""The body of ``/admin/cluster``: the controller's state and the workers' answers as plain data.

Computes also what sharing blocks saves. Makes no calls: a worker without an answer is shown with what the controller knows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from ...policies.adaptive.similarity import Similarity
from ...policies.cluster.adapter_base import WholeModel, shown_base
from ...policies.cluster.application_life import model_of
from ...policies.cluster.worker_size import WorkerReport
from ...policies.control.adoption import StateKeeping
from ...policies.control.claims import ComponentClaim
from ...policies.control.events import Application
from ...policies.control.families import members
from ...policies.control.labels import labels as labels_of
from ...policies.control.residency import Served, is_hidden, serving
from ...policies.control.state import ControllerState
from ...policies.control.worker_record import WorkerRecord
from ...policies.model.chain import Chain, bases
from ...policies.model.tier_choice import is_answered
from ...runtime.base.node_view import NodeRelease, RefusedRelease
from ...runtime.cluster.process_watch import begun_at
from ..block.messages import BlockStatus
from ..gateway.port import ApplicationView, Census, RemovalView
from ..worker.messages import WorkerStatus

# parts of a worker's memory; those behind the budget add up to it, but for what is other beside the memory of a card
MEMORY = ("budget", "parameters", "kv", "cached", "free", "other")
PAIRS_SHOWN = 64  # the ones with most bytes


def cluster_view(
    state: ControllerState,
    statuses: Mapping[str, WorkerStatus],
    blocks: Mapping[str, list[BlockStatus]],
    sequences: Sequence[Mapping[str, Census]],
    events: list[dict[str, Any]],
    predictors: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the body of ``/admin/cluster``.

    Sizes are in bytes, block ids hexadecimal. sequences: of each gateway, by model. predictors: figures of each worker's.
    """
    labels = labels_of(state.served)
    deployed = [served.application for served in state.served.values() if served.deployed]
    sharing = memory_saved(one for one in deployed if not is_hidden(one))
    hidden = memory_saved(deployed).stored - sharing.stored  # stitches and surrogates: all else is of models
    return {
        "workers": [
            _worker(state, worker, statuses.get(name), labels)
            | {"busiest_blocks": _busiest(blocks.get(name, ()), labels), "predictor": dict(predictors.get(name, {}))}
            for name, worker in state.workers.items()
        ],
        "parameter_bytes": sharing.stored + hidden,  # all deployed applications, equal tensors counted once
        "saved_bytes": sharing.saved,  # what separate copies would take in addition
        "kv_pages_shared": _total(statuses, "shared_pages"),  # times a sequence took a page made by another
        "kv_pages_shared_now": _total(statuses, "pages_shared_now"),
        "routes": [
            {
                "id": route.id,
                "version": route.version,
                "application": labels[route.application],
                "home": route.home,
                "hops": [{"worker": h.worker, "first": h.first, "last": h.last} for h in route.hops],
            }
            for route in state.routes.values()
        ],
        "applications": _applications(state, labels, statuses, sequences),
        "default": state.table.default,  # id for requests without a model, served or not
        "version": state.version,
        "events": events,
    }


def releases_view(
    nodes: Sequence[NodeRelease], refused: Sequence[RefusedRelease], workers: Collection[str], gateways: Collection[str]
) -> dict[str, Any]:
    """Return the part of ``/admin/cluster`` about releases. nodes: the head first. gateways: addresses."""
    answering = {gateway.partition("/")[0] for gateway in gateways}
    roles = dict.fromkeys(workers, "worker") | {nodes[0].name: "head"}
    found = [(one, roles.get(one.name, "gateway" if one.name in answering else "node")) for one in nodes]
    return {
        "releases": [asdict(one) | {"role": role} for one, role in found],
        "refused_releases": [asdict(one) for one in refused],
    }


def succession_view(epoch: int, keeping: StateKeeping | None) -> dict[str, int]:
    """Return the part of ``/admin/cluster`` about the succession of heads: this one's epoch, and the process that starts
    heads, with the moment when that began; 0 where none does. keeping: of a head that members outlive, else None.
    """
    pid = keeping.keeper if keeping is not None else 0
    return {"epoch": epoch, "keeper": pid, "keeper_begun": begun_at(pid) if pid else 0}


def placement_view(state: ControllerState, now: float, wall: float) -> dict[str, Any]:
    """Return the part of ``/admin/cluster`` about placement. ``wall``: seconds since the epoch at ``now``.

    A pair is named by the ids of its components, hexadecimal, and by its place: ``before`` is the depth of the second one.
    """
    relocations, labels = state.relocations, labels_of(state.served)
    transfers = list[dict[str, Any]]()
    for worker, one in relocations.traffic.sent():
        if one.application in state.served and len(transfers) < PAIRS_SHOWN:
            parts = state.served[one.application].application.components
            transfers.append(
                {
                    "model": labels[one.application],
                    "before": one.depth,
                    "pair": [part.shared.hex() for part in parts[one.depth - 1 : one.depth + 1]],
                    "worker": worker,
                    "to": one.to,
                    "sweeps": one.sweeps,
                    "positions": one.positions,
                    "bytes": one.nbytes,
                }
            )
    last = relocations.last
    planned = None
    if last is not None:
        planned = {"at": round(wall - now + last.at, 3), "steps": last.steps, "saved": last.saved, "cost": last.cost}
    mode = "fragmentation" if state.placement.by_room else "locality"
    counts = {**relocations.counts, "open": int(relocations.step is not None)}
    return {"mode": mode, "window": relocations.window, "relocations": counts, "last": planned, "transfers": transfers}


def _total(statuses: Mapping[str, WorkerStatus], counter: str) -> int:
    return int(sum(status.counters.get(counter, 0) for status in statuses.values()))


def _segments(one: Application, users: Mapping[bytes, tuple[str, ...]]) -> list[dict[str, Any]]:
    """Return the chain as runs of components that the same applications share.

    Each has its layers, the bytes shared together, and the bytes of this application's deltas. ``users``: by
    ``Component.shared``.
    """
    found: list[dict[str, Any]] = []
    for component in one.components:
        those = list(users[component.shared])
        if not found or found[-1]["of"] != those:
            found.append({"of": those, "layers": 0, "bytes": 0, "delta": 0})
        found[-1]["layers"] += component.kv is not None
        found[-1]["bytes"] += component.nbytes
        found[-1]["delta"] += component.delta_nbytes
    return found


def _worker(
    state: ControllerState, worker: WorkerRecord, status: WorkerStatus | None, labels: Mapping[str, str]
) -> dict[str, Any]:
    memory = dict.fromkeys(MEMORY, 0)
    if status is not None:
        memory = {use: getattr(status, use) for use in MEMORY}
    return {
        "id": worker.name,
        "pid": status.pid if status else worker.pid,
        "host": worker.report.host if worker.report is not None else "",
        "labels": dict(worker.labels),
        "joined": worker.joined,
        "state": _worker_state(state, worker),
        "incarnation": worker.incarnation,
        "restarts": worker.restarts,
        "cause": worker.cause,
        "device": status.device if status else worker.report.device if worker.report is not None else "",
        "numerics": status.numerics if status else "",
        "proof": dict(status.proof) if status else {},
        "reported": reported_view(worker.report),
        "memory": memory,
        "blocks": _blocks(state, worker),
        "claims": [_claim(claim, labels) for claim in state.holdings.claims_on(worker.name)],
        "queue": {
            "waiting": status.waiting if status else worker.waiting,
            "running": status.running if status else worker.running,
        },
        "counters": dict(status.counters) if status else {},
        "segments": [asdict(one) for one in status.segments] if status else [],
        "links": dict(status.links) if status else {},
        "store": status.store if status else "",
        "kv_by_tenant": dict(status.kv_by_tenant) if status else {},
        "served_by_tenant": dict(status.served_by_tenant) if status else {},
        "kv_cap_hits": dict(status.kv_cap_hits) if status else {},
        "parameters_by_application": _parameters(status.parameters_by_application, labels) if status else {},
    }


def _worker_state(state: ControllerState, worker: WorkerRecord) -> str:
    if worker.name in state.scaling.given_up:
        return "given up"
    return "draining" if worker.name in state.holdings.draining else worker.state


def reported_view(report: WorkerReport | None) -> dict[str, Any]:
    """Return what a worker reported when it joined: bytes, and bytes or multiplications per second; empty before that."""
    if report is None:
        return {}
    names = ("host", "device", "cores", "threads", "memory")
    found: dict[str, Any] = {name: getattr(report, name) for name in names}
    return found | {"speed": {"bandwidth": round(report.bandwidth), "products": round(report.products)}}


def _busiest(blocks: Iterable[BlockStatus], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return blocks as their actors see them, the longest queues first.

    ``queue``: fraction of the longest that memory allows.
    """
    return [
        {
            "actor": block.name,
            "stage": block.stage.value,
            "applications": [labels.get(name, model_of(name)) for name in block.holders],
            "components": block.components,
            "bytes": block.nbytes,
            "running": block.use.running,
            "waiting": block.use.waiting,
            "tokens": block.use.tokens,
            "queue": block.use.pressure,
            "unused": block.unused,
        }
        for block in blocks
    ]


def claims_view(state: ControllerState, workers: Iterable[str], models: Sequence[str]) -> list[dict[str, Any]]:
    """Return who claims components of these models on workers, and why."""
    labels = labels_of(state.served)
    found = [(name, claim) for name in workers if name in state.residency for claim in state.holdings.claims_on(name)]
    mine = [(name, claim) for name, claim in found if state.served[claim.application].application.served_as in models]
    return [{"worker": name, **_claim(claim, labels)} for name, claim in mine]


def _claim(claim: ComponentClaim, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "model": labels[claim.application],
        "first": claim.first,
        "last": claim.last,
        "route": claim.route,
        "by": claim.by.value,
        "why": claim.why,
        "held": claim.held,
        "paused_by": [by.value for by in claim.paused_by],
    }


def _blocks(state: ControllerState, worker: WorkerRecord) -> list[str]:
    """Return blocks whose every component is resident, each once."""
    found: dict[str, None] = {}
    for name, blocks in state.holdings.blocks.items():
        first = 0
        for block in blocks:
            last = first + len(block.components)
            if state.residency[worker.name].holds(name, first, last):
                found[block.id.hex()] = None
            first = last
    return list(found)


def _applications(
    state: ControllerState,
    labels: Mapping[str, str],
    statuses: Mapping[str, WorkerStatus],
    sequences: Sequence[Mapping[str, Census]],
) -> dict[str, Any]:
    deployed = [served for served in state.served.values() if served.deployed and not is_hidden(served.application)]
    current = sorted((served for served in deployed if not served.draining), key=lambda served: served.place)
    parents = bases(_compared(served) for served in current)
    users: dict[bytes, tuple[str, ...]] = {}
    for served in deployed:
        for shared in dict.fromkeys(c.shared for c in served.application.components):
            users[shared] = (*users.get(shared, ()), labels[served.application.name])
    held, result = holders(served.application for served in deployed), dict[str, Any]()
    for name, served in sorted(state.served.items(), key=lambda item: (item[1].place, item[1].rank)):
        one, model = served.application, served.application.served_as
        whose = one.variant_of or one.drafts_for
        whole = sum(one.tensors().values())
        shares = parameter_shares(one, held) if served.deployed else ParameterShares(whole, 0)
        if is_hidden(one):
            own = sum(nbytes for hash, nbytes in one.tensors().items() if hash not in held)
            shares = ParameterShares(own, whole - own)
        refused = {worker: here.refused[name] for worker, here in state.residency.items() if name in here.refused}
        kv = [status.kv_by_application.get(name, (0, 0)) for status in statuses.values()]
        counts = [found[model] for found in sequences if model in found and labels[name] == model]
        result[labels[name]] = {
            "model": model,
            "base": _base(state, one) if one.changed else labels.get(whose or parents.get(name, "")),
            "family": one.family,  # of a lower tier: the id of the top tier
            "variant_of": labels.get(one.variant_of, one.variant_of),  # a variant: in whose place it may serve
            "drafts_for": labels.get(one.drafts_for, one.drafts_for),  # of a chain that only drafts: for which one
            "checkpoint": one.checkpoint,
            "defaults": json.loads(one.defaults) if one.defaults else {},  # defaults of its requests
            "state": _state(state, served),
            "max_length": one.context,
            "bytes": {"shared": shares.shared, "own": shares.own},
            "kv": {"bytes": sum(total for total, _ in kv), "shared": sum(shared for _, shared in kv)},
            "requests": {
                "running": sum(count.running for count in counts),
                "waiting": sum(sum(count.waiting.values()) for count in counts),
            },
            "chains": _chains(counts),  # sequences by the variant that served them; "": its own chain
            "similarity": _similarity(counts),  # of the answers of variants that the model has scored
            "blocks": [b.id.hex() for b in state.holdings.blocks.get(name, ())],
            "segments": _segments(one, users) if served.deployed and not is_hidden(one) else [],
            "refused": refused,
        }
    return result


def _chains(counts: Sequence[Census]) -> dict[str, int]:
    names = dict.fromkeys(name for count in counts for name in count.chains)
    return {name: sum(count.chains.get(name, 0) for count in counts) for name in names}


def _similarity(counts: Sequence[Census]) -> dict[str, float]:
    found = Similarity()
    for count in counts:
        found = found.plus(count.similarity)
    return found.view()


def _compared(served: Served) -> Chain:
    """Return an application as ``bases`` compares it."""
    one = served.application
    return Chain(one.name, served.blocks, 0, model=one.model, family=one.family)


def _state(state: ControllerState, served: Served) -> str:
    if not served.deployed:
        return "undeployed"
    if served.draining:
        return "ending"
    if served.parked:
        return "lacks blocks" if served.variant else "on demand"
    return "ready" if state.ready(served.application.name) else "loading"


def _parameters(found: dict[str, tuple[int, int]], labels: Mapping[str, str]) -> dict[str, dict[str, int]]:
    return {labels.get(name, model_of(name)): {"owned": owned, "shared": shared} for name, (owned, shared) in found.items()}


def application_view(state: ControllerState, served: Served) -> ApplicationView:
    """Return the view of an application for the caller that added it."""
    one = served.application
    family = members(state.served, served)
    shares = family_shares(state.served, family)
    ready = all(member.parked or state.ready(member.application.name) for member in family)
    base = (_base(state, one) or "") if one.changed else ""
    tiers = tuple(member.application.served_as for member in family[1:])
    return ApplicationView(one.served_as, one.checkpoint, ready, one.context, shares.own, shares.shared, base, tiers)


def removal_view(state: ControllerState, served: Served, default: str) -> RemovalView:
    """Return the consequences of a removal, with all tiers. ``default``: see ``GatewayPort.remove_application``."""
    family = members(state.served, served)
    shares = family_shares(state.served, family)
    others = [o.application for o in state.served.values() if o.deployed and not o.draining and o not in family]
    checkpoints, models = zip(*((o.application.checkpoint, o.application.served_as) for o in family), strict=True)
    over = [o for o in others if o.changed and (o.base in checkpoints if o.base else o.base_model in models)]
    default = default or state.table.default
    answered = is_answered(default, {o.served_as: o.family for o in others})
    return RemovalView(False, shares.own, len(over), default, answered)


def _base(state: ControllerState, adapter: Application) -> str | None:
    """Return an adapter's base as shown; None: unknown."""
    served = serving(state.served, adapter.base_model) if adapter.base_model else None
    now = None if served is None else WholeModel(adapter.base_model, served.application.checkpoint)
    return shown_base(adapter.base_model, adapter.base, now) or None


@dataclass(frozen=True, slots=True)
class ParameterShares:
    """Raw bytes of an application's distinct tensors."""

    own: int
    shared: int


@dataclass(frozen=True, slots=True)
class Saving:
    """Raw bytes of the parameters of several applications, and the bytes saved by sharing."""

    stored: int  # equal tensors counted once
    saved: int  # what separate copies would take in addition


def memory_saved(applications: Iterable[Application]) -> Saving:
    """Return the memory of all of them together and the memory that sharing saves, however often they are deployed."""
    stored: dict[bytes, int] = {}
    alone = 0
    for application in applications:
        tensors = application.tensors()
        alone += sum(tensors.values())
        stored |= tensors
    total = sum(stored.values())
    return Saving(total, alone - total)


def holders(applications: Iterable[Application]) -> Counter[bytes]:
    """Return, for each tensor (its hash), the number of applications that have it."""
    return Counter(hash for application in applications for hash in application.tensors())


def parameter_shares(application: Application, held: Mapping[bytes, int]) -> ParameterShares:
    """Return an application's shares. ``held``: the result of ``holders`` for all applications, including this one."""
    own = shared = 0
    for hash, nbytes in application.tensors().items():
        if held[hash] > 1:
            shared += nbytes
        else:
            own += nbytes
    return ParameterShares(own, shared)


def family_shares(served: Mapping[str, Served], family: list[Served]) -> ParameterShares:
    """Return the bytes that an application and its tiers own together, and the bytes that others have, too."""
    names = {one.application.name for one in family}
    others = [one for name, one in served.items() if one.deployed and name not in names and not is_hidden(one.application)]
    held = holders(one.application for one in others)
    tensors: dict[bytes, int] = {}
    for one in family:
        tensors |= one.application.tensors()
    shared = sum(nbytes for hash, nbytes in tensors.items() if held[hash])
    return ParameterShares(sum(tensors.values()) - shared, shared)
