"""The cutting of one batch for several workers: the list of units is cut into parts that are all as dense as the whole.

After BlendServe (section on data parallelism): a part is a piece from the left end and one from the right end of what is
left, of equal compute and equal memory time. As units are sorted by density, such a pair exists, up to the size of a
request. Only prefixes across a cut are computed twice, so that waste grows with the number of parts only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise

from .order import Unit, Weigher


def cut(units: Sequence[Unit], count: int, weigher: Weigher) -> list[list[Unit]]:
    """Return ``count`` lists of units in the order of the whole; units are cut where needed.

    Every request is in one of them. The first has the ends of the list, the last its middle. Raises ValueError if
    ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"a batch cannot be cut into {count} parts; give 1 or more")
    sequence = array("i", chain.from_iterable(unit.requests for unit in units))
    borders = list(accumulate((len(unit.requests) for unit in units), initial=0))
    comp = array("d", [0.0])
    mem = array("d", [0.0])
    before = -1
    for request in sequence:
        comp.append(comp[-1] + weigher.comp(request, before))
        mem.append(mem[-1] + weigher.mem(request))
        before = request
    begin, end = 0, len(sequence)
    parts = []
    for left in range(count, 0, -1):
        first, last = _ends(comp, mem, begin, end, left)
        pieces = [*_pieces(borders, begin, first), *_pieces(borders, last, end)]
        parts.append(weigher.units(sequence[one:other] for one, other in pieces))
        begin, end = first, last
    return parts


def _ends(comp: array[float], mem: array[float], begin: int, end: int, parts: int) -> tuple[int, int]:
    """Return the end of the left piece and the start of the right one, for one of ``parts`` equal parts of the range."""
    if parts == 1:
        return end, end
    share = (comp[end] - comp[begin]) / parts, (mem[end] - mem[begin]) / parts

    def right(first: int) -> int:
        """Return the start of the right piece that completes the compute of the left one."""
        return _nearest(comp, comp[end] - max(share[0] - (comp[first] - comp[begin]), 0.0), first, end)

    low, high = begin, _nearest(comp, comp[begin] + share[0], begin, end)
    while low < high:  # the larger the dense left piece, the less memory time is in a part of this compute
        middle = (low + high) // 2
        if mem[middle] - mem[begin] + mem[end] - mem[right(middle)] > share[1]:
            low = middle + 1
        else:
            high = middle
    return low, right(low)


def _nearest(sums: array[float], value: float, begin: int, end: int) -> int:
    """Return the index between two whose sum is nearest to a value."""
    at = min(bisect_left(sums, value, begin, end + 1), end)
    return at - 1 if at > begin and value - sums[at - 1] < sums[at] - value else at


def _pieces(borders: Sequence[int], begin: int, end: int) -> Iterable[tuple[int, int]]:
    """Return a range of the sequence, cut at unit borders."""
    unit = bisect_left(borders, begin)
    inner = borders[unit + (borders[unit] == begin) : bisect_left(borders, end)] if begin < end else []
    edges = [begin, *inner, end]
    return pairwise(edges)
