"""Which instances hand sequences over: those that are short of pages, to those that have most for each sequence."""

from __future__ import annotations

from overload_migration import FreenessReading, MigrationPair, migrated, migration_pairs

FULL = FreenessReading(free=4, running=4)


def test_freeness_is_what_each_sequence_could_still_take() -> None:
    assert FULL.freeness == 1.0
    assert FreenessReading(free=4, running=3, head=12).freeness == -2.0, "who waits first counts as if it ran"
    assert FreenessReading(free=4, running=0).freeness == float("inf")


def test_the_least_free_is_paired_with_the_freest() -> None:
    readings = {
        "a": FULL,
        "b": FreenessReading(free=90, running=3),
        "c": FreenessReading(free=2, running=2, head=8),
        "d": FreenessReading(free=40, running=4),
        "e": FreenessReading(free=0, running=0, head=9),
    }
    assert migration_pairs(readings) == [MigrationPair("c", "b"), MigrationPair("a", "d")], "nobody runs at e"
    assert migration_pairs(readings, busy={"b", "c"}) == [MigrationPair("a", "d")]
    assert migration_pairs(readings, least=11.0) == [MigrationPair("c", "b")]
    assert migration_pairs({name: readings[name] for name in "bd"}, least=10.0) == [], "d has just as much as it needs"
    assert migration_pairs(dict.fromkeys("ab", FULL)) == [], "all are full: nobody could take one"


def test_the_shortest_goes_if_there_is_room() -> None:
    there = FreenessReading(free=40, running=4)
    assert migrated({"x": 9, "y": 5, "z": 1}, there) == "y", "one page is not worth it"
    assert migrated({"x": 26}, there) is None, "the destination would be short itself"
    assert migrated({"x": 25}, there) == "x"
    assert migrated({"x": 25}, FreenessReading(free=40, running=4, head=1)) is None
