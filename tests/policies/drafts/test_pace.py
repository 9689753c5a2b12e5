"""The pace of answers with drafts: what is counted, what a round costs, and how many steps the tokens to come take."""

from __future__ import annotations

from blockwright.policies.drafts.acceptance import UNIT
from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.drafts.pace import FULL, LEAST, Pace, PaceTable

PROMPT = DraftOptions(prompt=True)


def test_until_enough_is_known_each_token_takes_a_step() -> None:
    pace = Pace()
    pace.record(LEAST - 1, UNIT)
    assert pace.steps_for(10) == 10
    pace.record(1, 7 * UNIT)
    assert pace.steps_for(10) == 5
    assert pace.steps_for(11) == 6, "steps are whole"
    assert pace.steps_for(1) == 1


def test_old_tokens_count_less() -> None:
    pace = Pace()
    for _ in range(FULL):
        pace.record(1, UNIT)
    for _ in range(FULL):
        pace.record(4, UNIT)
    assert pace.tokens < FULL
    assert 25 <= pace.steps_for(100) < 60


def test_a_round_counts_as_the_steps_that_it_costs() -> None:
    table = PaceTable()
    table.add(0, "m", PROMPT)
    table.count_plain(0, 11)  # a prompt of 10 tokens and the one that its prefill drew
    table.count_plain(0, 15)
    table.begin(0, 17, 3 * UNIT // 2)
    table.end(0, 4)
    table.count_plain(0, 25)
    pace = table.find("m", PROMPT)
    assert pace is not None
    assert (pace.tokens, pace.steps) == (4 + 2 + 4 + 4, 4 * UNIT + 2 * UNIT + 3 * UNIT // 2 + 4 * UNIT)


def test_applications_and_kinds_of_requests_have_paces_of_their_own() -> None:
    table, tier = PaceTable(), DraftOptions(tokens=4, tiers=["m:2"])
    for s, (application, options) in enumerate((("m", PROMPT), ("m", tier), ("n", PROMPT))):
        table.add(s, application, options)
    table.count_plain(1, 5)
    table.begin(1, 5, UNIT)
    table.end(1, 5)
    assert [pace.tokens for pace in (table.find("m", PROMPT), table.find("n", PROMPT), table.find("m", tier)) if pace] == [
        0, 0, 5,
    ]  # fmt: skip
    assert table.find("m", DraftOptions(prediction=[1])) is None
    copy = table.fork()
    copy.end(1, 1)
    assert copy.snapshot() != table.snapshot() == PaceTable.restore(table.snapshot()).snapshot()
    table.check([0, 1, 2])
    table.remove(2)
    table.forget("n")
    assert table.find("n", PROMPT) is None
    table.check([0, 1])
