"""Speculation on hidden states: the chain whose surrogate guesses them, and its place beside the route that it guesses for.

A guess is made at the first border of a pipeline. The guessing chain has the home's components up to the slow block at its
end, a surrogate of that block, and the model's head: it lies whole on the home, shares all but the surrogate with it, and no
request ever runs on it. The home's route passes the surrogate beside the block (``sweep/guesses.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..model.chain import Chain, Route
from ..model.runs import GuessPath, LocalRoute, Run, Span

SUFFIX = "~guess"


def guessing_chain(application: str) -> str:
    """Return the id of the chain that guesses for an application. No client can name it."""
    return f"{application}{SUFFIX}"


def is_guessing(chain: Chain) -> bool:
    """Return whether a chain only guesses for another one."""
    return guesses_for(chain.served_as, chain.drafts_for)


def guesses_for(id: str, drafts_for: str) -> bool:
    """Return whether a chain of this id, which is no model for clients, guesses for the application that it belongs to."""
    return bool(drafts_for) and id.endswith(SUFFIX)


def on_homes(routes: Sequence[Route], owners: Mapping[str, str]) -> list[Route]:
    """Return routes without those of guessing chains that do not begin where the routes that they guess for begin.

    ``owners``: guessing chain -> the application that it guesses for.
    """
    homes = {(route.application, route.home) for route in routes}
    return [one for one in routes if one.application not in owners or (owners[one.application], one.home) in homes]


def guessing_routes(chains: Iterable[Chain], here: Mapping[str, LocalRoute]) -> dict[str, LocalRoute]:
    """Return the routes among the ones in force ``here`` at whose ends guesses are made, with the surrogates' parts."""
    known = {chain.application: chain for chain in chains}
    surrogates = {
        known[local.route.application].drafts_for: local
        for local in here.values()
        if is_guessing(known[local.route.application]) and not local.hop and local.next_worker is None
    }
    if not surrogates:
        return {}
    found: dict[str, LocalRoute] = {}
    for name, local in here.items():
        beside = surrogates.get(local.route.application)
        if beside is None or local.hop or local.next_worker is None or local.deltas:
            continue
        own, other = known[local.route.application], known[beside.route.application]
        if (path := _path(own, other, local, beside)) is not None:
            found[name] = replace(local, guess=path, spans=(*local.spans, *path.spans))
    return found


def _path(own: Chain, other: Chain, local: LocalRoute, beside: LocalRoute) -> GuessPath | None:
    """Return the part of a guessing chain beside a route; None: it does not fit the route's border."""
    border, last = local.route.hops[0].last, len(other.components) - 1
    ids = [component.id for component in own.components]
    theirs = [component.id for component in other.components]
    depth = next((n for n, (one, two) in enumerate(zip(ids, theirs, strict=False)) if one != two), 0)
    if not 0 < depth < min(border, last) or theirs[last] != ids[-1] or local.width != other.components[-1].width_in:
        return None
    behind = sum([c.kv is not None for c in own.components])  # KV layers of the chain: the surrogate's follow
    below = sum([c.kv is not None for c in own.components[:depth]])
    runs = [run for run in beside.runs if not run.head and run.depth >= depth]
    if not runs or runs[0].depth != depth:
        return None
    spans = [_moved(span, span.layer - below + behind) for span in beside.spans if span.layer >= below]
    moved = [Run(run.depth, run.components, run.kv_layer - below + behind, False, run.nbytes, run.kv_bytes) for run in runs]
    return GuessPath(depth, tuple(moved), beside.runs[-1], tuple(spans))


def _moved(span: Span, layer: int) -> Span:
    return replace(span, layer=layer)
