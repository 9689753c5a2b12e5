"""One application floods a served worker: another's requests take at most twice as many sweeps as without it.

Counted in the worker's event log, from the request's coming to the sweep of its last token: no clock has a part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from blockwright.actors.worker.event_log_file import EventLog
from blockwright.policies.requests.request_ownership import sequence_id
from blockwright.policies.sweep.event_log import Applied, Committed, Replayer
from blockwright.policies.sweep.events import Submission
from blockwright.tests.claims import claim
from blockwright.tests.equality.test_sharing import altered
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.system.client import Client, body
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
ROWS, NEW = 8, 16
PHASES = (("alone", "", 0, 5), ("beside", "other", 40, 5), ("behind", "", 24, 1))  # who floods, how often, steady requests


class Waits(dict[str, int]):
    """Sweeps that each request of a log took; ``beside``: how many others waited when it came."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.beside: dict[str, int] = {}
        log = EventLog(path)
        machine, came = Replayer(log.began), dict[str, int]()
        for _, entry in log:
            state = machine.state
            if isinstance(entry, Applied) and isinstance(entry.event, Submission):
                came[entry.event.request], self.beside[entry.event.request] = state.number, state.waiting
            machine.feed(entry)
            if isinstance(entry, Committed):
                for request in [one for one in came if state.parts.rows.find(one) is None]:
                    self[request] = entry.result.number - came.pop(request) + 1
        assert not came


@claim("A flooding tenant does not double the median latency of another tenant", of="fine-tunes")
@pytest.mark.nightly
async def test_a_flooding_application_does_not_double_the_median_latency_of_another(
    serve: Callable[..., Server], model: Path, tmp_path: Path
) -> None:
    other = altered(model, tmp_path / "other", ("layers.2.",))
    server = serve(workers=1, max_rows=ROWS, arguments=["--app", f"other={other}"]).whole()
    asked: dict[str, list[str]] = {name: [] for name, *_ in PHASES}
    async with Client(server) as client:
        (base,) = [model["id"] for model in (await client.get("/v1/models"))[1]["data"] if model["id"] != "other"]
        for name, flooding, flood, steady in PHASES:
            crowd = [f"{name}-flood-{n}" for n in range(flood)]
            with slow(server):  # or the flood would be over where it takes long to look at it
                for n, request in enumerate(crowd):
                    prompt = prompt_of(5 + n % 11, seed=1000 + n)
                    client.begin({**body(0, 30 + n, prompt), "model": flooding or base}, request)
                for request in crowd:
                    await until(partial(client.request, request), f"{request} is known")
            for n in range(steady):
                _, answer = await client.post({**body(0, NEW, prompt_of(9, seed=n)), "model": base})
                asked[name].append(sequence_id(answer["id"], 0))
            await client.finished()
    server.stop(check_logs=False)
    (path,) = server.event_logs.files("w*")
    waits = Waits(path)
    found = {name: [waits[request] for request in requests] for name, requests in asked.items()}
    assert all(waits.beside[request] for request in asked["beside"]), "the flood lasted"
    assert median(found["beside"]) <= 2 * median(found["alone"]), found
    assert median(found["behind"]) > 2 * median(found["alone"]), "in one account whoever comes first goes first"
    server.event_logs.finish()
