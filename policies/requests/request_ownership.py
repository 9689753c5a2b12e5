"""Request ownership: the gateway that a request belongs to, the keys that may see or cancel it, and its names.

A request id names its gateway, so that it can be asked about there. A request with several choices is several sequences,
each with an id of its own. A request exists for the key that sent it and for admin keys; for any other key it does not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

NAMES, NAME_LENGTH = 4096, 128  # number of client-chosen ids that are kept, and their longest length


def request_id(prefix: str, gateway: str, token: str) -> str:
    """Return the id of a request. ``token``: unique to it."""
    return f"{prefix}-{gateway}-{token}"


def sequence_id(request: str, choice: int) -> str:
    """Return the id of a choice. The first choice has the request's own id."""
    return f"{request}/{choice}" if choice else request


def further_id(first: str, token: str) -> str:
    """Return the id of a request that goes on with the answer of the request ``first``. ``token``: unique to it."""
    return f"{first}.{token}"


def first_id(sequence: str) -> str:
    """Return the id of the request with which the answer of a sequence began."""
    return sequence.partition("/")[0].partition(".")[0]


def request_of(sequence: str) -> str:
    """Return the id of the request that a sequence belongs to."""
    return sequence.partition("/")[0]


def choice_of(sequence: str) -> int:
    """Return the number of the choice that a sequence is."""
    return int(sequence.partition("/")[2] or 0)


def sequences_of(request: str, known: Iterable[str]) -> list[str]:
    """Return the ``known`` sequences of the request."""
    return [id for id in known if id == request or id.startswith(f"{request}/")]


@dataclass(frozen=True, slots=True)
class Viewer:
    """A key that asks about requests. key: its name, "" if no keys are needed. everything: whether it is an admin key."""

    key: str = ""
    everything: bool = False

    def may_see(self, owner: str) -> bool:
        """Return whether this key may ask about, and cancel, a request of the key ``owner``."""
        return self.everything or self.key == owner


class ChosenNames:
    """The ids that clients chose (``x-request-id``), by which a request can be found before its answer begins."""

    def __init__(self) -> None:
        self._ids: OrderedDict[tuple[str, str], str] = OrderedDict()  # (key, chosen id) -> our id, the oldest first

    def record(self, key: str, chosen: str, id: str) -> None:
        """Record a chosen id; it stands for the newest request.

        Ids of more than ``NAME_LENGTH`` characters are not kept.
        """
        if len(chosen) > NAME_LENGTH:
            return
        self._ids.pop((key, chosen), None)
        self._ids[key, chosen] = id
        if len(self._ids) > NAMES:
            self._ids.popitem(last=False)

    def resolve(self, viewer: Viewer, name: str) -> str:
        """Return our id, or ``name`` itself if no request that the viewer may see has it.

        A viewer's own requests come first, then the newest of the others.
        """
        if (viewer.key, name) in self._ids or not viewer.everything:
            return self._ids.get((viewer.key, name), name)
        return next((id for (_, chosen), id in reversed(self._ids.items()) if chosen == name), name)
