"""The routing table: which routes are whole, what they hold, how much work is where."""

from __future__ import annotations

from dataclasses import replace

from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, Route
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.requests.routing_table import RoutingTable

CHAIN = Chain("m", (Block((Component(b"c" * 16, Kind.MLP, 100, 8, 8),)),), 64)


def route(*workers: str) -> Route:
    return Route("m@" + "+".join(workers), 1, "m", tuple(Hop(w, i, i + 1) for i, w in enumerate(workers)))


def table(*workers: str, capacity: dict[str, int] | None = None) -> RoutingTable:
    made = RoutingTable(["m"])
    for worker in workers:
        made.join(worker, 0.0)
    made.update(RoutesChanged(1, [CHAIN], [route("w0"), route("w0", "w1")], [], capacity=capacity or {}), 0.0)
    made.check()
    return made


def test_a_route_is_whole_while_all_of_its_workers_live() -> None:
    made = table("w0")
    assert made.routes["m"] == [route("w0")]
    made.join("w1", 0.0)
    assert made.routes["m"] == [route("w0"), route("w0", "w1")]
    made.lose("w0", 7.0)
    assert (made.routes["m"], made.vanished) == ([], {"m": 7.0})
    made.check()


def test_an_older_version_changes_nothing() -> None:
    made = table("w0")
    made.update(RoutesChanged(1, [], [], [], withdrawn=["m"]), 0.0)
    assert made.routes["m"] == [route("w0")]
    assert made.models == {"m": "m"}


def test_room_is_remembered_when_the_routes_are_gone() -> None:
    made = table("w0", capacity={"m@w0": 40})
    assert (made.room, made.rooms("m")) == ({"m": 40}, (40,))
    made.lose("w0", 1.0)
    assert (made.room, made.rooms("m")) == ({"m": 40}, ())


def test_an_application_is_withdrawn_until_it_is_served_again() -> None:
    made = table("w0")
    made.update(RoutesChanged(2, [CHAIN], [], [], withdrawn=["m"]), 0.0)
    assert (made.models, made.routes) == ({}, {})
    made.update(RoutesChanged(3, [CHAIN], [route("w0")], []), 0.0)
    assert (made.models, made.routes["m"]) == ({"m": "m"}, [route("w0")])
    made.check()


def test_an_application_that_takes_no_new_requests_keeps_its_routes() -> None:
    made = table("w0")
    made.update(RoutesChanged(2, [CHAIN], [route("w0")], [], draining=["m"]), 0.0)
    assert (made.models, made.routes["m"]) == ({}, [route("w0")])
    made.check()


def test_a_new_version_takes_the_place_of_the_old_one_among_the_models() -> None:
    made = RoutingTable(["m", "n"])
    old, other = replace(CHAIN, place=0), replace(CHAIN, application="n", place=1)
    made.update(RoutesChanged(1, [old, other], [], []), 0.0)
    new = replace(CHAIN, application="m~2", model="m", place=0)
    made.update(RoutesChanged(2, [old, other, new], [], [], draining=["m"]), 0.0)
    assert list(made.models.items()) == [("m", "m~2"), ("n", "n")]
    assert (made.model_of("m~2"), made.bases) == ("m", {"n": "m"})


def test_a_difference_changes_what_it_names_and_nothing_else() -> None:
    made = table("w0", "w1", capacity={"m@w0": 5, "m@w0+w1": 7})
    other = replace(CHAIN, application="n", place=1)
    away = Route("n@w0", 2, "n", (Hop("w0", 0, 1),))
    made.update(RoutesChanged(2, [other], [away], [], capacity={"n@w0": 9}, since=1, ended=["m@w0"]), 0.0)
    assert made.routes == {"m": [route("w0", "w1")], "n": [away]}
    assert (made.capacity, made.models) == ({"m@w0+w1": 7, "n@w0": 9}, {"m": "m", "n": "n"})
    made.update(RoutesChanged(3, [], [], [], since=1, removed=["n"]), 0.0)
    assert (made.routes, made.version) == ({"m": [route("w0", "w1")]}, 3)
    made.check()


