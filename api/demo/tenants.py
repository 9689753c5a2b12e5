"""The tenants part of the demo: fine-tunes of one base model in the same sweeps, and one more that is added meanwhile.

Every tenant gets held-out prompts of its task, and the base model gets the same ones, all at once. The family's folders are
required.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...policies.binary_size import binary_size
from ..program.client import Client
from .client import ExampleOutcome, ask, view_of
from .display import LiveDisplay, TourCheck, table
from .family import FAMILY, questions

HOT = "mirror"  # the member that is added while the others stream
SEED = 9
PROMPTS = 12  # prompts for each tenant
GOOD, POOR = 0.8, 0.25  # share of right answers: least of a tenant, most of the base model alone


@dataclass(slots=True)
class TenantExam:
    """A tenant's answers, and the base model's answers to the same prompts."""

    name: str
    tenant: list[ExampleOutcome]
    foundation: list[ExampleOutcome]

    @classmethod
    def of(cls, name: str, foundation: str) -> TenantExam:
        examples = questions(name, SEED, PROMPTS)
        return cls(name, [ExampleOutcome(e, name) for e in examples], [ExampleOutcome(e, foundation) for e in examples])

    @property
    def pairs(self) -> list[ExampleOutcome]:
        """The outcomes in the order of sending: equal prompts together, so that they share KV pages."""
        return [one for pair in zip(self.tenant, self.foundation, strict=True) for one in pair]


@dataclass(slots=True)
class AppsSeen:
    """The answers of ``/admin/apps`` while requests ran."""

    applications: dict[str, Any] = field(default_factory=dict)
    shared_kv: dict[str, int] = field(default_factory=dict)  # most bytes shared with another model, by model id

    async def look(self, client: Client) -> None:
        self.applications = (await view_of(client, "/admin/apps"))["applications"]
        for name, one in self.applications.items():
            self.shared_kv[name] = max(self.shared_kv.get(name, 0), one["kv"]["shared"])


def right(outcomes: Iterable[ExampleOutcome]) -> int:
    return sum(outcome.right for outcome in outcomes)


def tenant_table(exams: Sequence[TenantExam], watch: AppsSeen) -> str:
    """Return one row for each tenant: form, memory, accuracy, and the shared KV if there was any."""
    rows, last = [], any(watch.shared_kv.get(exam.name) for exam in exams)
    for exam in exams:
        found = watch.applications[exam.name]
        own, shared = found["bytes"]["own"], found["bytes"]["shared"]
        rows.append(
            (
                exam.name,
                FAMILY[exam.name].form,
                binary_size(own),
                f"{shared / (own + shared):.0%}",
                f"{right(exam.tenant)}/{len(exam.tenant)}",
                f"{right(exam.foundation)}/{len(exam.foundation)}",
                *([binary_size(watch.shared_kv.get(exam.name, 0))] if last else []),
            )
        )
    return table(("model", "form", "owns", "shares", "right", "base alone", *(["KV shared"] if last else [])), rows)


def judge(exams: Sequence[TenantExam], streaming: int) -> list[TourCheck]:
    """Return the checks: tenants can do what the base model cannot. ``streaming``: requests in progress at the addition."""
    outcomes = [outcome for exam in exams for outcome in exam.pairs]
    failed = sum(bool(outcome.error) for outcome in outcomes)
    least = min(right(exam.tenant) / len(exam.tenant) for exam in exams)
    best = max(right(exam.foundation) / len(exam.foundation) for exam in exams)
    return [
        TourCheck(f"{len(outcomes) - failed} of {len(outcomes)} requests to fine-tunes completed", not failed),
        TourCheck(f"every fine-tune is right in {least:.0%} or more (at least {GOOD:.0%})", least >= GOOD),
        TourCheck(f"their base alone is right in {best:.0%} or less (at most {POOR:.0%})", best <= POOR),
        TourCheck(f"one fine-tune was added while {streaming} requests streamed", streaming > 0),
    ]


async def sit(client: Client, outcomes: Iterable[ExampleOutcome], begun: asyncio.Event) -> None:
    """Send all prompts at once. ``begun``: set when the first text arrives."""
    await asyncio.gather(*(ask(client, outcome, lambda _: begun.set()) for outcome in outcomes))


async def watching(client: Client, watch: AppsSeen) -> None:
    while True:
        await watch.look(client)
        await asyncio.sleep(0.05)


async def add_hot(client: Client, folder: Path, base: str) -> str:
    """Return the server's summary of the added model; raise RequestError if it refuses."""
    began = time.monotonic()
    response = await client.post("/admin/apps", {"name": HOT, "path": str(folder), "base": base})
    return f"{HOT} {response['summary']}, ready after {time.monotonic() - began:.2f} s"


async def show_tenants(client: Client, base: str, family: Mapping[str, Path]) -> list[TourCheck]:
    """Stream from every tenant at once, add one more, examine all. ``family``: folders by member, including ``HOT``."""
    names, watch = [name for name in family if name != HOT], AppsSeen()
    exams = [TenantExam.of(name, base) for name in names]
    print(f"\none request each to {len(names)} fine-tunes of {base}, on the same two workers:")
    live = LiveDisplay([exam.tenant[0] for exam in exams], sys.stdout)
    await asyncio.gather(*(ask(client, exam.tenant[0], live.changed) for exam in exams))
    rest = [outcome for row in zip(*(exam.pairs[1:] for exam in exams), strict=True) for outcome in row]
    print(f"\n{len(rest)} more requests at once to them and their base, while {HOT} is added:")
    begun, last = asyncio.Event(), TenantExam.of(HOT, base)
    asked = asyncio.create_task(sit(client, rest, begun))
    watcher = asyncio.create_task(watching(client, watch))
    try:
        await begun.wait()
        streaming = sum(bool(outcome.started and not outcome.ended) for outcome in rest)
        print(f"  {await add_hot(client, family[HOT], base)}", flush=True)
        await asyncio.gather(asked, sit(client, last.pairs, begun))
    finally:
        for task in (asked, watcher):
            task.cancel()
        await asyncio.gather(asked, watcher, return_exceptions=True)
    exams.append(last)
    await watch.look(client)
    print(f"\n{tenant_table(exams, watch)}")
    return judge(exams, streaming)
