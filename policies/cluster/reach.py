"""The meaning of a node that is out of reach: for a head that misses a worker, and for a gateway that misses one.

A head that misses a worker alone asks gateways whether they reach it. If one does, the worker serves on without this head,
and nothing changed there is needed at once: the head waits as long as the worker goes on without a head. If none does, or
there is none to ask, the worker is given up as any other member.

A gateway that outlives its head takes a broken connection to a worker for the end of that life, since there may be no head
to say what it means. Its requests begin anew elsewhere; if the worker lives, a head tells of it again. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

ASKED = 2  # gateways


def whom_to_ask(elsewhere: Iterable[str], here: Iterable[str]) -> list[str]:
    """Return the gateways that a head asks about a worker that it misses.

    elsewhere: gateways on other machines, which come first: they have ways of their own. here: those on the head's.
    """
    return [*sorted(elsewhere), *sorted(here)][:ASKED]


@dataclass(frozen=True, slots=True)
class Sight:
    """A gateway's view of a worker. life: the one that it knows; 0: none. silent: seconds since its last word."""

    life: int
    silent: float
    lost: bool


def who_reaches(sights: Mapping[str, Sight | None], life: int, waited: float) -> tuple[str, ...]:
    """Return the gateways that have heard that life of a worker within the seconds for which the head has ``waited``.

    sights: by gateway; None: it did not answer.
    """
    heard = {name: sight for name, sight in sights.items() if sight is not None and not sight.lost and sight.life == life}
    return tuple(sorted(name for name, sight in heard.items() if sight.silent < waited))


def doubt(worker: str, gateways: Sequence[str], left: float) -> str:
    """Return the sentence about a worker that only the head misses. left: seconds until it is given up even so."""
    named, verb = " and ".join(gateways), "reaches" if len(gateways) == 1 else "reach"
    return (
        f"worker {worker} is out of reach of the head, but {named} {verb} it, so it serves on; "
        f"it is declared down in {max(left, 0.0):.0f} s unless it comes back"
    )


def both_live(one: str, other: str) -> bool:
    """Return whether two members serve on that do not reach each other while the head reaches both, by their roles.

    Both do, with others, but for two gateways, which share limits and the keys of retries. Roles: "worker", "gateway", or
    others, of which one ends.
    """
    return {one, other} in ({"worker"}, {"worker", "gateway"})


class WorkerLosses:
    """The lives of workers to which a gateway has had a connection."""

    def __init__(self) -> None:
        self._met: dict[str, int] = {}  # worker -> its life

    def look(self, serving: Collection[str], known: Mapping[str, int], reached: Mapping[str, int]) -> list[tuple[str, int]]:
        """Return the workers that are lost now, each with its life.

        serving: workers that take requests. known: the lives of workers, as the head has said. reached: the lives of
        nodes to which there is a connection. A worker that was never reached in its life is not lost: it is not met yet.
        """
        lost = [(worker, life) for worker, life in sorted(self._met.items()) if worker in serving]
        lost = [(worker, life) for worker, life in lost if reached.get(worker) != life]
        for worker, _ in lost:
            del self._met[worker]
        self._met |= {name: life for name, life in reached.items() if known.get(name) == life}
        return lost
