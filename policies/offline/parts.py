"""One batch over several workers: the list of units cut into parts that are all as dense as the whole.

After BlendServe (section on data parallelism): a part is a piece from the left end and one from the right end of what is left, of
equal compute and equal memory time. As units are sorted by density, such a pair always exists, but for the size of a request;
only prefixes across a cut are computed twice, so that waste grows with the number of parts alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from blockwright.policies.offline.order import Unit, Weigher


def cut(units: Sequence[Unit], count: int, weigher: Weigher) -> list[list[Unit]]:
    """``count`` lists of units, each sorted by density as the whole is: every request in one of them, units cut where they must
    be. Raises ValueError where ``count`` is below 1."""
    raise NotImplementedError


def remaining(units: Sequence[Unit], done: Collection[int], weigher: Weigher) -> list[Unit]:
    """The units without the requests that are done (a set or the like), in the same order."""
    raise NotImplementedError


def joined(lists: Sequence[Sequence[Unit]]) -> list[Unit]:
    """One list of several that are sorted by density: a part that takes over what another one left."""
    raise NotImplementedError
