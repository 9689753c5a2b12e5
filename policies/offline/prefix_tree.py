"""A radix tree over all prompts of a batch: the tokens that requests share.

Prompts are sorted as bytes, and the tree follows from the longest common prefixes of neighbors, as a suffix tree follows
from a suffix array (Abouelhoda, Kurtz and Ohlebusch, J. Discrete Algorithms 2004): no walk over characters, no object for
each node. The prompts themselves are not kept.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import pairwise

WIDTH = 4  # bytes of a token: big endian, so that bytes are in the order of tokens
RUN = 2000  # prompts sorted at a time, while no other thread runs
CHUNK = 64  # bytes of the first comparison of neighbors; four times as many after each equal one


def packed(tokens: Iterable[int]) -> bytes:
    """Return token ids in the tree's form. Raises OverflowError if one is negative or has more than 32 bits."""
    column = array("I", tokens)
    if sys.byteorder == "little":
        column.byteswap()
    return column.tobytes()


def common_prefix(one: bytes, other: bytes) -> int:
    """Return the number of tokens with which both packed prompts begin."""
    shorter = min(len(one), len(other))
    at = 0
    size = CHUNK
    while at < shorter:
        end = min(at + size, shorter)
        left, right = one[at:end], other[at:end]
        if left != right:
            differing = int.from_bytes(left, "big") ^ int.from_bytes(right, "big")
            return (end - (differing.bit_length() + 7) // 8) // WIDTH
        at, size = end, 4 * size
    return shorter // WIDTH


class PrefixTree:
    """A radix tree over packed prompts, in columns.

    Requests are numbers, their places in ``prompts``; *rank* is a request's place in the order of the prompts' bytes,
    which is a depth-first order of the tree. Nodes are numbers: node i < ``count`` is the leaf of the request with rank i;
    inner nodes follow, each after all that are below it; the last is the root. A request that is a prefix of another has
    an empty leaf.

    order (by rank): the request. rank, length (by request): its rank; tokens of its prompt. parent, depth, begin, end (by
    node): the root is its own parent; tokens from the root on, with its own; ranks of the requests below. tokens: of all
    prompts. distinct: of all nodes.
    """

    __slots__ = (
        "_below",
        "_first",
        "_least",
        "begin",
        "count",
        "depth",
        "distinct",
        "end",
        "length",
        "order",
        "parent",
        "rank",
        "tokens",
    )

    def __init__(self, prompts: Sequence[bytes]) -> None:
        """Build the tree. Raises ValueError if the bytes of a prompt are no multiple of 4.

        It takes as long as sorting, and some 200 bytes of memory for each request.
        """
        for request, prompt in enumerate(prompts):
            if len(prompt) % WIDTH:
                raise ValueError(f"prompt {request} has {len(prompt)} bytes; give {WIDTH} for each token, big endian")
        self.count = count = len(prompts)
        runs = (sorted(range(at, min(at + RUN, count)), key=prompts.__getitem__) for at in range(0, count, RUN))
        self.order = array("i", merge(*runs, key=prompts.__getitem__))
        self.rank = array("i", bytes(self.order.itemsize * count))
        for rank, request in enumerate(self.order):
            self.rank[request] = rank
        self.length = array("i", [len(prompt) // WIDTH for prompt in prompts])
        near = array("i", [0] * bool(count))  # by rank: tokens shared with the rank before
        near.extend(common_prefix(prompts[one], prompts[other]) for one, other in pairwise(self.order))
        self.tokens = sum(self.length)
        self.distinct = self.tokens - sum(near)
        self._least = [near]  # [k][i]: the least of near[i : i + 2**k]
        while (reach := 1 << len(self._least)) <= count:
            below = self._least[-1]
            self._least.append(array("i", map(min, below, below[reach // 2 :])))
        self._grow(near)

    def _grow(self, near: array[int]) -> None:
        """Make the nodes: an inner one is a longest run of ranks that share more than the ranks beside it do."""
        count = self.count
        self.depth = array("i", [self.length[request] for request in self.order])
        self.begin, self.end = array("i", range(count)), array("i", range(1, count + 1))
        self.parent = array("i", bytes(self.begin.itemsize * count))
        self._first, self._below = array("i", [0]), array("i")
        depths = [0]
        begins = [0]
        belows = [array("i")]  # the open nodes, from the root on
        for rank in range(count):
            after = near[rank + 1] if rank + 1 < count else 0
            if after > depths[-1]:
                depths.append(after)
                begins.append(rank)
                belows.append(array("i"))
            belows[-1].append(rank)
            while depths[-1] > after:
                node = self._close(depths.pop(), begins.pop(), rank + 1, belows.pop())
                if depths[-1] < after:
                    depths.append(after)
                    begins.append(self.begin[node])
                    belows.append(array("i"))
                belows[-1].append(node)
        root = self._close(0, 0, count, belows[0])
        self.parent[root] = root

    def _close(self, depth: int, begin: int, end: int, below: array[int]) -> int:
        """Add an inner node whose children are complete; return its number."""
        node = len(self.parent)
        self.depth.append(depth)
        self.begin.append(begin)
        self.end.append(end)
        self.parent.append(0)
        self._below.extend(below)
        self._first.append(len(self._below))
        for child in below:
            self.parent[child] = node
        return node

    @property
    def root(self) -> int:
        """The node above all."""
        return len(self.parent) - 1

    @property
    def sharing(self) -> float:
        """The fraction of prompt tokens that need not be computed at best."""
        return 1.0 - self.distinct / self.tokens if self.tokens else 0.0

    def children(self, node: int) -> array[int]:
        """Return the nodes directly below, in the order of their tokens; none for a leaf."""
        if node < self.count:
            return array("i")
        return self._below[self._first[node - self.count] : self._first[node - self.count + 1]]

    def shared(self, one: int, other: int) -> int:
        """Return the number of tokens with which the prompts of two requests begin, in constant time."""
        if one == other:
            return self.length[one]
        left, right = self.rank[one], self.rank[other]
        if left > right:
            left, right = right, left
        level = (right - left).bit_length() - 1
        least = self._least[level]
        return min(least[left + 1], least[right + 1 - (1 << level)])

    def computed(self, requests: Iterable[int]) -> int:
        """Return the prompt tokens computed if requests run in this order and each shares what it can with the one before.

        It is never less than the distinct tokens of these requests, and equals them in a depth-first order.
        """
        total, before = 0, -1
        for request in requests:
            total += self.length[request] - (self.shared(before, request) if before >= 0 else 0)
            before = request
        return total