def test_a_difference_to_what_was_missed_is_left_to_the_next_whole() -> None:
    made = table("w0")
    made.update(RoutesChanged(3, [], [], [], since=2, ended=["m@w0"]), 0.0)
    assert (made.version, made.settled, made.routes["m"]) == (1, 1, [route("w0")])
    made.update(RoutesChanged(3, [CHAIN], [], []), 0.0)
    assert (made.version, made.routes["m"]) == (3, [])


def test_routes_that_were_lost_without_a_word_are_asked_for_again() -> None:
    """The end of a worker was heard of after its next life was published: only the whole tells what is in force."""
    made = table("w0", "w1")
    made.lose("w0", 1.0)
    made.join("w0", 2.0)
    assert (made.version, made.settled, made.routes["m"]) == (1, 0, [])
    made.update(RoutesChanged(1, [CHAIN], [route("w0")], []), 3.0)
    assert (made.settled, made.routes["m"]) == (1, [route("w0")])
    made.lose("w0", 4.0)
    made.update(RoutesChanged(2, [], [], [], since=1, ended=["m@w0"]), 5.0)
    assert (made.version, made.settled) == (2, 2), "the word has come"


def test_work_is_counted_on_each_worker_of_a_request_and_returns_to_nothing() -> None:
    made = table("w0", "w1")
    made.place("a", ("w0", "w1"), 10)
    made.place("b", ("w1",), 5)
    made.charge(("w0", "w1"), -3)
    assert made.work == {"w0": 7, "w1": 12}
    assert made.lose("w1", 0.0) == {"a", "b"}
    made.remove("a", ("w0", "w1"), 7)
    made.remove("b", ("w1",), 5)
    assert made.work == {"w0": 0, "w1": 0}
    assert not any(made.on.values())


def test_a_route_that_was_published_first_counts_once_all_its_workers_live() -> None:
    made = RoutingTable(["m"])
    made.update(RoutesChanged(1, [CHAIN], [route("w0", "w1")], [], capacity={"m@w0+w1": 64}), 0.0)
    made.join("w0", 1.0)
    assert made.routes["m"] == []
    made.join("w1", 2.0)
    assert made.routes["m"] == [route("w0", "w1")]
    assert made.room["m"] == 64


def test_a_route_through_a_worker_that_ended_waits_for_the_next_update() -> None:
    """Its next life has nothing loaded, whatever was published for the one before."""
    made = RoutingTable(["m"])
    made.update(RoutesChanged(1, [CHAIN], [route("w0"), route("w1")], []), 0.0)
    for worker in ("w0", "w1"):
        made.join(worker, 1.0)
    made.lose("w0", 2.0)
    made.join("w0", 3.0)
    assert made.routes["m"] == [route("w1")]
    made.update(RoutesChanged(2, [CHAIN], [route("w0"), route("w1")], []), 4.0)
    assert made.routes["m"] == [route("w0"), route("w1")]


def test_the_donors_of_a_variant_are_the_models_with_the_components_that_its_model_lacks() -> None:
    def of(name: str, ids: bytes, variant_of: str = "", place: int = 0) -> Chain:
        stitch = Component(b"s" * 16, Kind.STITCH, 100, 8, 8)
        parts = [stitch if id == ord("s") else Component(bytes([id]) * 16, Kind.MLP, 100, 8, 8) for id in ids]
        return Chain(name, (Block(tuple(parts)),), 64, variant_of=variant_of, place=place)

    chains = [
        of("a", b"kxy"),
        of("b", b"kXz", place=1),
        of("c", b"kXY", place=2),
        of("a~1", b"ksXsy", "a"),
        of("a~2", b"kXY", "a"),
    ]
    made = RoutingTable(["a"])
    made.update(RoutesChanged(1, chains, [], []), 0.0)
    assert made.donors("a~1") == ["b"], "one that has it is enough; a stitch is of no model"
    assert made.donors("a~2") == ["c"], "it has both"
    assert made.donors("a") == made.donors("gone") == []
    made.update(RoutesChanged(2, [], [], [], since=1, withdrawn=["b", "c"]), 0.0)
    assert made.donors("a~2") == []
