"""The role of KV in the choice of a route, in gateways and in the simulator: three modes, of which two are ablations.

``owner``: a route that holds KV of the prompt and has room goes first; KV that can be copied there counts in part.
``recompute``: KV is not looked at, and is computed again where it is missing. ``least-busy``: the least queue decides.
Except in ``recompute`` the pages that another route of the chain has are copied, while the prompt is computed from its
front.

A prompt that is computed from its front while its KV comes from the back needs ``n / (r + b)`` seconds for n tokens, if
r are computed and b copied in a second (BlockLLM, 5.3). So the part ``b / (r + b)`` of what another worker holds is as
good as there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..model.chain import Route
from .dispatch import workers_of

OWNER = "owner"
RECOMPUTE = "recompute"
LEAST_BUSY = "least-busy"
OFF = "off"  # nothing is copied, and KV counts where variants may serve
MODES = (OFF, OWNER, RECOMPUTE, LEAST_BUSY)


def copied_part(compute: float, copy: float) -> float:
    """Return the part of missing KV that is copied until both ends meet. compute, copy: seconds of a token; 0: unknown."""
    return compute / (compute + copy) if compute and copy else 0.0


def weighed(mode: str, cached: Mapping[str, int], part: float = 0.0) -> Mapping[str, int]:
    """Return the leading tokens with KV, by route, that the choice of a route goes by. part: as in ``copied_part``."""
    if mode not in (OFF, OWNER):
        return {}
    most = max(cached.values(), default=0)
    return {route: own + int(part * (most - own)) for route, own in cached.items()}


def copied_from(mode: str, taken: Route, routes: Iterable[Route], cached: Mapping[str, int]) -> Route | None:
    """Return the route whose KV is copied to the taken one; None: no other worker has more of it.

    routes: in force. cached: route id -> leading tokens whose KV is there.
    """
    own, here = cached.get(taken.id, 0), workers_of(taken)
    others = [one for one in routes if one.application == taken.application and workers_of(one) != here]
    richest = max(others, key=lambda one: (cached.get(one.id, 0), one.id), default=None)
    if mode in (OFF, RECOMPUTE) or richest is None or cached.get(richest.id, 0) <= own:
        return None
    return richest
