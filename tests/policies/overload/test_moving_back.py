"""Whose turn it is to move back."""

from __future__ import annotations

import random

from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.overload.moving_back import MovingBack

ROUTES = {worker: Route(f"m@{worker}", 1, "m", (Hop(worker, 0, 6),)) for worker in ("w0", "w1")}


def begun(back: MovingBack, tokens: dict[str, int]) -> list[str]:
    return [request for request, _ in back.begin({request: tokens[request] for request in back.waiting})]


def test_as_many_move_as_fit_beside_all_that_go_there() -> None:
    back, tokens = MovingBack(), {"a": 30, "b": 20, "c": 10, "d": 25}
    for request, count in tokens.items():
        back.add(request, ROUTES["w0"], count, capacity=135)  # 85 will be there, so that 50 may be under way
    assert begun(back, tokens) == ["a", "b"]
    assert (back.waiting, back.moving) == (["c", "d"], {"a", "b"})
    back.end("a")
    assert begun(back, tokens) == ["c"], "d would be too much beside them"
    back.end("b")
    assert begun(back, tokens) == ["d"]


def test_where_there_is_no_room_they_move_one_by_one() -> None:
    back, tokens = MovingBack(), {"a": 30, "b": 20}
    for request, count in tokens.items():
        back.add(request, ROUTES["w0"], count, capacity=40)
    back.add("c", ROUTES["w1"], 5, capacity=40)
    tokens["c"] = 5
    assert begun(back, tokens) == ["a", "c"], "each route by itself"
    assert begun(back, tokens) == []
    back.end("a")
    assert begun(back, tokens) == ["b"]


def test_who_ends_before_his_turn_takes_none() -> None:
    back, tokens = MovingBack(), {"a": 30, "b": 20, "c": 10}
    for request, count in tokens.items():
        back.add(request, ROUTES["w0"], count, capacity=60)
    assert begun(back, tokens) == ["a"]
    back.end("b")
    back.end("nobody")
    back.end("a")
    assert begun(back, tokens) == ["c"]
    back.end("c")
    assert (back.waiting, back.moving) == ([], set())


def test_random_lives_all_have_their_turn_and_rooms_are_kept() -> None:
    for seed in range(50):
        draw = random.Random(seed)
        back = MovingBack()
        tokens = dict[str, int]()
        where, room = dict[str, str](), {worker: draw.randint(0, 400) for worker in ROUTES}
        capacity = dict(room)
        for number in range(draw.randint(1, 20)):
            request, worker = f"r{number}", draw.choice([*ROUTES])
            tokens[request], where[request] = draw.randint(1, 60), worker
            back.add(request, ROUTES[worker], tokens[request], capacity[worker])
            room[worker] -= tokens[request]
        done = set[str]()
        while back.waiting or back.moving:
            for request in back.waiting:
                tokens[request] += draw.randint(0, 1)  # they decode on
            size = {request: tokens[request] for request in back.waiting}
            for request, route in back.begin(size):
                assert route.id == f"m@{where[request]}"
            for worker in ROUTES:
                under = [request for request in back.moving if where[request] == worker]
                assert len(under) <= 1 or sum(tokens[request] for request in under) <= room[worker]
            assert back.moving, "whoever waits waits for somebody"
            ended = draw.choice(sorted(back.moving | {*back.waiting}))
            back.end(ended)
            assert ended not in done
            done.add(ended)
        assert done == tokens.keys()
