"""Groups of a simulated cluster: replicas, and pipelines of members that have dropped parameters.

A model has ``layers`` equal layers here. The layers of a stage are one component, so that a page of KV is one slot of a
device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..policies.memory.worker_memory import WorkerMemory
from ..policies.model.chain import Block, Chain, Component, Kind, KvLayout, Route
from ..policies.model.lineage import page_hashes
from ..policies.model.runs import Span
from ..policies.overload.drop_plan import ParameterGroup, kv_bytes, nbytes
from ..policies.plan.coefficients import Coefficients
from ..policies.prediction.instance import Instance
from ..policies.prediction.instance_load import News
from ..policies.prediction.load import used_blocks
from ..policies.prediction.machines import LinkTimes
from ..policies.prediction.pipeline_instance import PipelineInstance
from ..policies.requests.routes_changed import RoutesChanged
from ..policies.sweep.columns import FOREVER, Status
from ..policies.sweep.config import SweepConfig
from ..policies.sweep.events import Submission
from ..policies.sweep.state import SweepState
from .description import ModelSpec
from .simulation import hops_of


def layered(model: ModelSpec, layers: int, page_size: int) -> tuple[Component, ...]:
    """Return the chain of a model: embedding, layers and head."""
    layout = KvLayout(1, model.kv_bytes // 4 // layers, "bfloat16", page_size)
    body = model.parameters - model.embedding - model.head
    sizes = [body * (n + 1) // layers - body * n // layers for n in range(layers)]
    return (
        _component(model, Kind.EMBEDDING, 0, 0, model.embedding),
        *(_component(model, Kind.ATTENTION, n + 1, n + 2, size, layout) for n, size in enumerate(sizes)),
        _component(model, Kind.HEAD, layers + 1, layers + 2, model.head),
    )


def _component(model: ModelSpec, kind: Kind, first: int, last: int, nbytes: int, kv: KvLayout | None = None) -> Component:
    id = hashlib.blake2b(f"{model.name}/{kind}/{first}-{last}".encode(), digest_size=16).digest()
    return Component(id, kind, nbytes, 1, max(1, model.hidden_bytes), kv)


@dataclass(frozen=True, slots=True)
class SimulatedGroups:
    """Factory of instances for groups. ``configs`` has each worker's configuration as a replica."""

    model: ModelSpec
    components: Sequence[Component]
    configs: Mapping[str, SweepConfig]
    costs: Coefficients  # including the sizes of the model
    links: LinkTimes

    def make(self, group: ParameterGroup) -> tuple[Instance | PipelineInstance, Route]:
        """Return a new instance and its route."""
        stages, page_size = [], next(iter(self.configs.values())).page_size
        last = len(self.components) - 1
        for m in group.members:
            layers = range(max(m.first, 1), min(m.last, last))
            layout = KvLayout(1, kv_bytes(self.components, m.first, m.last) // 4, "bfloat16", page_size)
            stages.append(
                _component(self.model, Kind.ATTENTION, layers.start, layers.stop, nbytes(self.components, layers), layout)
            )
        chain = Chain(self.model.name, (Block((self.components[0], *stages, self.components[last])),), self.model.context)
        hops = hops_of([member.worker for member in group.members])
        route = Route(f"{self.model.name}@{group.name}", 1, self.model.name, hops)
        event = RoutesChanged(1, [chain], [route], [route])
        configs = [
            replace(self.configs[m.worker], budget=m.budget - nbytes(self.components, range(m.first, m.last)))
            for m in group.members
        ]
        if len(configs) == 1:
            return Instance(configs[0], event, self.costs), route
        return PipelineInstance(group.name, configs, event, self.costs, self.links), route


@dataclass(slots=True)
class GroupDevice:
    """The memory of one member, on the route of its group."""

    state: SweepState
    span: Span

    @property
    def memory(self) -> WorkerMemory:
        return self.state.parts.memory

    @property
    def page_bytes(self) -> int:
        return self.memory.pages.page_bytes(self.span)

    @property
    def total(self) -> int:
        return self.memory.pages_of([self.span], "")

    @property
    def used(self) -> int:
        return used_blocks(self.memory, self.page_bytes)

    def hold(self, pages: int) -> list[int]:
        """Allocate ``pages`` pages, or as many as there are."""
        found = list[int]()
        while len(found) < pages and (handle := self.memory.allocate_page(self.span, "")) is not None:
            found.append(handle)
        return found

    def publish(self, handles: Sequence[int], hashes: Sequence[bytes]) -> list[int]:
        """Publish the KV of these pages under these hashes. Return the published handles.

        They are held until a sequence lists them; the pages beyond the hashes become free again.
        """
        for handle, token_hash in zip(handles, hashes, strict=False):
            self.memory.pages.publish(handle, token_hash)
        self.release(handles[len(hashes) :])
        return list(handles[: len(hashes)])

    def release(self, handles: Sequence[int]) -> None:
        self.memory.pages.release([*handles], "")


def devices(instance: Instance | PipelineInstance) -> dict[str, GroupDevice]:
    """Return the devices of an instance, by worker."""
    states = [m.state for m in instance.machines.values()] if isinstance(instance, PipelineInstance) else [instance.state]
    found = {}
    for state in states:
        (local,) = state.parts.routes.all_in_force()
        found[state.config.worker] = GroupDevice(state, local.spans[0])
    return found


@dataclass(frozen=True, slots=True)
class RemovedSequence:
    """A sequence that was removed from an instance: how to submit it elsewhere, and the number of its full KV pages."""

    submission: Submission
    pages: int
    page_size: int


def take_out(instance: Instance | PipelineInstance, now: float) -> list[RemovedSequence]:
    """Remove all sequences of an instance that stops, the running ones first."""
    rows, found = instance.state.parts.rows, []
    for s in rows.live():
        status = rows.status[s]
        if rows.is_guest(s) or (status == Status.LEAVING and not rows.requeue[s]):
            continue
        found.append(_taken(instance.state, s, rows.computed[s] if status == Status.RUNNING else 0, now))
    return sorted(found, key=lambda taken: (-taken.pages, taken.submission.arrival))


def take_one(instance: Instance, request: str, now: float) -> tuple[RemovedSequence, list[News]]:
    """Remove one sequence of an instance, with the KV that it had when it last ran.

    Also return the news of other sequences from that time.
    """
    instance.catch_up(now)
    s = instance.state.parts.rows.find(request)
    assert s is not None, "a sequence goes on elsewhere that is not here"
    taken = _taken(instance.state, s, 0, now)
    computed, news = instance.withdraw(request, now)
    return replace(taken, pages=computed // taken.page_size), news


def _taken(state: SweepState, s: int, computed: int, now: float) -> RemovedSequence:
    rows = state.parts.rows
    tokens, of = rows.tokens_of(s), rows.submission[s]
    left = 0.0 if rows.deadline[s] == FOREVER else max(rows.deadline[s] - now, 1e-9)
    hashes = page_hashes(tokens, rows.page_size, of.salt)
    return RemovedSequence(
        replace(of, tokens=tokens, page_hashes=hashes, timeout=left), computed // rows.page_size, rows.page_size
    )
