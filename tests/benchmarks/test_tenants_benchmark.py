"""The comparison of tenants: the fleet on disk, the requests, what is counted of a pause, and the bars."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tenants
from server import ServerError
from tenants_load import Asked, closed, opened, requests
from tenants_models import ALONE, COUNTS, MERGED, Fleet, apps

from blockwright.gpu.errors import BackendError
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.zoo.source import open_source

NAMES = [app.name for app in apps()]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), "tiny", "f32")
    fleet.make()
    return fleet


def test_the_twenty_are_those_of_the_issue() -> None:
    assert {kind: sum(counts) for kind, counts in COUNTS.items()} == {"lora": 12, "bitfit": 4, "full": 4}
    assert Counter((app.kind, app.foundation) for app in apps())["lora", "f0"] == 8


@pytest.mark.nightly
def test_what_is_shared_on_disk_is_what_the_server_shares(fleet: Fleet) -> None:
    def opened(app: Any) -> Checkpoint:
        folder = fleet.folder / "share" / app.name
        return open_source(folder, "" if app.kind == "full" else fleet.folder / app.foundation)

    bases = [Checkpoint.open(fleet.folder / name) for name in ("f0", "f1")]
    hashes = [found.hashes() for found in (*bases, *map(opened, fleet.apps))]
    distinct = {hash: ref.nbytes for found in hashes for ref, hash in found.items()}
    assert sum(distinct.values()) == fleet.distinct_bytes()
    assert 2 < fleet.distinct_bytes() / fleet.model_bytes < 6


def test_every_subject_has_the_same_model_ids_and_only_ours_shares_between_full_fine_tunes(fleet: Fleet) -> None:
    for subject in tenants.SUBJECTS:
        words = fleet.command(subject)
        served = dict(word.split("=") for flag, word in pairwise(words) if flag == "--app")
        assert set(NAMES) <= {*served, Path(words[0]).name}, subject
        alone = {name for name, folder in served.items() if Path(folder).parent.name == "alone"}
        full = {app.name for app in fleet.apps if app.kind == "full"}
        assert alone == {tenants.OURS: set(), MERGED: full, ALONE: set(NAMES[1:])}[subject]


@pytest.mark.parametrize(("workload", "asked", "answered"), [("poisson", 28, 28), ("azure", 62, 15)])
def test_requests_are_uneven_and_fixed_by_their_seed(workload: str, asked: int, answered: int) -> None:
    found = requests(workload, NAMES, 400, "tiny", 3)
    assert found == requests(workload, NAMES, 400, "tiny", 3)
    assert found[-1].at == pytest.approx(400, rel=0.15)
    assert [one.at for one in found] == sorted(one.at for one in found)
    assert sum(len(one.prompt) for one in found) / 400 == pytest.approx(asked, rel=0.1)
    assert sum(one.tokens for one in found) / 400 == pytest.approx(answered, rel=0.1)
    counts = Counter(one.model for one in found).values()
    assert len(counts) >= 18
    assert max(counts) > 5 * min(counts)


class FakeServer:
    """Answers at once, one token short where the test asks."""

    def __init__(self, short: int = 0) -> None:
        self.session, self.short = self, short
        self.models: list[str] = []
        self.running = self.peak = 0

    def body(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        return {"max_tokens": tokens}

    @contextlib.asynccontextmanager
    async def post(self, _: str, json: dict[str, Any]) -> AsyncIterator[Any]:
        self.models.append(json["model"])
        self.running += 1
        self.peak = max(self.peak, self.running)
        usage = {"usage": {"completion_tokens": json["max_tokens"] - self.short}}

        async def answer() -> dict[str, Any]:
            return usage

        yield SimpleNamespace(status=200, json=answer)
        self.running -= 1


async def test_all_requests_are_sent_by_time_or_by_client() -> None:
    batch = [Asked(n / 1000, f"a{n}", [1], 5) for n in range(12)]
    server: Any = FakeServer()
    seen = await opened(server, batch, rate=10.0)
    assert sorted(server.models) == sorted(one.model for one in batch)  # a busy machine sends late ones together
    assert (seen.tokens, len(seen.latencies)) == (60, 12)
    server = FakeServer()
    assert len((await closed(server, batch, 3)).latencies) == 12
    assert server.peak <= 3
    short: Any = FakeServer(short=1)
    with pytest.raises(ServerError, match="asked for 5 tokens, got 4"):
        await closed(short, batch, 3)


async def test_nothing_is_measured_while_applications_are_being_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [["ready", "loading"], ["ready", "waiting"], ["ready", "on demand"], ["ready", "loading"]]

    async def get(_: str) -> dict[str, Any]:
        return {"applications": dict(enumerate(looks.pop(0)))}

    monkeypatch.setattr(tenants, "SETTLING", 0.0)
    server: Any = SimpleNamespace(get=get)
    await tenants.held(server)
    assert len(looks) == 1


def test_a_delay_is_the_longest_pause_in_the_span_less_the_usual_one() -> None:
    early, late = tenants.Stream(), tenants.Stream()
    early.times, late.times = [0.0, 9.0, 10.0, 11.0], [10.0, 13.0, 14.0, 30.0]
    assert tenants.delay([early, late], 9.5, 14.0, sweep=1.0) == 2.0
    assert tenants.delay([early], 12.0, 14.0, sweep=1.0) == 0.0


@pytest.mark.parametrize(
    ("numerics", "dtype"), [("native-amx-bfloat16", "bf16"), ("native-avx2-bfloat16", "f32"), ("", "f32")]
)
def test_models_are_of_the_type_whose_arithmetic_is_cheap(
    numerics: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*wanted: object) -> Any:
        if not numerics:
            raise BackendError("no library")
        return SimpleNamespace(numerics=numerics)

    monkeypatch.setattr(tenants, "open_backend", opened)
    assert tenants.Plan.chosen(quick=True).dtype == tenants.Plan.chosen(quick=False).dtype == dtype
    assert tenants.Plan.chosen(True, "bf16") == tenants.Plan("W", "bf16", 60, 20, {"poisson": (0.9,)}, 2)


def test_the_bars_are_those_of_the_issue() -> None:
    found = {(bar.case, bar.metric, bar.peer): (bar.at_least, bar.at_most) for bar in tenants.bars(tenants.Plan())}
    assert found["20apps/poisson/closed", "out_tok_per_s", ALONE][0] == 1.9
    assert found["20apps/azure/closed", "out_tok_per_s", MERGED][0] == 1.5
    assert found["20apps/azure/load90", "p95_s", ALONE][1] == 0.6
    assert found["20apps/poisson/load90", "p95_s", MERGED][1] == 0.75
    assert found["20apps/weights", "weight_bytes", tenants.DISTINCT][1] == 1.02
    assert found["20apps/weights", "lora_share", ""][1] == 0.01
    assert found["tenants/same-load", "out_tok_per_s", tenants.ONE][0] == 0.85
    assert found["hot/add", "delay_sweeps", ""][1] == 2.0
