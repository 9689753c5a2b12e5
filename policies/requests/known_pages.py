"""The pages of KV that a gateway knows workers to have, because it has sent them requests with these tokens.

A hint for dispatch and no more: a worker may have evicted a page, and pages that other gateways caused are not known. So a
worker's least recently used pages are forgotten beyond what it holds. A page is known by its lineage, so that chains which
share all layers with KV share pages, as they do on workers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from ..model.chain import Chain
from ..model.lineage import lineages

MOST = 1 << 14  # pages of a worker that are known, if it has not said how many it holds

Page = tuple[bytes, bytes]  # lineage, hash of its tokens and all before them


class KnownPages:
    """The known pages by worker, the least recently used first (see the module)."""

    def __init__(self) -> None:
        self._pages: dict[str, OrderedDict[Page, None]] = {}
        self._lineages: dict[str, tuple[Chain, bytes]] = {}  # by application; the chain for which it holds

    def lineage(self, chain: Chain) -> bytes:
        """Return the lineage of a chain's last component with KV."""
        known = self._lineages.get(chain.application)
        if known is None or known[0] is not chain:
            parts = chain.components
            last = max((i for i, part in enumerate(parts) if part.kv is not None), default=len(parts) - 1)
            known = self._lineages[chain.application] = chain, lineages(parts[: last + 1], "")[-1]
        return known[1]

    def note(self, worker: str, lineage: bytes, hashes: Sequence[bytes], most: int = MOST) -> None:
        """Note the pages of a request that is sent to a worker, or has ended there. most: pages that the worker holds."""
        pages = self._pages.setdefault(worker, OrderedDict())
        for one in reversed(hashes):  # a page is of no use without the ones before it
            pages[lineage, one] = None
            pages.move_to_end((lineage, one))
        while len(pages) > most:
            pages.popitem(last=False)

    def leading(self, worker: str, lineage: bytes, hashes: Sequence[bytes]) -> int:
        """Return the number of leading pages that a worker is known to have."""
        pages: Mapping[Page, None] = self._pages.get(worker, {})
        return next((i for i, one in enumerate(hashes) if (lineage, one) not in pages), len(hashes))

    def lose(self, worker: str) -> None:
        """Forget a worker that has ended."""
        self._pages.pop(worker, None)

    def keep(self, applications: Iterable[str]) -> None:
        """Forget the lineages of all other applications."""
        for name in self._lineages.keys() - set(applications):
            del self._lineages[name]
