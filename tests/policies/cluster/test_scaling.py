"""Which block is pressed, and where one more instance of it goes."""

from __future__ import annotations

import pytest

from blockwright.policies.cluster.assignment import WorkerCapacity
from blockwright.policies.cluster.scaling import BlockPlace, PressedBlock, Queues, RouteQueue, scale_out
from blockwright.policies.model.chain import Hop
from blockwright.tests.policies.cluster.test_assignment import PAGE, Model, model

HALF = PAGE // 2


def queue(application: str, tokens: int, first: int = 0, last: int = 6, limit: int = 100) -> RouteQueue:
    return RouteQueue(application, first, last, 1, 2, tokens, limit)


def test_a_queue_is_of_everybody_who_passes_the_block() -> None:
    queues = Queues([queue("a", 30), queue("b", 40), queue("b", 20, 0, 3)])
    shared, pressed = queues.use([BlockPlace("a", 0, 3), BlockPlace("b", 0, 3)])
    assert (shared.running, shared.waiting, shared.tokens, shared.pressure) == (3, 6, 90, pytest.approx(0.9))
    assert pressed == PressedBlock(shared.pressure, {"b": (0, 3), "a": (0, 3)})
    above, calm = queues.use([BlockPlace("b", 3, 6)])
    assert above.tokens == 40, "the route that ends below does not pass"
    assert above.pressure == pytest.approx(0.4 / 0.5), "others' sequences leave it half of the memory"
    assert calm is None


def test_nobody_there_is_no_pressure() -> None:
    use, pressed = Queues([queue("a", 500)]).use([BlockPlace("b", 0, 6)])
    assert (use.tokens, use.pressure, pressed) == (0, 0.0, None)


KNOWN = {"a": model("f"), "b": model("f", "b", 3)}
PRESSED = [PressedBlock(0.9, {"b": (3, 6)}), PressedBlock(1.2, {"b": (0, 3), "a": (0, 3)})]


def workers(**free: int) -> dict[str, WorkerCapacity]:
    return {name: WorkerCapacity(nbytes, {}) for name, nbytes in free.items()}


def test_the_heaviest_goes_first_and_takes_along_what_follows_on_a_later_worker() -> None:
    route = scale_out("w0", PRESSED, KNOWN, workers(w0=0, w1=6000 + PAGE), {("a", "w0"), ("b", "w0")})
    assert route is not None
    assert (route.id, route.hops) == ("b@w1", (Hop("w1", 0, 6),))


def test_where_the_heaviest_finds_no_room_the_next_goes_alone_and_the_other_hops_stay() -> None:
    route = scale_out("w0", PRESSED, KNOWN, workers(w0=0, w1=3000 + HALF), {("a", "w0"), ("b", "w0")})
    assert route is not None
    assert (route.id, route.hops) == ("b@w0+w1", (Hop("w0", 0, 3), Hop("w1", 3, 6)))
    assert scale_out("w0", PRESSED, KNOWN, workers(w0=0, w1=3000 + HALF - 1), set()) is None


def test_towards_an_earlier_worker_it_takes_along_what_precedes_it() -> None:
    pressed = [PressedBlock(1.0, {"b": (0, 3)})]
    route = scale_out("w1", pressed, KNOWN, workers(w0=3000 + HALF, w1=0), set())
    assert route is not None
    assert (route.id, route.hops) == ("b@w0+w1", (Hop("w0", 0, 3), Hop("w1", 3, 6)))


def test_the_worker_that_has_most_of_it_is_chosen_and_one_that_has_the_application_is_not() -> None:
    rooms = workers(w0=0, w1=9000, w2=9000, w3=9000)
    rooms["w2"] = WorkerCapacity(9000, {c.id: c.nbytes for c in KNOWN["b"].components[3:]})
    pressed = [PressedBlock(1.0, {"b": (3, 6)})]
    first = scale_out("w0", pressed, KNOWN, rooms, {("b", "w0")})
    assert first is not None
    assert first.id == "b@w0+w2"
    second = scale_out("w0", pressed, KNOWN, rooms, {("b", "w0"), ("b", "w2")})
    assert second is not None
    assert second.id == "b@w0+w1"


def test_no_hop_is_left_without_kv() -> None:
    head = [PressedBlock(1.0, {"a": (5, 6)})]
    assert scale_out("w0", head, KNOWN, workers(w0=0, w1=1 << 30), set()) is None
    assert isinstance(KNOWN["a"], Model)
