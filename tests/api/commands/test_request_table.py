"""ps --requests on 80 columns."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from blockwright.api.commands.request_table import request_tables

ID = "cmpl-gw0-0123456789abcdef01234567"


def line(**more: Any) -> dict[str, Any]:
    plain = {"id": ID, "model": "tiny", "state": "running", "place": 0, "prompt_tokens": 9, "computed_tokens": 12}
    return {**plain, "emitted_tokens": 4, "home": "w0", "attempt": 1, "age": 1.25, **more}


def printed(data: list[dict[str, Any]], width: int) -> list[str]:
    paper = Console(file=io.StringIO(), width=width)
    paper.print(request_tables({"data": data}))
    return paper.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_ids_are_whole_and_places_are_told() -> None:
    waiting = line(state="waiting", place=3, home=None, computed_tokens=0, emitted_tokens=0)
    told = printed([line(), waiting], 110)
    assert told[1].split() == [ID, "tiny", "running", "w0", "9", "of", "9", "4", "1.2", "s"]
    assert told[2].split()[1:6] == ["tiny", "waiting,", "place", "3", "-"]
    narrow = printed([line(), waiting], 80)
    assert max(map(len, narrow)) <= 80
    assert ID in "".join(part.split()[0] for part in narrow[1:2])
    assert printed([], 80) == ["no requests yet"]
