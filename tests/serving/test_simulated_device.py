"""The simulated device computes what is known in advance, and sees what a plan does wrong."""

from __future__ import annotations

import pytest

from blockwright.policies.model.chain import Component, HiddenLayout
from blockwright.policies.plan.sweep_plan import NO_SLOT, Edit, HiddenRows, MapGroup, SetPages, Step, SweepPlan, WriteTokens
from blockwright.tests.serving.device import CHUNK, SLOT, SimulatedBackend, SimulatedExecutor, Spec, answer
from blockwright.tests.serving.house import PAGE, chain

PARTS = chain("a", 1, 99)
LAYOUT = PARTS[1].kv
STATES = HiddenLayout(6, "float32", PAGE)
PROMPT = [5, 6, 7, 8, 9]


def load(executor: SimulatedExecutor, component: Component, offset: int) -> None:
    """Its tensors one behind the other, but for those that all of its kind share."""
    first, own, _ = SimulatedBackend().parts(Spec(component))
    for _ in executor.load(Spec(component), [offset, offset + first.nbytes, offset + first.nbytes + own.nbytes]):
        pass


@pytest.fixture
def executor() -> SimulatedExecutor:
    """With one application of one layer, as runs 0 (body) and 1 (head), and memory for four slots."""
    assert LAYOUT is not None
    made = SimulatedExecutor()
    made.map(MapGroup("parameters", 0, [0, 1, 2, 3], back=False))
    for unit, component in enumerate(PARTS):
        load(made, component, unit * CHUNK)
    made.add_layout(LAYOUT)
    made.map(MapGroup(LAYOUT.key, 0, [4, 5], back=False))
    made.compose(0, [c.id for c in PARTS[:3]], 0)
    made.compose(1, [PARTS[3].id], 1)
    return made


def plan(edits: list[Edit], row: int, start: int, count: int) -> SweepPlan:
    """One row through both runs, a token drawn at its end."""
    return SweepPlan(1, edits, row=[row], start=[start], count=[count], steps=[Step(0, [0]), Step(1, [0])], sample=[0])


def pages(row: int, slots: list[int]) -> list[Edit]:
    return [SetPages(row, 0, page, [slot]) for page, slot in enumerate(slots)]


def test_what_is_sampled_is_the_answer(executor: SimulatedExecutor) -> None:
    expected = answer(PARTS, PROMPT, 3, [])
    first = executor.execute(plan([WriteTokens(0, 0, PROMPT), *pages(0, [0, 1])], 0, 0, 5)).tokens
    rest = [executor.execute(plan([], 0, position, 1)).tokens[0] for position in (5, 6)]
    assert [*first, *rest] == expected


def test_an_answer_ends_with_a_stop_token() -> None:
    tokens = answer(PARTS, PROMPT, 9, [])
    assert answer(PARTS, PROMPT, 9, [tokens[3]]) == tokens[: tokens.index(tokens[3]) + 1]


def test_a_prefix_that_another_row_computed_may_be_read(executor: SimulatedExecutor) -> None:
    executor.execute(plan([WriteTokens(0, 0, PROMPT), *pages(0, [0, 1])], 0, 0, 5))
    shared = executor.execute(plan([WriteTokens(1, 0, PROMPT), *pages(1, [0, 2])], 1, PAGE, 1)).tokens
    assert shared == answer(PARTS, PROMPT, 1, [])


def test_a_page_of_another_sequence_is_seen(executor: SimulatedExecutor) -> None:
    executor.execute(plan([WriteTokens(0, 0, PROMPT), *pages(0, [0, 1])], 0, 0, 5))
    with pytest.raises(AssertionError, match="another sequence"):
        executor.execute(plan([WriteTokens(1, 0, [5, 6, 7, 1, 9]), *pages(1, [0, 2])], 1, PAGE, 1))


def test_a_position_that_was_not_written_is_seen(executor: SimulatedExecutor) -> None:
    with pytest.raises(AssertionError, match="not written"):
        executor.execute(plan([WriteTokens(0, 0, PROMPT), *pages(0, [0, 1])], 0, 1, 4))


