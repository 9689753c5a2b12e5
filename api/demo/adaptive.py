"""The adaptive part of the demo: a fine-tune that is overloaded answers through blocks of its sibling, too.

It has a server of its own, whose two workers have memory for one of two near fine-tunes each. What ``blockwright zoo
equivalence`` measured of them lies beside them. The demo talks to the server through its HTTP API.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...zoo.add import add
from ...zoo.equivalence.records import read_equivalences, store_equivalences
from ...zoo.zoo import Zoo
from ..program.client import Client
from .client import ExampleOutcome, ask, view_of
from .display import TourCheck
from .siblings import SALES, SUPPORT, questions

SEED = 31
PER_TASK = 16  # held-out prompts of each task
PACE = {"base": 0.01}  # least seconds of a sweep
GOOD = 0.8  # least share of right answers of both chains
ROUTE_SECONDS = 30.0  # seconds until the variant must have a route
LOOK = 0.1  # seconds between two queries of the cluster


def prepare(folder: Path, siblings: Mapping[str, Path]) -> Path:
    """Make a zoo of the two fine-tunes and of what was measured of them, and the pace's file; return the zoo's folder."""
    root = folder / "zoo"
    for name in (SUPPORT, SALES):
        add(root, str(siblings[name]), name)
    measured = sorted((siblings[SUPPORT].parent / "equivalences").glob("*.json"))
    store_equivalences(root, [read_equivalences(path) for path in measured])
    (folder / "pace.json").write_text(json.dumps(PACE))
    return root


def command(root: Path, port: int) -> list[str]:
    """Return the command that starts the server. A worker has memory for one of the models and its sequences."""
    zoo, tensors = Zoo(root), dict[str, int]()
    for name in (SUPPORT, SALES):
        tensors |= {hash: tensor.nbytes for hash, tensor in zoo.tensors(zoo.chain(name)).items()}
    settings = {f"adaptive.{SUPPORT}": "equal", "memory": sum(tensors.values()) - 1, "heartbeat": LOOK}
    settings |= {"pace": root.parent / "pace.json"}
    words = (word for name, value in settings.items() for word in ("--set", f"{name}={value}"))
    return [
        *(sys.executable, "-m", "blockwright", "serve", str(root / "chains" / SUPPORT)),
        *("--app", f"{SALES}={root / 'chains' / SALES}", "--workers", "2", "--port", str(port), *words),
    ]


async def show_adaptive(client: Client, say: Callable[[str], None]) -> list[TourCheck]:
    """Send all prompts at once, and again to the model's own chain alone. ``say`` gets each line."""
    say(f"\nmeanwhile an overloaded fine-tune on a third server: memory for one of {SUPPORT}")
    say(f"and {SALES} on each of 2 workers (--set adaptive.{SUPPORT}=equal):")
    homes = await _homes(client)
    shared = await _answers(client, adaptive=True)  # first, as no worker has KV of a prompt yet
    alone = await _answers(client, adaptive=False)
    served = Counter(one.variant or SUPPORT for one in shared if not one.error)
    parts = [f"{name} on {homes.get(name, '?')} {count / len(shared):.0%}" for name, count in sorted(served.items())]
    say(f"  {len(shared)} prompts at once to {SUPPORT}: {', '.join(parts)}")
    through = [place for place, one in enumerate(shared) if one.variant]
    own, other = (_right([found[place] for place in through]) for found in (alone, shared))
    say(f"  right where {SALES}' blocks answered: {other:.0%}; the own chain there: {own:.0%}")
    say("")
    return judge(alone, shared)


def judge(alone: Sequence[ExampleOutcome], shared: Sequence[ExampleOutcome]) -> list[TourCheck]:
    """Return the checks: variants answered, and about as well. ``alone``: the same prompts on the own chain."""
    every = [*alone, *shared]
    whole = sum(not one.error for one in every)
    through = [one for one in shared if one.variant]
    own, other = _right(alone), _right(through)
    answered = f"{len(through)} of {len(shared)} answers came through blocks of the fine-tune's sibling"
    accuracy = f"right: {own:.0%} by its own chain, {other:.0%} by variants (at least {GOOD:.0%})"
    return [
        TourCheck(f"{whole} of {len(every)} requests to an overloaded fine-tune completed", whole == len(every)),
        TourCheck(answered, 0 < len(through) < len(shared)),
        TourCheck(accuracy, min(own, other) >= GOOD),
    ]


def _right(outcomes: Sequence[ExampleOutcome]) -> float:
    return sum(one.right for one in outcomes) / max(len(outcomes), 1)


async def _homes(client: Client) -> dict[str, str]:
    """Wait until a variant has a route; return the workers of each model and variant."""
    until = time.monotonic() + ROUTE_SECONDS
    while True:
        routes: list[dict[str, Any]] = (await view_of(client, "/admin/cluster"))["routes"]
        homes = dict[str, str]()
        for route in sorted(routes, key=lambda one: str(one["home"])):
            known = homes.get(route["application"], "")
            homes[route["application"]] = f"{known}, {route['home']}" if known else route["home"]
        if any(name.startswith(f"{SUPPORT}~") for name in homes) or time.monotonic() > until:
            return homes
        await asyncio.sleep(LOOK)


async def _answers(client: Client, *, adaptive: bool) -> list[ExampleOutcome]:
    """Send all prompts at once; return the outcomes."""
    outcomes = [ExampleOutcome(example, SUPPORT) for example in questions(SEED, PER_TASK)]
    await asyncio.gather(*(ask(client, one, lambda _: None, adaptive=adaptive) for one in outcomes))
    return outcomes
