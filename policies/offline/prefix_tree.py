"""A radix tree over all prompts of a batch: which requests share how many tokens.

Prompts are sorted as bytes, and the tree follows from the longest common prefixes of neighbours, as a suffix tree follows from a
suffix array (Kasai et al., CPM 2001; Abouelhoda et al., J. Discrete Algorithms 2004): no walk over characters, no object for each
node. The prompts themselves are not kept.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence

WIDTH = 4  # bytes of a token: big endian, so that bytes are in the order of tokens
CHUNK = 64  # bytes that neighbours are first compared by; four times as many each time that they are equal


def packed(tokens: Iterable[int]) -> bytes:
    """Token ids as the tree takes them. Raises OverflowError where one is negative or has more than 32 bits."""
    column = array("I", tokens)
    if sys.byteorder == "little":
        column.byteswap()
    return column.tobytes()


def common_prefix(one: bytes, other: bytes) -> int:
    """Tokens with which both begin."""
    most = min(len(one), len(other))
    at, size = 0, CHUNK
    while at < most:
        left, right = one[at : at + size], other[at : at + size]
        if left != right:
            width = min(len(left), len(right))
            differing = int.from_bytes(left[:width], "big") ^ int.from_bytes(right[:width], "big")
            equal = width - (differing.bit_length() + 7) // 8
            return min((at + equal) // WIDTH, most // WIDTH)
        at += size
        size *= 4
    return most // WIDTH


class PrefixTree:
    """Radix tree over prompts, in columns.

    Requests are numbers, their places in ``prompts``; *rank* is a request's place in the order of the prompts' bytes, which is a
    depth-first order of the tree. Nodes are numbers: node i < ``count`` is the leaf of the request with rank i, inner nodes
    follow, each after all below it; the last is the root. A request that is a prefix of another has an empty leaf.

    ``order`` (by rank): the request. ``rank``, ``length`` (by request): its rank; tokens of its prompt.
    ``parent``, ``depth``, ``begin``, ``end`` (by node): the root is its own parent; tokens from the root on, its own
    included; ranks of the requests below. ``tokens``: of all prompts; ``distinct``: of all nodes.
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
        """Raises ValueError where a prompt's length is no multiple of 4. Time: that of sorting; memory: some 100 bytes for each
        request besides the prompts."""
        raise NotImplementedError

    @property
    def root(self) -> int:
        """The node above all."""
        return len(self.parent) - 1

    def children(self, node: int) -> array[int]:
        """Nodes directly below, in the order of their tokens; of a leaf none."""
        raise NotImplementedError

    def shared(self, one: int, other: int) -> int:
        """Tokens with which the prompts of two requests begin, in constant time."""
        raise NotImplementedError

    def computed(self, requests: Iterable[int]) -> int:
        """Prompt tokens that are computed where requests run in this order and each shares what it can with the one before it:
        never less than the distinct tokens of these requests, and just these in a depth-first order."""
        raise NotImplementedError
