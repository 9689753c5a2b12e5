from blockwright.policies.model.chain import Block, Chain, Hop, Route
from blockwright.policies.requests.routing_table import RoutingTable

CHAINS = [Chain("m", (Block(()),), 100)]


def route(*workers: str) -> Route:
    return Route("m@" + "+".join(workers), 1, "m", tuple(Hop(w, i, i + 1) for i, w in enumerate(workers)))


def table(*routes: Route) -> RoutingTable:
    made = RoutingTable(["m"])
    made.update(1, CHAINS, routes, [], {r.id: 64 for r in routes}, 0.0)
    return made


def test_a_route_counts_once_all_its_workers_live() -> None:
    made = table(route("w0", "w1"))
    made.join("w0", 1.0)
    assert made.routes["m"] == []
    made.join("w1", 2.0)
    assert made.routes["m"] == [route("w0", "w1")]
    assert made.room["m"] == 64


def test_a_route_through_a_worker_that_ended_waits_for_the_next_update() -> None:
    """Its next life has nothing loaded, whatever was published for the one before."""
    made = table(route("w0"), route("w1"))
    for worker in ("w0", "w1"):
        made.join(worker, 1.0)
    made.lose("w0", 2.0)
    made.join("w0", 3.0)
    assert made.routes["m"] == [route("w1")]
    made.update(2, CHAINS, [route("w0"), route("w1")], [], {}, 4.0)
    assert made.routes["m"] == [route("w0"), route("w1")]
