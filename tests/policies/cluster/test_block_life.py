"""One deployed block, from its first load to its end."""

from __future__ import annotations

from blockwright.policies.cluster.block_life import BlockLife, BlockStage


def test_it_is_loaded_held_drained_and_gone() -> None:
    life = BlockLife()
    assert life.stage is BlockStage.GONE
    life.begin("a")
    assert life.stage is BlockStage.LOADING
    life.loaded("a")
    life.begin("b")
    assert life.stage is BlockStage.RESIDENT
    life.loaded("b")
    assert not life.release("a")
    assert life.release("b")
    assert life.stage is BlockStage.DRAINING
    assert life.ended()
    assert life.stage is BlockStage.GONE
    assert not life.ended()


def test_who_comes_while_it_drains_keeps_it() -> None:
    life = BlockLife()
    life.begin("a")
    life.loaded("a")
    assert life.release("a")
    life.begin("b")
    assert not life.ended(), "the word came late"
    life.loaded("b")
    assert life.stage is BlockStage.RESIDENT


def test_a_load_that_fails_leaves_nothing_and_a_stranger_releases_nothing() -> None:
    life = BlockLife()
    life.begin("a")
    life.begin("b")
    life.failed("a")
    assert life.stage is BlockStage.LOADING
    life.failed("b")
    assert life.stage is BlockStage.GONE
    assert not life.release("a")
