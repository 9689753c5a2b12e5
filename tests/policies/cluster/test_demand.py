"""Who gives way to an application that is asked for and not resident."""

from dataclasses import replace
from typing import Any

from blockwright.policies.cluster import demand
from blockwright.policies.cluster.demand import (
    BURST_PATIENCE,
    PATIENCE,
    TURN,
    DemandState,
    HopCapacity,
    UnloadCandidate,
    UnloadDecision,
    Use,
    combined,
    coming,
    lacking_bytes,
    withheld,
)


def resident(
    name: str, *, active: int = 0, idle: float = 0.0, age: float = 60.0, owned: int = 10, parts: tuple[bytes, ...] = ()
) -> UnloadCandidate:
    return UnloadCandidate(
        name, Use(active, 0.0 if active else idle), age, {"w0": owned}, {"w0": {name.encode()} | {*parts}}
    )


def choose(
    lacking: dict[str, int], residents: list[UnloadCandidate], waited: float, kept: tuple[bytes, ...] = ()
) -> UnloadDecision:
    return demand.choose(lacking, residents, waited, {"w0": set(kept)})


def test_the_least_recently_used_go_and_no_more_than_are_needed():
    residents = [resident("new", idle=1), resident("old", idle=9), resident("older", idle=10), resident("busy", active=1)]
    assert choose({"w0": 10}, residents, 0.0) == UnloadDecision(("older",))
    assert choose({"w0": 11}, residents, 0.0) == UnloadDecision(("older", "old"))
    assert choose({"w0": 0}, residents, 0.0) == UnloadDecision()


def test_what_frees_nothing_stays():
    residents = [resident("base", idle=99, owned=0), resident("adapter", idle=1)]
    assert choose({"w0": 5}, residents, 0.0) == UnloadDecision(("adapter",))


def sharing(name: str, shared: str, own: bool = False, **use: Any) -> UnloadCandidate:
    """``shared``: its parts, one letter each, beside one that it alone has."""
    made = resident(name, owned=10 if own else 0, **use)
    return replace(made, parts={"w0": {*(letter.encode() for letter in shared)} | ({name.encode()} if own else set())})


def test_what_others_in_use_need_stays():
    """A base whose tensors are all an active adapter's: it would go, free nothing, and have to come again."""
    base, busy = sharing("base", "ab", idle=99), sharing("busy", "ab", own=True, active=1)
    assert choose({"w0": 5}, [base, busy], 0.0) == UnloadDecision()
    assert choose({"w0": 5}, [base, busy], PATIENCE) == UnloadDecision(drain="busy")
    other = sharing("other", "ab", own=True, idle=1)
    assert choose({"w0": 5}, [base, busy, other], 0.0) == UnloadDecision(("other",))
    assert choose({"w0": 15}, [base, busy, other], 0.0) == UnloadDecision(), "and not for what base does not free"
    tune = sharing("tune", "ac", idle=5)
    assert choose({"w0": 5}, [base, tune, sharing("twin", "ac", idle=4), busy], 0.0) == UnloadDecision(("tune",)), (
        "c is theirs"
    )


def test_what_the_newcomer_needs_stays_unless_nobody_else_is_left():
    base, other = sharing("base", "ab", idle=99, own=True), sharing("other", "cd", idle=1, own=True)
    base = replace(base, parts={"w0": {b"a", b"b"}})
    assert choose({"w0": 5}, [base, other], 0.0, (b"a", b"b")) == UnloadDecision(("other",))
    assert choose({"w0": 15}, [base, other], 0.0, (b"a", b"b")) == UnloadDecision(("other",))
    assert choose({"w0": 15}, [base], 0.0, (b"a", b"b")) == UnloadDecision(("base",)), "what lies between may help"


def test_what_two_share_alone_goes_though_neither_owns_it():
    assert choose({"w0": 5}, [resident("a", idle=2, owned=0), resident("b", idle=1, owned=0)], 0.0) == UnloadDecision(("a",))


