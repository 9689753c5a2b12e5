"""Dispatch policies by name (round robin, least requests, by forecast, ...): the choice among several candidates.

Each policy is a *load* of a candidate, and the least load wins; ties are broken by a random number from the caller.
INFaaS++ and Llumnix- exist in two forms: as Da and Kalyvianaki's paper on predictive scheduling (Block, later Astrolabe)
defines them, and as its code ranks, which is what its figures were measured with. They differ: ``used / running`` falls as
more sequences run, ``-free / running`` rises. Never looks at a clock, draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ..requests.standing import Key, Standing
from .candidate import Candidate, Forecast

Load = tuple[float, ...]  # compared number by number
AIM = 1 / 6  # fraction of the first-token target that ``ours`` aims at
NONE: Mapping[str, Standing] = MappingProxyType({})
TRUSTED = 0.5  # standard deviation of log(length / estimate) up to which ``ours`` trusts forecasts


@dataclass(frozen=True, slots=True)
class Targets:
    """The latency targets of a request, in seconds from its arrival at a worker, for ``predicted-slo`` and ``ours``."""

    first_token: float = 3.0
    last_token: float = 30.0


@dataclass(frozen=True, slots=True)
class DispatchPolicy:
    """A policy.

    load: the value to minimize. fallback: the policy used if there is no forecast at all; empty for one that needs none.
    trusted: the fallback is also used if the mean spread of length estimates, over candidates that know theirs, is larger,
    since such forecasts are worse than counted loads. delays: whether forecasts must include the delay of others, which
    takes twice as long. looks: whether the load comes from the worker; if not, the dispatcher knows it all by itself.
    """

    load: Callable[[Candidate, Targets], Load]
    fallback: str = ""
    trusted: float = math.inf
    delays: bool = False
    looks: bool = True


@dataclass(frozen=True, slots=True)
class DispatchChoice:
    """The choice.

    loads: of each candidate by the policy that chose; None if a needed forecast is missing. reason: why the fallback was
    used, "no_forecast" (no candidate had one) or "poor_estimates" (of lengths); else empty.
    """

    index: int
    loads: list[Load | None]
    reason: str = ""


def _equal(candidate: Candidate, targets: Targets) -> Load:
    return ()


def _min_qpm(candidate: Candidate, targets: Targets) -> Load:
    return (candidate.sent_last_minute,)


def _infaas(candidate: Candidate, targets: Targets) -> Load:
    return (candidate.used_blocks / max(candidate.running, 1),)


def _infaas_code(candidate: Candidate, targets: Targets) -> Load:
    return (-candidate.free_blocks / max(candidate.running, 1),)


def _llumnix(candidate: Candidate, targets: Targets) -> Load:
    return ((candidate.used_blocks + candidate.waiting_blocks) / max(candidate.running, 1),)


def _llumnix_code(candidate: Candidate, targets: Targets) -> Load:
    return (-(candidate.free_blocks - candidate.waiting_blocks) / max(candidate.running, 1),)


def _prefix_aware(candidate: Candidate, targets: Targets) -> Load:
    """Return blocks to decode over plus blocks to prefill, as NVIDIA Dynamo's KV router weighs them (both with weight 1).

    The request's own need is the same everywhere, except for cached blocks.
    """
    return (candidate.used_blocks + candidate.waiting_blocks - candidate.cached_blocks,)


def _known(candidate: Candidate) -> Forecast:
    assert candidate.forecast is not None, "only candidates with a forecast are compared by it"
    return candidate.forecast


def _latency(candidate: Candidate, targets: Targets) -> Load:
    return (_known(candidate).last_token,)


def _first_token(candidate: Candidate, targets: Targets) -> Load:
    return (_known(candidate).first_token,)


def _total_delay(candidate: Candidate, targets: Targets) -> Load:
    """Return the cost for all requests: its own time, and what the others lose by it."""
    found = _known(candidate)
    return (found.last_token + found.delayed,)


def _slo(candidate: Candidate, targets: Targets) -> Load:
    """Return the number of missed targets, then by how much, then, if none is missed, what the others lose."""
    found = _known(candidate)
    late = (max(0.0, found.first_token - targets.first_token), max(0.0, found.last_token - targets.last_token))
    return (sum(seconds > 0 for seconds in late), sum(late), found.last_token + found.delayed)


def _ours(candidate: Candidate, targets: Targets) -> Load:
    """Return the excess of the first token over the aim, then the last token, then the least load.

    The load decides if the last token is endless everywhere. Aiming at a fraction of the target leaves room for later
    requests, which no forecast knows of.
    """
    found = _known(candidate)
    late = max(0.0, found.first_token - AIM * targets.first_token)
    return (late, found.last_token, *_llumnix_code(candidate, targets))


ROUND_ROBIN = "round-robin"
POLICIES = {
    "random": DispatchPolicy(_equal, looks=False),
    ROUND_ROBIN: DispatchPolicy(_equal, looks=False),  # the request's number decides
    "min-qpm": DispatchPolicy(_min_qpm, looks=False),
    "infaas": DispatchPolicy(_infaas),
    "infaas-code": DispatchPolicy(_infaas_code),
    "llumnix-minus": DispatchPolicy(_llumnix),
    "llumnix-minus-code": DispatchPolicy(_llumnix_code),
    "prefix-aware": DispatchPolicy(_prefix_aware),
    "predicted-latency": DispatchPolicy(_latency, "random"),  # the paper's Block, and Po-k if candidates are drawn
    "predicted-ttft": DispatchPolicy(_first_token, "random"),
    "predicted-delay": DispatchPolicy(_total_delay, "random", delays=True),
    "predicted-slo": DispatchPolicy(_slo, "random", delays=True),
    "ours": DispatchPolicy(_ours, "llumnix-minus-code", TRUSTED),
}


def choose(
    policy: str,
    candidates: Sequence[Candidate],
    draw: float,
    *,
    number: int = 0,
    targets: Targets | None = None,
    standings: Mapping[str, Standing] = NONE,
) -> DispatchChoice:
    """Return the choice for a request.

    An idle candidate without a needed forecast goes first: nothing is waited for there, and what its sweeps cost is known
    only once it has run. Any other one is taken only if none has a forecast, or if forecasts are not trusted.

    Args:
        policy: a name of ``POLICIES``.
        candidates: at least one.
        draw: in [0, 1), decides between equals.
        number: of the request among those of its dispatcher, for ``round-robin``.
        targets: for ``predicted-slo`` and ``ours``; None: the defaults of ``Targets``.
        standings: of all routes of a request that variants may serve: they go before loads.
    """
    chosen, targets = POLICIES[policy], targets or Targets()
    if policy == ROUND_ROBIN:
        return DispatchChoice(number % len(candidates), [()] * len(candidates))
    spreads = [candidate.forecast.spread for candidate in candidates if candidate.forecast] if chosen.fallback else [0.0]
    if not spreads:
        index = choose(chosen.fallback, candidates, draw, standings=standings).index
        return DispatchChoice(index, [None] * len(candidates), "no_forecast")
    known = [spread for spread in spreads if spread]
    if known and sum(known) / len(known) > chosen.trusted:
        return replace(choose(chosen.fallback, candidates, draw, standings=standings), reason="poor_estimates")
    loads = [None if chosen.fallback and c.forecast is None else chosen.load(c, targets) for c in candidates]
    keys: list[Any] = loads
    if chosen.fallback:
        keys = [() if load is None and c.idle else load for c, load in zip(candidates, loads, strict=True)]
    if standings:
        keys = [
            None if key is None else _key(c, key, standings[c.route], targets)
            for c, key in zip(candidates, keys, strict=True)
        ]
    least = min(key for key in keys if key is not None)
    equals = [index for index, key in enumerate(keys) if key == least]
    return DispatchChoice(equals[int(draw * len(equals))], loads)


def _key(candidate: Candidate, load: Load, standing: Standing, targets: Targets) -> Key:
    """Return what a candidate is compared by.

    A forecast says better than the gateway's estimate whether a route breaks the target.
    """
    forecast = candidate.forecast
    if forecast is not None:
        standing = replace(standing, late=forecast.first_token > targets.first_token)
    return standing.key(load)


def rank(loads: Sequence[Load | None], index: int) -> int:
    """Return the rank of a candidate by load, from 1; equals share the first of their ranks. 0: its load is not known."""
    own = loads[index]
    return 0 if own is None else 1 + sum(load is not None and load < own for load in loads)


def drawn(count: int, draws: Sequence[float]) -> list[int]:
    """Return ``len(draws)`` of ``count`` places (power of k), each set equally likely (Fisher and Yates).

    All are returned if there are no more. ``draws``: in [0, 1).
    """
    if len(draws) >= count:
        return list(range(count))
    moved: dict[int, int] = {}  # place -> what is there, if not itself
    found = []
    for at, draw in enumerate(draws):
        other = at + int(draw * (count - at))
        found.append(moved.get(other, other))
        moved[other] = moved.get(at, at)
    return sorted(found)
