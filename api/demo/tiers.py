"""The family part of the demo: one checkpoint in several sizes, which is added to the running server with all its tiers.

Every tier gets the same held-out prompts at once. Then ``NAME:auto`` chooses the tier, once a sure one and once an unsure
one, and one answer is streamed without and with drafts. No tier's answers are assumed: prompts are tried until both choices
have been seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...policies.binary_size import binary_size
from ...policies.model.tier_choice import auto_id
from ...policies.model.tiers import layers_of
from ..program.client import Client, events
from .client import ExampleOutcome, ask, view_of
from .display import TourCheck, table
from .tasks import HELD_OUT, Example, examination

SEED = 21
PER_TASK = 4  # held-out prompts of each task for every tier
TOGETHER = 4  # prompts at a time that choose their tier
TRIED = 48  # most prompts that are tried until one has stayed on a lower tier and one has gone up
STREAM = "repeat 6: draft ="  # the prompt of the stream
TOKENS = 120  # its length
DRAFTS = 4  # drafts of a step


@dataclass(slots=True)
class TierExam:
    """The answers of one tier to the prompts that all tiers get."""

    name: str
    outcomes: list[ExampleOutcome]

    @property
    def right(self) -> int:
        return sum(outcome.right for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class ChosenAnswer:
    """An answer of ``NAME:auto``, how it was chosen, and the answer of the tier that it names to the same prompt."""

    prompt: str
    text: str
    tier: str
    up: bool
    confidence: float
    theta: float
    prompt_tokens: int
    entered: Mapping[str, int]
    named: str

    @property
    def same(self) -> bool:
        return self.text == self.named


@dataclass(slots=True)
class TimedStream:
    """One streamed answer: its tokens, their steps, and the seconds from its arrival to its end on the server."""

    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    accepted: int = 0

    @property
    def steps(self) -> int:
        return len(self.tokens) - self.accepted


async def show_tiers(client: Client, folder: Path) -> list[TourCheck]:
    """Add the family in ``folder``, examine its tiers, let requests choose among them, and stream with drafts."""
    family, began = folder.name, time.monotonic()
    await client.post("/admin/apps", {"name": family, "path": str(folder)})
    print(f"\nthe family {family}, one model in several sizes, is added: ready after {time.monotonic() - began:.2f} s")
    served = (await view_of(client, "/admin/apps"))["applications"]
    tiers = [*sorted((name for name, one in served.items() if one["family"] == family), key=layers_of), family]
    exams = [TierExam(tier, [ExampleOutcome(one, tier) for one in _prompts(SEED)]) for tier in tiers]
    await asyncio.gather(*(ask(client, one, lambda _: None) for row in _rows(exams) for one in row))
    view = await view_of(client, "/admin/cluster")
    print(f"{len(exams[0].outcomes)} held-out prompts to each of its {len(tiers)} tiers at once:\n")
    print(f"{tier_table(exams, view)}\n")
    print("\n".join([memory_line(tiers, view), *segment_lines(family, view)]))
    chosen = await choose(client, family)
    print(f"\n{auto_id(family)}: a lower tier keeps an answer of whose first tokens it is sure:")
    print("\n".join(choice_lines(chosen)))
    plain, drafted = [await stream(client, family, more) for more in ({"draft": "off"}, {"draft": "auto"})]
    print(f"\none answer of {family} without and with drafts (guesses, checked in one step):\n")
    print(f"{stream_table(plain, drafted)}\n", flush=True)
    return judge(exams, chosen, plain, drafted)


def _prompts(seed: int) -> list[Example]:
    return examination(seed, PER_TASK, (HELD_OUT,))


def _rows(exams: Sequence[TierExam]) -> Iterable[tuple[ExampleOutcome, ...]]:
    """Return the outcomes by prompt, so that equal prompts are sent together."""
    return zip(*(exam.outcomes for exam in exams), strict=True)


def tier_table(exams: Sequence[TierExam], view: Mapping[str, Any]) -> str:
    """Return one row for each tier: its layers, the memory that it owns and would need alone, its right answers."""
    rows = []
    for exam in exams:
        one = view["applications"][exam.name]
        own, shared = one["bytes"]["own"], one["bytes"]["shared"]
        layers, right = sum(segment["layers"] for segment in one["segments"]), f"{exam.right}/{len(exam.outcomes)}"
        rows.append((exam.name, str(layers), right, binary_size(own + shared), binary_size(own)))
    return table(("tier", "layers", "right", "alone it takes", "of that its own"), rows)


def memory_line(tiers: Sequence[str], view: Mapping[str, Any]) -> str:
    """Return the memory of all tiers together, and the memory of as many separate models."""
    sizes = [view["applications"][tier]["bytes"] for tier in tiers]
    together = sum(one["own"] for one in sizes) + sizes[-1]["shared"]  # the top tier has all layers
    alone = sum(one["own"] + one["shared"] for one in sizes)
    return f"together {binary_size(together)}; as {len(tiers)} separate models {binary_size(alone)}"


def segment_lines(family: str, view: Mapping[str, Any]) -> list[str]:
    """Return a sentence on how many requests a step took through each part of the layers; none if nothing was counted."""
    counts: dict[tuple[int, int], tuple[int, int]] = {}
    for worker in view["workers"]:
        for one in worker["segments"]:
            if one["family"] == family:
                sweeps, rows = counts.get((one["first"], one["last"]), (0, 0))
                counts[one["first"], one["last"]] = sweeps + one["sweeps"], rows + one["rows"]
    parts = [
        f"{rows / sweeps:.1f} in " + (f"layers {first}-{last}" if first < last else f"layer {last}")
        for (first, last), (sweeps, rows) in sorted(counts.items())
        if sweeps
    ]
    return [f"requests in a mean step: {', '.join(parts)}"] if parts else []


async def choose(client: Client, family: str) -> list[ChosenAnswer]:
    """Return an answer that stayed on a lower tier and one that went up, each if there was one among the tried prompts."""
    found: dict[bool, ChosenAnswer] = {}
    prompts = [one.prompt for one in _prompts(SEED + 1)][:TRIED]
    while prompts and len(found) < 2:
        now, prompts = prompts[:TOGETHER], prompts[TOGETHER:]
        for one in await asyncio.gather(*(_chosen(client, family, prompt) for prompt in now)):
            found.setdefault(one.up, one)
    return [found[up] for up in sorted(found)]


async def _chosen(client: Client, family: str, prompt: str) -> ChosenAnswer:
    asked = {"prompt": prompt, "max_tokens": 64, "temperature": 0}
    answer = await client.post("/v1/completions", {"model": auto_id(family), **asked})
    view = await client.get(f"/v1/requests/{answer['id']}")
    tier = view["tier"]
    named = await client.post("/v1/completions", {"model": tier["tier"], **asked})
    text, other = (one["choices"][0]["text"] for one in (answer, named))
    sure, rule = tier["confidence"], tier["theta"]
    length, entered = view["prompt_tokens"], view["entered"]
    return ChosenAnswer(prompt, text, tier["tier"], tier["escalated"], sure, rule, length, entered, other)


def choice_lines(chosen: Collection[ChosenAnswer]) -> list[str]:
    """Return two lines for each answer: the prompt and what became of it, then why."""
    lines = []
    for one in chosen:
        went = "goes up to" if one.up else "stays on"
        lines.append(f"  {one.prompt} {one.text}".replace("\n", " ")[:79])
        lines.append(f"    confidence {one.confidence:.2f}, {one.theta:.2f} is enough: {went} {one.tier}")
        for layers, tokens in one.entered.items():
            of = f"{tokens} of its {one.prompt_tokens} prompt tokens"
            lines.append(f"    {of} begin behind layer {layers}, computed below before")
    for up, what in ((False, "stayed on a lower tier"), (True, "went up")):
        if up not in {one.up for one in chosen}:
            lines.append(f"  no prompt of {TRIED} {what}")
    return lines


async def stream(client: Client, model: str, more: Mapping[str, Any]) -> TimedStream:
    """Return one answer of ``TOKENS`` tokens as it was streamed."""
    body = {"model": model, "prompt": STREAM, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True, "draft_tokens": DRAFTS, **more}
    found = TimedStream()
    async with client.open("POST", "/v1/completions", body) as answer:
        request = answer.headers.get("x-request-id", "")
        async for event in events(answer):
            for choice in event.get("choices", []):
                found.tokens += choice.get("token_ids") or []
    view = await client.get(f"/v1/requests/{request}")
    found.seconds = view["events"][-1]["at"]  # a busy machine may hand all events to the client at once
    found.accepted = sum(one["accepted"] for one in view["drafts"]["sources"].values())
    return found


def stream_table(plain: TimedStream, drafted: TimedStream) -> str:
    """Return one row for each stream; the last column compares their tokens."""
    rows = [
        (name, str(len(one.tokens)), str(one.steps), f"{1000 * one.seconds:.0f} ms", same)
        for name, one, same in (
            ("without drafts", plain, ""),
            ("with drafts", drafted, "yes" if drafted.tokens == plain.tokens else "NO"),
        )
    ]
    return table(("stream", "tokens", "steps", "time", "the same tokens"), rows)


def judge(
    exams: Sequence[TierExam], chosen: Sequence[ChosenAnswer], plain: TimedStream, drafted: TimedStream
) -> list[TourCheck]:
    """Return the checks: every request was answered, and choices and drafts changed no token."""
    outcomes = [outcome for exam in exams for outcome in exam.outcomes]
    done = sum(not outcome.error for outcome in outcomes)
    same = sum(one.same for one in chosen)
    return [
        TourCheck(f"{done} of {len(outcomes)} requests to the tiers of a family completed", done == len(outcomes)),
        TourCheck(f"{same} of {len(chosen)} answers that chose their tier are that tier's", 0 < same == len(chosen)),
        TourCheck(
            f"with drafts the same {len(plain.tokens)} tokens came, in {drafted.steps} steps instead of {plain.steps}",
            bool(plain.tokens) and plain.tokens == drafted.tokens,
        ),
    ]