def test_what_two_share_beside_what_each_owns_is_freed_one_by_one():
    """The least recently used first: the other one may own enough by then, or the newcomer be alone."""
    pair = [resident("a", idle=2), resident("b", idle=1)]
    assert choose({"w0": 21}, pair, 0.0) == UnloadDecision(("a",))
    assert choose({"w0": 11}, pair[1:], 0.0) == UnloadDecision(("b",))
    assert choose({"w0": 31}, [*pair, resident("busy", active=1)], 0.0) == UnloadDecision(("a",))
    assert choose({"w0": 30}, [*pair, resident("busy", active=1)], 0.0) == UnloadDecision(), "waits for what is its own"
    two = [
        UnloadCandidate("a", Use(0, 2.0), 60.0, {"w0": 10, "w1": 9}, {"w0": {b"a"}}),
        UnloadCandidate("b", Use(0, 1.0), 60.0, {"w0": 10, "w1": 0}, {"w0": {b"b"}, "w1": {b"b"}}),
    ]
    assert choose({"w0": 20, "w1": 10}, two, 0.0) == UnloadDecision(("a",)), "on one worker it is enough, on the other not"


def test_what_is_in_use_goes_only_after_a_while_and_the_oldest_resident_first():
    residents = [resident("a", active=3, age=5), resident("b", active=1, age=8), resident("c", active=9, age=TURN / 2)]
    assert choose({"w0": 10}, residents, PATIENCE / 2) == UnloadDecision()
    assert choose({"w0": 10}, residents, PATIENCE) == UnloadDecision(drain="b")
    assert choose({"w0": 10}, residents[2:], PATIENCE) == UnloadDecision(), "it came a moment ago"


def test_of_which_parameters_are_dropped_waits_for_the_end_of_its_burst_and_goes_whole():
    tune, base = replace(resident("tune", idle=9), dropped=True), replace(resident("base", active=1), dropped=True)
    other = resident("other", active=1)
    assert choose({"w0": 1}, [tune, base], PATIENCE) == UnloadDecision(), "the tune alone would free nothing that is not KV"
    assert choose({"w0": 1}, [tune, base], BURST_PATIENCE) == UnloadDecision(drain="base")
    assert choose({"w0": 1}, [tune, base, other], PATIENCE) == UnloadDecision(drain="other")
    assert choose({"w0": 1}, [tune], 0.0) == UnloadDecision(("tune",))


def test_nothing_is_loaded_where_parameters_are_dropped():
    assert withheld(["w2", "w1", "w0", "w1"], [["w1", "w3"], ["w2"]]) == ["w1", "w2"]
    assert withheld(["w0"], [["w1", "w3"]]) == withheld(["w0"], []) == []


def test_nothing_idle_goes_in_vain():
    residents = [resident("a", idle=3, owned=4), resident("b", active=1, owned=9)]
    assert choose({"w0": 10}, residents, 0.0) == UnloadDecision()
    assert choose({"w0": 10}, residents, PATIENCE) == UnloadDecision(drain="b")


def test_every_worker_that_lacks_memory_counts():
    one = UnloadCandidate("one", Use(0, 9.0), 60.0, {"w0": 10}, {"w0": {b"1"}})
    two = UnloadCandidate("two", Use(0, 5.0), 60.0, {"w1": 10}, {"w1": {b"2"}})
    assert choose({"w1": 10}, [one, two], 0.0) == UnloadDecision(("two",))
    assert choose({"w0": 1, "w1": 1}, [one, two], 0.0) == UnloadDecision(("one", "two"))


def test_gateways_are_added_up():
    found = combined([{"a": Use(1, 0.0), "b": Use(0, 9.0)}, {"a": Use(2, 0.0), "b": Use(0, 4.0)}])
    assert found == {"a": Use(3, 0.0), "b": Use(0, 4.0)}


def test_the_longest_that_waits_anywhere_counts():
    assert combined([{"a": Use(1, 0.0, 30)}, {"a": Use(1, 0.0, 50)}, {"a": Use(1, 0.0)}]) == {"a": Use(3, 0.0, 50)}


