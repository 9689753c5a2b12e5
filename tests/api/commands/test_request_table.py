"""ps --requests on 80 columns."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from blockwright.api.commands.request_table import ASKED, request_tables, request_view

ID = "cmpl-gw0-0123456789abcdef01234567"


def line(**more: Any) -> dict[str, Any]:
    plain = {"id": ID, "model": "tiny", "state": "running", "place": 0, "prompt_tokens": 9, "computed_tokens": 12}
    return {**plain, "emitted_tokens": 4, "home": "w0", "attempt": 1, "age": 1.25, **more}


def printed(data: list[dict[str, Any]], width: int) -> list[str]:
    paper = Console(file=io.StringIO(), width=width)
    paper.print(request_tables({"data": data}).fitted(paper))
    return paper.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_ids_are_whole_and_places_are_told() -> None:
    waiting = line(state="waiting", place=3, home=None, computed_tokens=0, emitted_tokens=0)
    told = printed([line(), waiting], 110)
    assert told[:2] == ["1 running, 1 waiting, 0 ended recently", ""]
    told = told[2:]
    assert told[1].split() == [ID, "tiny", "running", "w0", "9", "of", "9", "4", "1.2", "s"]
    assert told[2].split()[1:6] == ["tiny", "waiting,", "place", "3", "-"]
    narrow = printed([line(), waiting], 80)[2:]
    assert max(map(len, narrow)) <= 80
    assert ID in "".join(part.split()[0] for part in narrow[1:2])
    assert printed([], 80) == ["no requests yet"]


def test_a_column_has_the_tenants_if_there_are_any() -> None:
    told = printed([line(tenant="team-a"), line(tenant="")], 120)[2:]
    assert told[0].split()[:3] == ["REQUEST", "TENANT", "MODEL"]
    assert [row.split()[1] for row in told[1:]] == ["team-a", "-"]
    assert "TENANT" not in printed([line(tenant="")], 120)[2]


def test_all_that_run_are_shown_and_few_that_ended() -> None:
    many = [line() for _ in range(60)] + [line(state="finished") for _ in range(60)]
    assert len(request_view({"data": many})["data"]) == 60
    few = request_view({"data": many[55:]})["data"]
    assert [one["state"] for one in few] == ["running"] * 5 + ["finished"] * 15
    assert printed(few, 110)[0] == "5 running, 0 waiting, 15 ended recently"
    assert printed([line()] * ASKED, 110)[0].endswith("; only the latest 1,000 are listed")
