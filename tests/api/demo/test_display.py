"""What the demo prints."""

from __future__ import annotations

import io

import pytest

from blockwright.api.demo.client import ExampleOutcome
from blockwright.api.demo.display import DeferredOutput, LiveDisplay, accuracy_table, request_table, status_line, table
from blockwright.api.demo.tasks import HELD_OUT, LONGER, Example

EXAMPLE = Example("copy", "copy: ab =", "ab", HELD_OUT)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("outcome", "mark"),
    [
        (ExampleOutcome(EXAMPLE, "demo"), "waiting"),
        (ExampleOutcome(EXAMPLE, "demo", text="a"), "stream"),
        (ExampleOutcome(EXAMPLE, "demo", text="ab", finish="stop"), "right"),
        (ExampleOutcome(EXAMPLE, "demo", text="ax", finish="stop"), "wrong"),
        (ExampleOutcome(EXAMPLE, "demo", text="ab", error="gone"), "failed"),
    ],
)
def test_a_line_tells_the_state(outcome: ExampleOutcome, mark: str) -> None:
    assert status_line(outcome, 80).split()[0] == mark
    assert len(status_line(outcome, 12)) <= 12


def test_a_terminal_is_redrawn_in_place() -> None:
    out, outcomes = Terminal(), [ExampleOutcome(EXAMPLE, "demo"), ExampleOutcome(EXAMPLE, "demo")]
    live = LiveDisplay(outcomes, out)
    live.changed(outcomes[0])
    assert "\x1b[2A" not in out.getvalue()
    outcomes[1].text = "ab"
    live.changed(outcomes[1])
    assert out.getvalue().count("\x1b[2A") == 1
    assert out.getvalue().count("\n") == 4


def test_a_file_gets_one_line_for_each_request_when_it_ends() -> None:
    out, outcome = io.StringIO(), ExampleOutcome(EXAMPLE, "demo", text="ab")
    live = LiveDisplay([outcome], out)
    live.changed(outcome)
    assert out.getvalue() == ""
    outcome.ended, outcome.finish = 2.0, "stop"
    live.changed(outcome)
    live.changed(outcome)
    assert out.getvalue() == "  right   copy: ab = ab\n"


def test_columns_line_up() -> None:
    assert table(("a", "b"), [("long name", "1"), ("x", "100")]) == (
        "a            b\n--------------\nlong name    1\nx          100"
    )


def test_requests_show_time_speed_route_and_verdict() -> None:
    good = ExampleOutcome(EXAMPLE, "demo", text="ab", tokens=3, started=1.0, first=1.25, ended=2.0, route=["w1"])
    bad = ExampleOutcome(EXAMPLE, "demo-pipeline", error="gone", started=1.0, ended=2.0)
    rows = [line.split() for line in request_table([good, bad]).splitlines()[2:]]
    assert rows == [
        ["demo", "copy", "250", "3", "3", "w1", "right"],
        ["demo-pipeline", "copy", "-", "0", "0", "unknown", "failed"],
    ]


def test_accuracy_is_split_by_task_and_length() -> None:
    longer = Example("copy", "copy: abcdefghijklmno =", "abcdefghijklmno", LONGER)
    outcomes = [
        ExampleOutcome(EXAMPLE, "demo", text="ab"),
        ExampleOutcome(EXAMPLE, "demo", text="ab", error="gone"),
        ExampleOutcome(longer, "demo", text="abc"),
    ]
    rows = [line.split() for line in accuracy_table(outcomes).splitlines()[2:]]
    assert rows == [["copy", "1/2", "0/1"], ["all", "1/2", "0/1"]]


def test_a_part_beside_others_is_shown_at_its_turn() -> None:
    out = io.StringIO()
    outcome = DeferredOutput(out)
    outcome.say("early")
    assert out.getvalue() == ""
    outcome.turn()
    assert out.getvalue() == "early\n"
    outcome.say("late")
    outcome.turn()
    assert out.getvalue() == "early\nlate\n"
