"""Requests are drawn as described."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from blockwright.simulator.description import WorkloadSpec
from blockwright.simulator.model_spec import ModelSpec
from blockwright.simulator.traces import TraceError
from blockwright.simulator.workload import WorkloadRequest, demands
from blockwright.tests.simulator.test_traces import QUANTILES, RATES

MODELS = (ModelSpec(name="a", kv_bytes=4, share=3.0), ModelSpec(name="b", kv_bytes=4))


def drawn(folder: Path, **fields: Any) -> list[WorkloadRequest]:
    spec = {"rate": 5.0, "count": 2000, "input_tokens": 40, "output_tokens": 9, **fields}
    return demands(WorkloadSpec(**spec), MODELS, 1, folder)


@pytest.mark.parametrize(("arrivals", "cv"), [("poisson", 1.0), ("gamma", 2.0), ("gamma", 0.5)])
def test_times_between_requests_have_the_rate_and_the_spread_asked_for(tmp_path: Path, arrivals: str, cv: float) -> None:
    found = drawn(tmp_path, arrivals=arrivals, cv=cv)
    gaps = [b.at - a.at for a, b in pairwise(found)]
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.1)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.12)
    assert sum(one.model == "a" for one in found) == pytest.approx(1500, rel=0.05)


def test_lengths_around_a_mean_and_their_limits(tmp_path: Path) -> None:
    assert {(one.prompt, one.output) for one in drawn(tmp_path)} == {(40, 9)}
    found = drawn(tmp_path, law="exponential", most_output=30)
    assert statistics.mean(one.prompt for one in found) == pytest.approx(40, rel=0.1)
    assert max(one.output for one in found) == 30


def test_times_of_one_file_and_lengths_of_another(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n2,1,1\n6,1,1\n8,1,1\n")
    (tmp_path / "l.csv").write_text("input_tokens,output_tokens\n7,70\n8,80\n")
    found = drawn(tmp_path, arrivals="trace", rate=0.0, trace="t.csv", lengths="l.csv", speed=2.0, start=1.0)
    assert [one.at for one in found] == [0.5, 2.5, 3.5]
    assert {(one.prompt, one.output) for one in found} == {(7, 70), (8, 80)}
    faster = drawn(tmp_path, arrivals="trace", trace="t.csv", rate=2.0)
    assert [one.at for one in faster] == [0.0, 0.5, 1.5, 2.0], "the trace's bursts at another rate"
    poisson = drawn(tmp_path, trace="t.csv")
    assert [(one.prompt, one.output) for one in poisson] == [(1, 1)] * 4
    with pytest.raises(TraceError, match=r"l.csv has no times; give arrivals = 'poisson'"):
        drawn(tmp_path, arrivals="trace", trace="l.csv")
    with pytest.raises(TraceError, match="no request after 9 s"):
        drawn(tmp_path, arrivals="trace", trace="t.csv", start=9.0)


def test_a_prompt_is_made_of_its_blocks_and_shares_nothing_else() -> None:
    one, same, other = (WorkloadRequest(n, 0.0, "a", 600, 5, (3, blocks)) for n, blocks in enumerate((4, 4, 5)))
    sent = [demand.submission("a@w", 16, hashed=True, timeout=0.0) for demand in (one, same, other)]
    assert [len(s.tokens) for s in sent] == [600] * 3
    assert sent[0].page_hashes == sent[1].page_hashes
    assert sent[0].page_hashes[:32] == sent[2].page_hashes[:32]
    assert sent[0].page_hashes[32] != sent[2].page_hashes[32]
    alone = [WorkloadRequest(n, 0.0, "a", 64, 5).submission("a@w", 16, hashed=True, timeout=0.0).page_hashes for n in (0, 1)]
    assert alone[0][0] != alone[1][0]


def test_estimates_are_wrong_by_the_law_asked_for(tmp_path: Path) -> None:
    assert {one.expected for one in drawn(tmp_path)} == {9}
    for law, low, high in (("lognormal", 0.0, 1e9), ("gaussian", 0.1, 5.0)):
        found = drawn(tmp_path, output_tokens=1000, length_error=1.5, error_law=law)
        factors = [one.expected / one.output for one in found]
        assert min(factors) >= low
        assert max(factors) <= high
        assert statistics.median(factors) == pytest.approx(1.0, rel=0.15)


def test_clients_are_those_of_the_first_model_where_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(RATES)
    (tmp_path / "q.csv").write_text(QUANTILES)
    found = drawn(tmp_path, arrivals="trace", rate=0.0, trace="r.csv", lengths="q.csv", count=9)
    assert found == drawn(tmp_path, arrivals="trace", rate=0.0, trace="r.csv", lengths="q.csv", count=9, client_model="m-a")
    with pytest.raises(TraceError, match=r"q.csv has no quantiles of the lengths of m-b's clients"):
        drawn(tmp_path, arrivals="trace", trace="r.csv", lengths="q.csv", client_model="m-b")
