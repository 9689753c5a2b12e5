"""A turn that is free until it opens a call, as data: the text of a ``Grammar`` of the form ``CALLS``.

``turn_scanner.py`` follows such a turn token by token.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

THINKING = "thinking"
CONTENT, BETWEEN = "content", ""  # a content that a text opens; what is in no region


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeTurn:
    """The texts by which a turn opens and closes its regions, and the Lark grammar of one call, from ``ahead`` on.

    ``region``, ``fresh`` and ``held`` are where the answer begins: in which region, whether there was no text yet, and what
    of a delimiter there is already.
    """

    call: str
    calls: list[str]  # texts that open a call wherever they stand between the regions
    starts: list[str] = field(default_factory=list)  # texts that are a call if the turn begins with one of them
    ahead: str = ""  # the end of each of ``calls`` that belongs to the call; all of one of ``starts`` does
    listed: bool = False  # behind the first character of ``starts`` blanks do not count
    lasts: bool = False  # a call goes on until the turn ends
    thinking: tuple[list[str], list[str]] = ([], [])  # texts that open it, and that close it
    content: tuple[list[str], list[str]] = ([], [])  # without one that opens it, it is what is in no other region
    said: dict[str, str] = field(default_factory=dict)  # special tokens by id that are texts in answers
    region: str = BETWEEN
    fresh: bool = True
    held: str = ""

    @property
    def text(self) -> str:
        """The turn as the text of a grammar."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> FreeTurn:
        """Return the turn that a text describes."""
        return cls(**json.loads(text))
