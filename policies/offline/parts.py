"""One batch over several workers: the list of units cut into parts that are all as dense as the whole.

After BlendServe (section on data parallelism): a part is a piece from the left end and one from the right end of what is
left, of equal compute and equal memory time. As units are sorted by density, such a pair exists, but for the size of a
request; only prefixes across a cut are computed twice, so that waste grows with the number of parts alone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise

from .order import Unit, Weigher


def cut(units: Sequence[Unit], count: int, weigher: Weigher) -> list[list[Unit]]:
    """``count`` lists of units, each in the order of the whole: every request in one of them, units cut where they must be.
    The first has the ends of the list, the last its middle. Raises ValueError where ``count`` is below 1."""
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
    """Where the left piece ends and the right one begins, of one of so many equal parts of what lies between."""
    if parts == 1:
        return end, end
    share = (comp[end] - comp[begin]) / parts, (mem[end] - mem[begin]) / parts

    def right(first: int) -> int:
        """Where the right piece begins that completes the compute of the left one."""
        return _nearest(comp, comp[end] - max(share[0] - (comp[first] - comp[begin]), 0.0), first, end)

    low, high = begin, _nearest(comp, comp[begin] + share[0], begin, end)
    while low < high:  # the larger the dense left piece, the less memory time has a part of this compute
        middle = (low + high) // 2
        if mem[middle] - mem[begin] + mem[end] - mem[right(middle)] > share[1]:
            low = middle + 1
        else:
            high = middle
    return low, right(low)


def _nearest(sums: array[float], value: float, begin: int, end: int) -> int:
    """The index whose sum is nearest to a value, between two."""
    at = min(bisect_left(sums, value, begin, end + 1), end)
    return at - 1 if at > begin and value - sums[at - 1] < sums[at] - value else at


def _pieces(borders: Sequence[int], begin: int, end: int) -> Iterable[tuple[int, int]]:
    """A stretch of the sequence, cut where units border."""
    unit = bisect_left(borders, begin)
    inner = borders[unit + (borders[unit] == begin) : bisect_left(borders, end)] if begin < end else []
    edges = [begin, *inner, end]
    return pairwise(edges)
