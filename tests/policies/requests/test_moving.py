"""When requests that move begin on their new routes, and where those go whose routes end."""

from __future__ import annotations

import pytest

from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, KvLayout, Route
from blockwright.policies.requests.dispatch import RouteQuery
from blockwright.policies.requests.moving import (
    PATIENCE,
    ROUNDS,
    STUCK,
    begins_there,
    copies_again,
    deal,
    homes,
    overdue,
    page_targets,
    stuck,
)
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.requests.routing_table import RoutingTable


def route(worker: str, application: str = "m") -> Route:
    return Route(f"{application}@{worker}", 1, application, (Hop(worker, 0, 1),))


def table(*routes: Route, **capacity: int) -> RoutingTable:
    names = sorted({one.application for one in routes})
    made = RoutingTable(names)
    chains = [Chain(name, (Block((Component(b"c" * 16, Kind.MLP, 1, 1, 1),)),), 100) for name in names]
    for one in routes:
        made.join(one.home, 0.0)
    made.update(
        RoutesChanged(1, chains, routes, [], capacity={f"m@{worker}": tokens for worker, tokens in capacity.items()}), 0.0
    )
    return made


def wanted(request: str, tokens: int, application: str = "m") -> RouteQuery:
    return RouteQuery(request, application, tokens)


def test_who_decodes_waits_for_its_pages_and_nobody_else() -> None:
    assert begins_there(copying=False, decodes=True)
    assert begins_there(copying=True, decodes=False)
    assert not begins_there(copying=True, decodes=True)


def test_what_became_full_is_copied_once_more_unless_copying_fails() -> None:
    assert [copies_again(rounds, failed=False) for rounds in (1, ROUNDS)] == [True, False]
    assert not copies_again(1, failed=True)


def test_patience_has_an_end() -> None:
    assert [overdue(1.0, 1.0 + PATIENCE + late) for late in (0.0, 0.1)] == [False, True]
    assert [stuck(1.0, 1.0 + STUCK + late) for late in (0.0, 0.1)] == [False, True]


def test_the_longest_is_dealt_first_each_where_least_is() -> None:
    known = table(route("w0"), route("w1"), route("w2"))
    requests = [wanted("a", 5), wanted("b", 9), wanted("c", 6), wanted("d", 4)]
    dealt = deal(requests, ["m@w0", "m@w1"], known)
    assert {request: to and to.id for request, to in dealt.items()} == {"b": "m@w0", "c": "m@w1", "a": "m@w1", "d": "m@w0"}


def test_each_model_has_its_own_routes_and_each_route_its_room() -> None:
    known = table(route("w0"), route("w1"), route("w1", "n"), w0=8, w1=20)
    requests = [wanted("a", 9), wanted("b", 30), wanted("c", 50, "n"), wanted("d", 1, "gone")]
    dealt = deal(requests, ["m@w0", "m@w1", "n@w1", "m@w7"], known)
    assert {request: to and to.id for request, to in dealt.items()} == {"a": "m@w1", "b": None, "c": "n@w1", "d": None}


def test_sequences_are_dealt_out_by_length() -> None:
    found = homes({"a": 5, "b": 4, "c": 3, "d": 3, "e": 3}, ["w0", "w1"])
    assert found == {"a": "w0", "b": "w1", "c": "w1", "d": "w0", "e": "w1"}
    assert homes({}, ["w0"]) == {}


def parts_of(name: str, layers: int, *, stitch: int = -1) -> list[Component]:
    """A chain of attention and feed-forward in turn, with a component of no kind of KV before the layer ``stitch``."""
    kv = KvLayout(1, 8, "float32", 4)
    found = [Component(b"embedding", Kind.EMBEDDING, 1, 0, 4)]
    for layer in range(layers):
        own = name if 0 <= stitch <= layer else ""
        found += [Component(f"{own}stitch".encode(), Kind.STITCH, 1, 4, 4)] if layer == stitch else []
        found.append(Component(f"{own}a{layer}".encode(), Kind.ATTENTION, 1, 4, 4, kv))
        found.append(Component(f"{own}m{layer}".encode(), Kind.MLP, 1, 4, 4))
    return [*found, Component(b"head", Kind.HEAD, 1, 4, 4)]


@pytest.mark.parametrize(("here", "there"), [("own", "other"), ("other", "own")])
def test_only_layers_below_a_difference_move_between_chains(here: str, there: str) -> None:
    chains = {"own": parts_of("own", 6), "other": parts_of("other", 6, stitch=4)}
    assert len(chains["other"]) == len(chains["own"]) + 1

    def whole(name: str, worker: str) -> Route:
        return Route(name, 1, name, (Hop(worker, 0, len(chains[name])),))

    source, target = whole(here, "w0"), whole(there, "w1")
    assert page_targets(chains[here], chains[there], source, target) == {"w0": [("w1", 0, 4)]}
    last = len(chains[there])
    spread = Route(there, 1, there, (Hop("w1", 0, 5), Hop("w2", 5, 9), Hop("w3", 9, last)))
    assert page_targets(chains[here], chains[there], source, spread) == {"w0": [("w1", 0, 2), ("w2", 2, 4)]}
    assert page_targets(chains[there], chains[there], spread, whole(there, "w0")) == {
        "w1": [("w0", 0, 2)],
        "w2": [("w0", 2, 4)],
        "w3": [("w0", 4, 6)],
    }
