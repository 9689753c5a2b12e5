"""Request ownership: which gateway a request belongs to, which key may see or cancel it, and by which names.

A request id names its gateway, so that it is known whom to ask. A request with several choices is several sequences, each
with an id of its own. To any key but the one that made it a request does not exist.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

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


def may_see(key: str, owner: str) -> bool:
    """Whether ``key`` may ask about, or cancel, a request that ``owner`` made (names of keys; "" where none are needed)."""
    return key == owner


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

    def resolve(self, key: str, name: str) -> str:
        """Our id; ``name`` itself when no request of that key chose it."""
        return self._ids.get((key, name), name)
