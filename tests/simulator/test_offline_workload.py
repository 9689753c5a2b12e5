"""Batches have the density and the sharing that is asked for, and sources those of the paper's table."""

from __future__ import annotations

import pytest

from blockwright.policies.offline.density import Costs
from blockwright.policies.offline.order import Weigher
from blockwright.policies.offline.prefix_tree import PrefixTree
from blockwright.simulator.offline_orders import llama_8b_on_a100
from blockwright.simulator.offline_workload import SOURCES, OfflineWorkload, WorkloadError, lengths_of, mixed

COSTS = llama_8b_on_a100().costs


def read(batch: OfflineWorkload, costs: Costs) -> tuple[float, float]:
    """Density, and the part of the compute that sharing saves."""
    tree = PrefixTree(batch.prompts)
    whole = Weigher(tree, costs, batch.outputs).whole()
    alone = sum(costs.comp(tree.length[one], batch.outputs[one]) for one in range(tree.count))
    return whole.rho, 1.0 - whole.comp / alone


@pytest.mark.parametrize(("rho", "sharing"), [(0.8, 0.05), (1.4, 0.05), (0.9, 0.35), (1.4, 0.45)])
def test_a_mixture_is_as_dense_and_shares_as_much_as_is_asked_for(rho: float, sharing: float) -> None:
    batch = mixed(rho, sharing, 6000, COSTS)
    assert len(batch.prompts) == 6000
    found = read(batch, COSTS)
    assert found[0] == pytest.approx(rho, rel=0.02)
    assert found[1] == pytest.approx(sharing, abs=0.015)


@pytest.mark.parametrize("chat", ["sharegpt", "wildchat", "azure"])
def test_other_chat_sources(chat: str) -> None:
    assert read(mixed(1.1, 0.25, 4000, COSTS, chat=chat), COSTS)[0] == pytest.approx(1.1, rel=0.03)


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_has_the_density_of_the_papers_table(name: str) -> None:
    source = SOURCES[name]
    lengths = lengths_of(source, COSTS, 4000)
    comp = sum(COSTS.comp(*pair) for pair in lengths) - 4000 * source.followers * COSTS.prompt(source.shared)
    assert comp / sum(COSTS.mem(*pair) for pair in lengths) == pytest.approx(source.rho, rel=0.2)


def test_lengths_of_a_trace_and_known_answers() -> None:
    batch = mixed(1.0, 0.2, 2000, COSTS, lengths=[(400, 30), (900, 60)], seed=3)
    kinds = dict(zip(range(3), batch.names, strict=True))
    for request, number in enumerate(batch.sources):
        assert batch.outputs[request] <= batch.limits[request]
        assert batch.known[request] == (batch.outputs[request] if kinds[number] == "openvid" else 0)
        if kinds[number] == "burstgpt":
            assert (len(batch.prompts[request]) // 4, batch.outputs[request]) in ((400, 30), (900, 60))
    assert mixed(1.0, 0.2, 500, COSTS, seed=3).prompts == mixed(1.0, 0.2, 500, COSTS, seed=3).prompts
    assert mixed(1.0, 0.2, 500, COSTS, seed=4).prompts != mixed(1.0, 0.2, 500, COSTS, seed=3).prompts


def test_a_mixture_that_cannot_be_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"no mixture has density 100 and sharing 0\.3"):
        mixed(100.0, 0.3, 1000, COSTS)
    with pytest.raises(WorkloadError, match=r"sharing 0\.97"):
        mixed(1.0, 0.97, 1000, COSTS)
