"""Usage of each application at one gateway: its active requests, or the time since the last one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ...cluster.demand import Use


class ApplicationUsage:
    """The usage counters: active requests and the time of the last change, by application."""

    def __init__(self) -> None:
        self._active: dict[str, int] = {}
        self._last: dict[str, float] = {}

    def change(self, application: str, more: int, now: float) -> None:
        """Count a request that came (1) or ended (-1)."""
        self._active[application] = self._active.get(application, 0) + more
        self._last[application] = now

    def none(self, application: str) -> bool:
        """Return whether an application has no request."""
        return not self._active.get(application)

    def report(
        self, served: Iterable[str], now: float, waits: Mapping[str, int], offline: Collection[str] = ()
    ) -> dict[str, Use]:
        """Return the usage of the served applications. ``waits``, ``offline``: as in ``Use``.

        An application that is no longer served is forgotten as soon as it has no request.
        """
        kept = {name for name in self._last if self._active[name]}.union(served)
        for known in (self._active, self._last):
            for name in known.keys() - kept:
                del known[name]
        idle = {name: 0.0 if n else now - self._last[name] for name, n in self._active.items()}
        return {name: Use(n, idle[name], waits.get(name, 0), name in offline) for name, n in self._active.items()}

    def check(self, applications: Iterable[str]) -> None:
        """Raise AssertionError unless ``applications``, one for each active request, are what is counted."""
        counts = dict.fromkeys(self._active, 0)
        for name in applications:
            counts[name] += 1
        assert counts == self._active, "requests of an application are counted wrongly"
