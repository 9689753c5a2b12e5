"""The steps by which a plan guesses hidden states: the surrogate before the block that it stands for, the verdict behind.

Every row of a route with a surrogate passes it, so that its KV has no holes. A guess leaves for the rows that draw a token
after one position, while the block is among the slowest of the worker (``bottlenecks.py``). Prompts are never guessed, nor
are rows with drafts, grammars, scores or vectors.
"""

from __future__ import annotations

from dataclasses import replace

from ..model.runs import LocalRoute
from ..plan.sweep_plan import Departure, GuessPlan, Step, SweepPlan
from .guesses import LEAST, NEVER
from .parts import Parts


def lay_out_guesses(parts: Parts, plan: SweepPlan, sequences: list[int]) -> None:
    """Add the guesses of a plan whose other steps and departures are laid out."""
    found: dict[str, tuple[LocalRoute, list[int]]] = {}
    for i, s in enumerate(sequences):
        local = parts.rows.route[s]
        if local.guess is not None and not parts.rows.is_guest(s):
            found.setdefault(local.route.id, (local, []))[1].append(i)
    for local, batch in found.values():
        _add(parts, plan, sequences, local, batch)


def _add(parts: Parts, plan: SweepPlan, sequences: list[int], local: LocalRoute, batch: list[int]) -> None:
    path = local.guess
    assert path is not None
    departure = next(one for one in plan.departures if not set(batch).isdisjoint(one.batch))
    rows = dict(zip(departure.batch, departure.rows, strict=True))
    guesses = parts.guesses.wanted and parts.bottlenecks.guesses(local.route.application)
    leaving = [i for i in batch if guesses and rows[i].sample and rows[i].count == 1 and _may(parts, sequences[i])]
    sent = Departure(
        departure.worker, departure.home, departure.width, leaving, [replace(rows[i], guess=True) for i in leaving]
    )
    plan.guesses.append(GuessPlan(batch, sent, len(path.runs), NEVER if parts.config.exact else LEAST))
    number = len(plan.guesses)
    depths = {parts.routes.number(run): run.depth for run in local.runs}
    members = set(batch)
    place = next(
        n
        for n, step in enumerate(plan.steps)
        if depths.get(step.run, -1) >= path.depth and not members.isdisjoint(step.batch)
    )
    steps = [Step(parts.routes.number(run), batch, [], run.nbytes, run.kv_bytes, guess=number) for run in path.runs]
    plan.steps[place:place] = steps
    if leaving:
        head = path.head
        plan.steps.append(Step(parts.routes.number(head), leaving, [], head.nbytes, 0, True, guess=number))


def _may(parts: Parts, s: int) -> bool:
    """Return whether the hidden states of a sequence may be guessed."""
    sampling = parts.rows.submission[s].sampling
    return not parts.rows.drafted[s] and sampling.grammar is None and sampling.pooling is None