def test_memory_that_was_given_back_is_seen(executor: SimulatedExecutor) -> None:
    assert LAYOUT is not None
    executor.map(MapGroup(LAYOUT.key, 1, [5], back=True))
    with pytest.raises(AssertionError, match="without memory"):
        executor.execute(plan([WriteTokens(0, 0, PROMPT), *pages(0, [0, CHUNK // SLOT])], 0, 0, 5))


def test_a_chunk_in_two_places_is_seen(executor: SimulatedExecutor) -> None:
    assert LAYOUT is not None
    with pytest.raises(AssertionError, match="in use elsewhere"):
        executor.map(MapGroup(LAYOUT.key, 2, [0], back=False))


def test_a_run_whose_components_are_gone_is_seen(executor: SimulatedExecutor) -> None:
    with pytest.raises(AssertionError, match="a run needs it"):
        executor.unload(PARTS[0].id, [])


def test_parameters_that_lose_their_memory_or_their_place_are_seen(executor: SimulatedExecutor) -> None:
    with pytest.raises(AssertionError, match="tensor's memory is given back"):
        executor.map(MapGroup("parameters", 3, [3], back=True))
    other = chain("b", 1, 0)
    with pytest.raises(AssertionError, match="looked for where it is not"):
        load(executor, other[1], 0)
    executor.unload(b"", [part.id for part in SimulatedBackend().parts(Spec(PARTS[0]))])
    with pytest.raises(AssertionError, match="over another"):
        load(executor, other[0], CHUNK // 2)


def exit_plan(edits: list[Edit], row: int, steps: list[Step], *, resumed: bool) -> SweepPlan:
    """Return a plan of a row's first page that begins or ends at an exit, whose slots are layer 1 of the tables."""
    there = [HiddenRows(STATES.key, 1, [0])]
    made = SweepPlan(1, edits, row=[row], start=[0], count=[PAGE], steps=steps, sample=[0])
    if resumed:
        made.resumed = there
    else:
        made.kept = there
    return made


def keep(executor: SimulatedExecutor) -> None:
    """Compute the first page of the prompt in row 0, and keep its hidden states in slot 0 of the exit's arena."""
    executor.add_layout(STATES)
    executor.map(MapGroup(STATES.key, 0, [6], back=False))
    edits = [WriteTokens(0, 0, PROMPT[:PAGE]), *pages(0, [0]), SetPages(0, 1, 0, [0])]
    executor.execute(exit_plan(edits, 0, [Step(0, [0]), Step(1, [0])], resumed=False))


def test_a_row_may_begin_at_an_exit_where_another_ended(executor: SimulatedExecutor) -> None:
    keep(executor)
    edits = [WriteTokens(1, 0, PROMPT[:PAGE]), SetPages(1, 1, 0, [0])]
    done = executor.execute(exit_plan(edits, 1, [Step(1, [0])], resumed=True))
    assert done.tokens == answer(PARTS, PROMPT[:PAGE], 1, [])


def test_hidden_states_of_another_sequence_or_of_nobody_are_seen(executor: SimulatedExecutor) -> None:
    keep(executor)
    edits = [WriteTokens(1, 0, [5, 6, 7, 1]), SetPages(1, 1, 0, [0])]
    with pytest.raises(AssertionError, match="another sequence"):
        executor.execute(exit_plan(edits, 1, [Step(1, [0])], resumed=True))
    edits = [WriteTokens(2, 0, PROMPT[:PAGE]), SetPages(2, 1, 0, [1])]
    with pytest.raises(AssertionError, match="not written"):
        executor.execute(exit_plan(edits, 2, [Step(1, [0])], resumed=True))


def test_a_page_whose_hidden_states_are_not_kept_is_left_out(executor: SimulatedExecutor) -> None:
    edits = [WriteTokens(0, 0, PROMPT[:PAGE]), *pages(0, [0]), SetPages(0, 1, 0, [NO_SLOT])]
    executor.execute(exit_plan(edits, 0, [Step(0, [0]), Step(1, [0])], resumed=False))
