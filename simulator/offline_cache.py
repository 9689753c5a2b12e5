"""Prefix cache of a simulated engine: KV of the prompts' shared tokens, kept while there is capacity.

Segments of the batch's prefix tree are cached and evicted as a whole: the least recently used one that neither a segment
below it nor a running sequence needs (SGLang's radix cache). The KV that only one sequence has stays when it ends, as in an
engine, and takes memory until it is evicted. All sizes are in positions of KV.
"""

from __future__ import annotations

import heapq

from ..policies.offline.prefix_tree import PrefixTree


class PrefixCache:
    """A prefix cache.

    ``held`` counts positions that running sequences need, each once; ``idle`` counts the ones that are kept besides.
    """

    def __init__(self, tree: PrefixTree, memory: int) -> None:
        self._parent, self._depth = tree.parent.tolist(), tree.depth.tolist()
        self._rank = tree.rank.tolist()
        nodes = len(self._parent)
        self.memory = memory
        self.held = 0
        self.idle = 0
        self._present = bytearray(nodes)
        self._users = [0] * nodes  # running sequences that end in a node, and nodes below it that have users
        self._kept = [0] * nodes  # number of cached entries directly below a node
        self._used = [0] * nodes  # time at which its last user left
        # Heap of (last use, node, positions that an ended sequence left behind): evictable entries, and outdated ones.
        self._oldest: list[tuple[int, int, int]] = []
        self._now = 0
        self._present[tree.root], self._users[tree.root] = 1, 1

    def cached(self, request: int) -> int:
        """Return the tokens of a request's prompt that need not be computed."""
        node = self._parent[self._rank[request]]
        while not self._present[node]:
            node = self._parent[node]
        return self._depth[node]

    def begin(self, request: int) -> int:
        """Start a sequence; there must be space for its prompt. Return the tokens of it that were cached."""
        parent, depth = self._parent, self._depth
        leaf = self._rank[request]
        node, found = parent[leaf], -1
        self.held += depth[leaf] - depth[node]
        while not self._users[node]:
            size = depth[node] - depth[parent[node]]
            if self._present[node]:
                self.idle -= size
                found = depth[node] if found < 0 else found
            else:
                self._present[node] = 1
                self._kept[parent[node]] += 1
            self.held += size
            self._users[node] = 1
            node = parent[node]
        self._users[node] += 1
        return depth[node] if found < 0 else found

    def end(self, request: int, generated: int, *, keep: bool) -> None:
        """End a sequence with ``generated`` tokens. With ``keep``, its own KV stays until it is evicted."""
        parent, depth = self._parent, self._depth
        self._now += 1
        leaf = self._rank[request]
        node = parent[leaf]
        own = depth[leaf] - depth[node] + generated
        self.held -= own
        if keep and own:
            self.idle += own
            self._kept[node] += 1
            heapq.heappush(self._oldest, (self._now, leaf, own))
        self._users[node] -= 1
        while not self._users[node]:
            size = depth[node] - depth[parent[node]]
            self.held -= size
            self.idle += size
            self._used[node] = self._now
            self._offer(node)
            node = parent[node]
            self._users[node] -= 1

    def grow(self, positions: int) -> None:
        """Add ``positions`` to the positions that running sequences hold."""
        self.held += positions
        if self.held + self.idle > self.memory:
            self.trim()

    def trim(self) -> None:
        """Evict idle entries until everything fits."""
        while self.idle and self.held + self.idle > self.memory:
            used, node, tail = heapq.heappop(self._oldest)
            if tail:
                self.idle -= tail
            elif self._users[node] or self._kept[node] or not self._present[node] or self._used[node] != used:
                continue
            else:
                self._present[node] = 0
                self.idle -= self._depth[node] - self._depth[self._parent[node]]
            above = self._parent[node]
            self._kept[above] -= 1
            if not self._users[above]:
                self._offer(above)

    def _offer(self, node: int) -> None:
        """Make a node evictable, if nothing below it is cached."""
        if not self._kept[node]:
            heapq.heappush(self._oldest, (self._used[node], node, 0))
