"""Page pins: the records of KV pages kept for paused requests. ``pinning.py`` has the procedures."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from ..plain import Plain, from_plain, to_plain
from .columns import FOREVER

Age = tuple[int, float, str]  # as ``Columns.age``


@dataclass(slots=True)
class PagePin:
    """The hold of one request. Each of ``handles`` is referenced once for it."""

    gateway: str
    attempt: int  # the attempt that ended; a later one takes the pages
    account: str
    age: Age
    until: float
    handles: list[int]
    awaited: dict[str, int]  # slots by arena for pages that are to come

    def renew(self, attempt: int, until: float) -> None:
        """Update the attempt and the time limit; awaited pages are listed anew."""
        self.attempt = attempt
        self.until = until
        self.awaited = {}

    def add(self, handle: int) -> None:
        self.handles.append(handle)

    def remove(self, handles: Container[int]) -> None:
        self.handles = [handle for handle in self.handles if handle not in handles]

    def await_slots(self, arena: str, slots: int) -> None:
        self.awaited[arena] = self.awaited.get(arena, 0) + slots

    def came(self, arena: str, slots: int) -> None:
        """Note that an awaited page has arrived."""
        self.awaited[arena] = max(0, self.awaited.get(arena, 0) - slots)

    def cut(self, pieces: Mapping[int, list[int]]) -> None:
        self.handles = [piece for handle in self.handles for piece in pieces.get(handle, [handle])]


class PagePins:
    """The holds of one worker."""

    def __init__(self) -> None:
        self._holds: dict[str, PagePin] = {}  # by request

    def find(self, request: str) -> PagePin | None:
        return self._holds.get(request)

    def open(self, request: str, hold: PagePin) -> None:
        self._holds[request] = hold

    def close(self, request: str) -> PagePin | None:
        return self._holds.pop(request, None)

    def all(self) -> list[tuple[str, PagePin]]:
        return list(self._holds.items())

    def __len__(self) -> int:
        return len(self._holds)

    @property
    def next_deadline(self) -> float:
        """The time before which no hold expires."""
        return min([hold.until for hold in self._holds.values()], default=FOREVER)

    def youngest(self, than: Age, account: str = "") -> str | None:
        """Return the request with the youngest hold of this account or of any, if it is younger than ``than``; else None."""
        ages = [
            (hold.age, request)
            for request, hold in self._holds.items()
            if hold.age > than and (not account or hold.account == account)
        ]
        return max(ages)[1] if ages else None

    def awaited(self, before: Age) -> dict[str, int]:
        """Return the slots by arena awaited by requests older than ``before``."""
        found: dict[str, int] = {}
        for hold in self._holds.values():
            if hold.age < before:
                for arena, slots in hold.awaited.items():
                    found[arena] = found.get(arena, 0) + slots
        return found

    def cut(self, pieces: Mapping[int, list[int]]) -> None:
        """Replace handles that were split: handle -> its parts."""
        for hold in self._holds.values():
            hold.cut(pieces)

    def handles(self) -> Iterable[int]:
        """Return all held handles, each as often as it is held."""
        return [handle for hold in self._holds.values() for handle in hold.handles]

    def fork(self) -> PagePins:
        return PagePins.restore(self.snapshot())

    def snapshot(self) -> dict[str, Plain]:
        return {request: to_plain(hold) for request, hold in self._holds.items()}

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> PagePins:
        book = cls()
        book._holds = {request: from_plain(PagePin, hold) for request, hold in data.items()}
        return book

    def check(self) -> None:
        for request, hold in self._holds.items():
            assert hold.age[2] == request, f"the hold of {request} has the age of another"
            assert len({*hold.handles}) == len(hold.handles), f"a page is held twice for {request}"
            assert min(hold.awaited.values(), default=0) >= 0, f"{request} awaits less than nothing"
