"""Memory of the devices of simulated instances, and sequences that are removed from an instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..policies.memory.worker_memory import WorkerMemory
from ..policies.model.lineage import page_hashes
from ..policies.model.runs import Span
from ..policies.prediction.instance import Instance
from ..policies.prediction.instance_load import News
from ..policies.prediction.load import used_blocks
from ..policies.prediction.pipeline_instance import PipelineInstance
from ..policies.sweep.columns import FOREVER, Status
from ..policies.sweep.events import Submission
from ..policies.sweep.state import SweepState


@dataclass(slots=True)
class DevicePages:
    """The memory of one device of an instance, on the route of the instance."""

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


def states(instance: Instance | PipelineInstance) -> dict[str, SweepState]:
    """Return the sweep machines of an instance, by worker."""
    found = [m.state for m in instance.machines.values()] if isinstance(instance, PipelineInstance) else [instance.state]
    return {state.config.worker: state for state in found}


def devices(instance: Instance | PipelineInstance) -> dict[str, DevicePages]:
    """Return the memory of the devices of an instance with one model, by worker."""
    found = {}
    for worker, state in states(instance).items():
        (local,) = state.parts.routes.all_in_force()
        found[worker] = DevicePages(state, local.spans[0])
    return found


@dataclass(frozen=True, slots=True)
class RemovedSequence:
    """A sequence that was removed from an instance: how to submit it elsewhere, and the number of its full KV pages."""

    submission: Submission
    pages: int
    page_size: int


def take_out(instance: Instance | PipelineInstance, now: float) -> list[RemovedSequence]:
    """Return all sequences of an instance that stops, the running ones first."""
    rows, found = instance.state.parts.rows, []
    for s in rows.live():
        status = rows.status[s]
        if rows.is_guest(s) or rows.is_draft_row(s) or (status == Status.LEAVING and not rows.requeue[s]):
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
