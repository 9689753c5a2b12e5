"""The start of a worker that joins by itself. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..members import WorkerWish


@dataclass(frozen=True, slots=True)
class Starting:
    """The values that its starter gives a worker.

    text: the join text. name: of the worker, or empty. listen: where others reach it, or empty. labels: shown to people.
    text_from_input: the text was read from standard input.
    """

    text: str
    name: str = ""
    listen: str = ""
    wish: WorkerWish = field(default_factory=WorkerWish)
    labels: dict[str, str] = field(default_factory=dict)
    text_from_input: bool = False
