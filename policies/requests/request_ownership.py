"""Request ownership: the gateway that a request belongs to, the keys that may see or cancel it, and its names.

A request id names its gateway, which can so be asked about it. A request with several choices is several sequences, each
with an id of its own. A request exists for the key that sent it and for admin keys; for any other key it does not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

NAMES, NAME_LENGTH = 4096, 128  # how many ids chosen by clients are kept, and how long one may be


def request_id(prefix: str, gateway: str, token: str) -> str:
    """``token``: what no other request has."""
    return f"{prefix}-{gateway}-{token}"


def sequence_id(request: str, choice: int) -> str:
    """The first choice has the request's own."""
    return f"{request}/{choice}" if choice else request


def sequences_of(request: str, known: Iterable[str]) -> list[str]:
    """Those of the ``known`` sequences that answer the request."""
    return [id for id in known if id == request or id.startswith(f"{request}/")]


@dataclass(frozen=True, slots=True)
class Viewer:
    """A key that asks about requests. ``key``: its name, "" where no keys are needed; ``everything``: it is an admin key."""

    key: str = ""
    everything: bool = False

    def may_see(self, owner: str) -> bool:
        """Return whether this key may ask about, and cancel, a request of the key ``owner``."""
        return self.everything or self.key == owner


class ChosenNames:
    """The ids that clients chose (``x-request-id``): with them a request can be asked about before its answer begins."""

    def __init__(self) -> None:
        self._ids: OrderedDict[tuple[str, str], str] = OrderedDict()  # (key, chosen) -> ours, the oldest first

    def note(self, key: str, chosen: str, id: str) -> None:
        """The newest request of that name counts; a name of more than ``NAME_LENGTH`` characters is not kept."""
        if len(chosen) > NAME_LENGTH:
            return
        self._ids.pop((key, chosen), None)
        self._ids[key, chosen] = id
        if len(self._ids) > NAMES:
            self._ids.popitem(last=False)

    def resolve(self, viewer: Viewer, name: str) -> str:
        """Return our id, or ``name`` itself if no request that the viewer may see has it. A viewer's own requests come
        first, then the newest of the others."""
        if (viewer.key, name) in self._ids or not viewer.everything:
            return self._ids.get((viewer.key, name), name)
        return next((id for (_, chosen), id in reversed(self._ids.items()) if chosen == name), name)
