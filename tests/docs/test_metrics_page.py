"""docs/metrics.md has the metrics of the actor runtime as exported; the others: tests/equality/test_every_metric.py."""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from blockwright.api.http.metrics import prometheus_text
from blockwright.runtime.base.node_view import ActorView, NodeView, PeerView, measures
from blockwright.tests.claims import claim
from blockwright.tests.docs.metrics_page import PAGE, row, rows

NAME = re.compile(r"\b(?:vllm|blockwright):\w+|\bblockwright_runtime_\w+")


def some(kind: type) -> Any:
    """An instance, whatever fields it has."""
    hints, given = typing.get_type_hints(kind), dict[str, Any]()
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        given[field.name] = some(hint) if dataclasses.is_dataclass(hint) else (typing.get_origin(hint) or hint)()
    return kind(**given)


def test_the_runtimes_metrics_are_reported() -> None:
    view = NodeView("head", 1, 0.0, [some(ActorView)], [some(PeerView)], {"NoSuchActor": 1}, {"stale": 1})
    assert rows("blockwright_runtime_") == sorted(
        map(row, text_string_to_metric_families(prometheus_text(measures(view)).decode()))
    )


@claim("Every exported metric is moved by a test and documented", of="observability")
def test_there_are_no_others() -> None:
    message = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert sorted(message) == sorted([*rows(":"), *rows("blockwright_runtime_"), *rows("http_requests_total")])


def test_every_metric_that_a_page_names_is_there() -> None:
    known = {line.split("`")[1] for line in (*rows(":"), *rows("blockwright_runtime_"))}
    for page in PAGE.parent.glob("*.md"):
        named = {re.sub("_(bucket|sum|count)$", "", name) for name in NAME.findall(page.read_text())}
        assert {name for name in named if name not in known and f"{name}_total" not in known} <= {"blockwright_runtime_"}, (
            page
        )
