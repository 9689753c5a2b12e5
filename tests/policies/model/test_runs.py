"""Runs and spans follow from the routes: what is shared is cut where a route enters, leaves or branches."""

from __future__ import annotations

from blockwright.policies.model.chain import Chain, Hop, Route
from blockwright.policies.model.lineage import lineages, page_hashes, root_hash
from blockwright.policies.model.local_paths import LocalPaths

from ..sweep_world import chain, pipeline, replica

BASE = chain("base")  # embedding, attention, mlp, attention, mlp, head


def runs_of(worker: str, chains: list[Chain], routes: list[Route]) -> dict[str, list[tuple[int, int]]]:
    """(depth, components) of the runs of each route."""
    local = LocalPaths(worker, "numerics").cut(chains, routes)
    return {name: [(run.depth, len(run.components)) for run in route.runs] for name, route in local.items()}


def test_a_single_model_is_one_run_and_its_head() -> None:
    assert runs_of("w0", [BASE], [replica("w0", BASE)]) == {"base@w0": [(0, 5), (5, 1)]}


def test_chains_part_where_they_differ() -> None:
    upper = chain("upper", own_from=3)
    routes = [replica("w0", BASE), replica("w0", upper)]
    local = LocalPaths("w0", "numerics").cut([BASE, upper], routes)
    assert runs_of("w0", [BASE, upper], routes)["upper@w0"] == [(0, 3), (3, 2), (5, 1)]
    assert local["base@w0"].runs[0] == local["upper@w0"].runs[0]
    assert local["base@w0"].runs[1] != local["upper@w0"].runs[1]
    assert local["base@w0"].spans[0] == local["upper@w0"].spans[0]
    assert [(s.layer, s.layers) for s in local["base@w0"].spans] == [(0, 1), (1, 1)]


def test_chains_that_meet_again_share_the_run_but_not_its_kv() -> None:
    parts = list(BASE.components)
    parts[1] = chain("middle", own_from=1).components[1]
    middle = Chain("middle", (BASE.blocks[0].__class__(tuple(parts)),), 1000)
    local = LocalPaths("w0", "numerics").cut([BASE, middle], [replica("w0", BASE), replica("w0", middle)])
    assert local["base@w0"].runs[2:] == local["middle@w0"].runs[2:]
    assert local["base@w0"].spans[-1].lineage != local["middle@w0"].spans[-1].lineage


def test_hops_cut_runs_and_spans_and_say_where_rows_go() -> None:
    routes = [pipeline(["w0", "w1"], BASE), replica("w0", BASE), replica("w1", BASE)]
    assert runs_of("w0", [BASE], routes) == {"base@w0+w1": [(0, 3)], "base@w0": [(0, 3), (3, 2), (5, 1)]}
    second = LocalPaths("w1", "numerics").cut([BASE], routes)
    assert second["base@w0+w1"].spans == second["base@w1"].spans[1:]
    assert second["base@w0+w1"].runs[0].kv_layer == 1
    assert LocalPaths("w0", "numerics").cut([BASE], routes)["base@w0+w1"].next_worker == "w1"
    assert second["base@w0+w1"].next_worker is None


def test_a_route_may_hold_no_attention_here() -> None:
    route = Route("x", 1, "base", (Hop("w0", 0, 1), Hop("w1", 1, 6)))
    assert LocalPaths("w0", "numerics").cut([BASE], [route])["x"].spans == ()


def test_lineage_depends_on_everything_below_and_on_numerics() -> None:
    upper = chain("upper", own_from=3)
    ours, theirs = lineages(BASE.components, "n"), lineages(upper.components, "n")
    assert [a == b for a, b in zip(ours, theirs, strict=True)] == [True] * 3 + [False] * 3
    assert not set(ours) & set(lineages(BASE.components, "m"))


def test_page_hashes_are_chained_and_salted() -> None:
    hashes = page_hashes([1, 2, 3, 4, 5, 6, 7], 3)
    assert len(hashes) == 2
    assert page_hashes([1, 2, 3, 9, 9, 9], 3)[0] == hashes[0]
    assert page_hashes([0, 2, 3, 4, 5, 6], 3)[1] != hashes[1]
    assert page_hashes([1, 2, 3], 3, b"tenant")[0] != hashes[0]
    assert root_hash(b"") != root_hash(b"tenant")
    assert root_hash(b"s" * 64 + b"a") != root_hash(b"s" * 64 + b"b"), "all of a salt counts"