def test_one_that_is_online_anywhere_is_not_offline():
    batch = Use(1, 0.0, 30, offline=True)
    idle = Use(0, 5.0)
    online = Use(1, 0.0, 9)
    assert combined([{"a": batch}, {"a": idle}])["a"].offline
    assert combined([{"a": idle}, {"a": batch}])["a"].offline
    assert combined([{"a": batch}, {"a": batch}])["a"] == Use(2, 0.0, 30, offline=True)
    assert not combined([{"a": batch}, {"a": online}])["a"].offline
    assert not combined([{"a": idle}, {"a": idle}])["a"].offline


def hop(worker: str, room: int, alone: int = 1000, page: int = 10) -> HopCapacity:
    return HopCapacity(worker, 4, page, room, alone)


def test_what_a_sequence_lacks_is_counted_in_whole_pages():
    assert lacking_bytes(8, [[hop("w0", 20)]]) == {}
    assert lacking_bytes(9, [[hop("w0", 20)]]) == {"w0": 10}
    assert lacking_bytes(401, [[hop("w0", 20)]]) is None, "also alone it has no room there"
    assert lacking_bytes(400, [[hop("w0", 20)]]) == {"w0": 980}
    assert lacking_bytes(400, []) is None
    assert lacking_bytes(400, [[hop("w0", 0, 0, page=0)]]) == {}, "no KV is made there"


def test_room_is_made_on_the_route_that_lacks_least():
    assert lacking_bytes(40, [[hop("w0", 20)], [hop("w1", 90)], [hop("w2", 50)]]) == {"w1": 10}
    assert lacking_bytes(40, [[hop("w0", 90, alone=90)], [hop("w1", 0)]]) == {"w1": 100}, "never on the other"
    assert lacking_bytes(40, [[hop("w0", 70), hop("w1", 30), hop("w2", 100)]]) == {"w0": 30, "w1": 70}, (
        "of a pipeline on all"
    )


def test_what_comes_is_served_given_up_or_made_room_for():
    asked = Use(2, 0.0, waits=40)
    sent = Use(2, 0.0)
    gone = Use(0, 1.0)
    assert coming(asked, here=False, lacks=False) is DemandState.LOADING
    assert coming(asked, here=False, lacks=True) is DemandState.CROWDED
    assert coming(asked, here=True, lacks=True) is DemandState.CROWDED, "a sequence is longer than what is left"
    assert coming(asked, here=True, lacks=False) is DemandState.WAITED_FOR
    assert coming(sent, here=True, lacks=False) is DemandState.SERVED
    assert coming(gone, here=True, lacks=False) is DemandState.SERVED, "it keeps its room though who asked is gone"
    assert coming(gone, here=False, lacks=True) is DemandState.UNWANTED
    assert coming(gone, here=False, lacks=False) is DemandState.LOADING


def test_nobody_in_use_gives_way_to_offline_requests_and_they_hold_up_nobody():
    busy, idle = resident("busy", active=1), resident("idle", idle=9)
    kept = {"w0": set[bytes]()}
    assert demand.choose({"w0": 5}, [busy, idle], 60.0, kept, offline=True) == UnloadDecision(("idle",))
    assert demand.choose({"w0": 5}, [busy], 60.0, kept, offline=True) == UnloadDecision(step_back=True)
    assert demand.choose({"w0": 5}, [], 60.0, kept, offline=True) == UnloadDecision(), (
        "what went has not ended yet: it waits"
    )


def test_what_has_no_room_to_come_back_waits_as_long_as_what_comes_on_demand_waits_for_a_burst():
    assert not demand.back_in_vain(0.0)
    assert not demand.back_in_vain(BURST_PATIENCE - 0.1)
    assert demand.back_in_vain(BURST_PATIENCE)


def test_nothing_is_on_demand_once_all_are_loaded_beside_each_other():
    assert demand.all_fit([(False, True), (False, True)])
    assert not demand.all_fit([(False, True), (True, False)]), "one is parked"
    assert not demand.all_fit([(False, True), (False, False)]), "one comes, or its worker is down"
