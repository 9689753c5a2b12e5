"""Every metric that is exported moves, for each value of its labels but the names of workers and models: a server is put
through all that can happen, and scraped before, meanwhile and after.

What nothing here moves fails the test, whoever adds it: give it a mover. To appear is no move, unless a counter appears with
more than the 0 that it had while it was not there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from blockwright.actors.batches.actor import figures_of
from blockwright.actors.block.actor import ANSWER
from blockwright.actors.controller.view import placement_view
from blockwright.actors.gateway.port import DraftCounts, StreamProgress, TierFigures
from blockwright.actors.gateway.tagging import Tagging
from blockwright.actors.predictor.messages import Query
from blockwright.actors.worker.messages import ParametersWanted
from blockwright.api.http.cluster_metrics import COUNTERS, SWEEP_SIZE
from blockwright.api.http.metrics import Metrics
from blockwright.gpu.cuda.platforms import MIRROR
from blockwright.policies.adaptive.similarity import Similarity
from blockwright.policies.control.drop_events import MemoryLacks, RestoreParameters
from blockwright.policies.control.drops_view import overload_view
from blockwright.policies.control.events import BorderTraffic, LoadFailed, LoadRefused, TrafficCounted
from blockwright.policies.control.loads import NoCapacity
from blockwright.policies.drafts.options import MODEL, TIER
from blockwright.policies.offline.density import Costs
from blockwright.policies.offline.feed import OfflineFeed, OfflineRequest
from blockwright.policies.offline.prefix_tree import packed
from blockwright.policies.plan.sampling import SamplingParams, TokenRules
from blockwright.policies.prediction.candidate import Candidate, Forecast
from blockwright.policies.requests.book.dispatch_messages import Chosen
from blockwright.policies.requests.book.lengths import Lengths
from blockwright.policies.requests.book.messages import WorkerJoined
from blockwright.policies.requests.book.queue_position import QueuePositions
from blockwright.policies.requests.urgency import offline_urgency, urgency
from blockwright.policies.sweep.events import Cancelled
from blockwright.tests.actors.predictor_rig import PredictorRig
from blockwright.tests.actors.test_component_sources import Hosts, damage
from blockwright.tests.actors.test_worker_parameters import fetch, pair
from blockwright.tests.actors.worker_rig import Rig
from blockwright.tests.claims import claim
from blockwright.tests.docs.metrics_page import row, rows
from blockwright.tests.equality.served import Served, serve
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.policies.control.test_controller_overload import PAIR, Burst
from blockwright.tests.policies.control.test_relocations import Crossed
from blockwright.tests.policies.control.test_scaling import LATE, Fleet
from blockwright.tests.policies.requests.book.gateway_bench import Bench, emitted, progressed, route
from blockwright.tests.policies.requests.book.test_moving import Mover, whole
from blockwright.tests.policies.sweep_world import World, chain, replica, submission
from blockwright.tests.policies.test_compaction import play
from blockwright.tests.waiting import until
from blockwright.tests.zoo.served_folder import served_folder
from blockwright.zoo.add import add

BASE = chain("base", 2)
PROMPT = list(prompt_of(60))
NAMES = {"worker", "engine", "model_name"}
STILL = {  # what is set, and never changes
    "blockwright:worker_memory_bytes use=budget",
    "blockwright:tenant_weight tenant=m",
    "blockwright:tenant_weight tenant=n",
    "blockwright:tenant_limit limit=requests_per_minute tenant=",
}
Seen = dict[str, dict[str, set[float]]]  # metric with its labels but names -> sample with all its labels -> values
documented: dict[str, str] = {}  # metric -> its row of the page


def note(seen: Seen, text: str) -> None:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if family.name.startswith("vllm:"):
                assert sample.labels.get("model_name") in ("m", "n"), f"vLLM's dashboards do not find {sample}"
            if sample.name.endswith(("_created", "_bucket")):
                continue
            labels = sorted(f"{name}={value}" for name, value in sample.labels.items() if name not in NAMES)
            one = seen.setdefault(" ".join([sample.name, *labels]), {}).setdefault(str(sample.labels), set())
            one |= {sample.value, *([0.0] if family.type in ("counter", "histogram") else [])}
        if family.samples:
            documented[family.name] = row(family)


async def scrape(server: Served, seen: Seen) -> None:
    async with server.session.get(f"{server.url}/metrics") as answer:
        note(seen, await answer.text())


async def post(server: Served, **fields: Any) -> int:
    body = {"model": "m", "prompt": PROMPT, "temperature": 0, **fields}
    async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
        await answer.read()
        return answer.status


async def busy(server: Served, seen: Seen) -> None:
    """More sequences than fit: equal prompts that wait for each other, others that push each other out."""
    asked = [server.complete(list(prompt_of(70)), 40, n=2), server.complete(list(prompt_of(70)), 9)]
    asked += [server.complete(list(prompt_of(60, i)), 100, model="n") for i in range(6)]
    tasks = [asyncio.ensure_future(one) for one in asked]
    while not all(task.done() for task in tasks):
        await scrape(server, seen)
        await asyncio.sleep(0.02)  # let it work between two looks
    await asyncio.gather(*tasks)


async def drafted(server: Served, seen: Seen) -> None:
    """Answers of equal tokens, which drafts guess by the text so far and by a prediction."""
    body = {"model": "m", "prompt": "a" * 12, "add_special_tokens": False}
    async with server.session.post(f"{server.url}/tokenize", json=body) as answer:
        tokens = (await answer.json())["tokens"]
    predicted = {"prediction": {"type": "content", "content": body["prompt"]}}
    for asked in ({"draft": "prompt"}, predicted):
        assert await post(server, max_tokens=12, allowed_token_ids=tokens[-1:], draft_tokens=2, **asked) == 200
    await scrape(server, seen)


async def together(server: Served, seen: Seen) -> None:
    """Two sequences that hold the same pages at this moment."""
    active = server.running.port.book.parts.active
    tasks = [asyncio.ensure_future(server.complete(PROMPT, 250)) for _ in range(2)]
    await server.running.port.until(lambda: [r.progress.emitted > 0 for r in active.values()] == [True, True])
    await scrape(server, seen)
    await asyncio.gather(*tasks)


async def gone(server: Served) -> None:
    """A client that leaves in the middle."""
    task = asyncio.ensure_future(server.complete(PROMPT, 400, request_id="gone"))
    await server.until_seen("gone")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await server.running.port.until(lambda: not server.running.port.book.parts.active)


async def expected(server: Served, seen: Seen) -> None:
    """Answers whose length was estimated, by what others had; and a gateway whose tagger is not there."""
    figures = server.running.port.lengths().accuracy

    async def estimated() -> bool:
        return await post(server, max_tokens=20) == 200 and figures.error > 0

    await until(estimated)
    await scrape(server, seen)
    alone = Lengths(wanted=True)
    tagging = Tagging(alone, "head/nobody")
    tagging.tick(server.running.cluster.node)
    await until(lambda: alone.figures.unanswered)
    note(seen, Metrics(dict, lengths=lambda: alone.figures).render({}).decode())


async def refused(seen: Seen, checkpoint: Path, profile: Path) -> None:
    """A worker refuses what it can never hold and ends what is late; a gateway refuses both itself, so this one is asked
    without. Its device is a card's twin, which leaves a rule about repeats to the host."""
    rig = await Rig.start([checkpoint], backend=MIRROR, memory=2 << 20, profile=str(profile))
    try:
        for _ in range(2):
            counters = (await rig.worker.status()).counters
            note(seen, Metrics(dict).render({"workers": [{"id": "w0", "counters": counters}]}).decode())
            assert {name for name in counters if not SWEEP_SIZE.fullmatch(name)} == set(COUNTERS)
            await rig.submit("r", PROMPT, 100_000)
            await rig.finish("r")
            await rig.submit("late", PROMPT, 100, expires=1e-9)
            await rig.finish("late")
            await rig.submit("rules", PROMPT, 2, sampling=SamplingParams(rules=TokenRules(no_repeat=1)))
            await rig.finish("rules")
            await rig.quiet()
        counters = (await rig.worker.status()).counters
        note(seen, Metrics(dict).render({"workers": [{"id": "w0", "counters": counters}]}).decode())
    finally:
        await rig.stop()


async def predicted(seen: Seen) -> None:
    """A predictor that begins, forecasts, disagrees and begins anew."""
    figures = []
    async with PredictorRig() as rig:
        route = rig.worker.driver.route.id
        new = submission("new", [1, 2, 3], 9, route)
        figures.append(rig.predictor.figures())
        for _ in range(2):
            await rig.ref.ask(Query(new, route))
        await rig.ref.placed(new)
        figures.append(rig.predictor.figures())
        rig.worker.driver.submit(4)
        rig.worker.state.apply(Cancelled("r0"), rig.worker.driver.now)
        rig.worker.driver.turn()
        await until(lambda: not rig.predictor.figures()["replica"])
        figures.append(rig.predictor.figures())
        await rig.follows()
        figures.append(rig.predictor.figures())
    for known in figures:
        note(seen, Metrics(dict).render({"workers": [{"id": "w0", "predictor": known}]}).decode())


def deadly(seen: Seen) -> None:
    """Two requests at two deaths of the only worker: without one both wait for it, with one the first runs alone."""
    bench = Bench("w0")
    queue = QueuePositions(bench.state.parts.active, bench.state.parts.table)
    for name in "ab":
        bench.generate(name)
    for incarnation in (1, 2):
        bench.report("w0", *[progressed(name, incarnation, 1, 0) for name in "ab"], incarnation=incarnation)
        note(seen, Metrics(queue.census).render({}).decode())
        bench.die("w0", back=False)
        note(seen, Metrics(queue.census).render({}).decode())
        bench(WorkerJoined("w0", incarnation + 1))
        bench.publish([route("w0")])
    note(seen, Metrics(queue.census).render({}).decode())


def chosen(seen: Seen) -> None:
    """Requests that dispatchers and predictors answer, or not."""
    bench = Bench("w0", "w1", asks=True)
    metrics = Metrics(dict, dispatching=lambda: bench.state.parts.asking.figures)
    note(seen, metrics.render({}).decode())
    forecast = Candidate(route="m@w1", home="w1", forecast=Forecast(1.0, 2.0, 0.0, 0, 1))
    silent = {"late": 1, "dead": 1, "absent": 1}
    late = ["no_answer", "dispatcher_late", "dispatcher_dead", "route_gone"]
    for number, reason in enumerate(["", "no_forecast", "poor_estimates", *late]):
        name, route = f"r{number}", {"route_gone": "m@w2", "": "m@w1"}.get(reason, "")
        bench.generate(name, max_tokens=1)
        said = "" if reason == "route_gone" else reason
        compared = {"candidates": [forecast], "loads": [[2.0]], "rank": 1, "ranked": 2, "unanswered": silent}
        bench(Chosen(request=name, attempt=1, route=route, reason=said, **compared), now=1.0)
        bench.report(bench.state.parts.active[name].placement.workers[0], emitted(name, 1, 5, [8], finish="length"), now=3.0)
    note(seen, metrics.render({}).decode())


def moved(seen: Seen) -> None:
    """Sequences that move: with their pages, where there is no room for them, and not at all."""
    where = World(["w0", "w1"], [BASE], [replica("w0", BASE), replica("w1", BASE)], budget=12 << 16)

    def scraped() -> None:
        workers = [{"id": name, "counters": worker.state.counters} for name, worker in where.workers.items()]
        note(seen, Metrics(dict).render({"workers": workers}).decode())

    scraped()
    for name, others in (("r", 0), ("s", 28)):
        where.submit(submission(f"other {name}", PROMPT[:16], 47, "base@w1"))
        where.submit(submission(name, PROMPT[1:17], 40, "base@w0"))
        for worker, turns in (("w0", 6), ("w1", others)):
            for _ in range(turns):
                where.start_plan(where.workers[worker])
                where.end_plan(where.workers[worker])
        where.move(name, "base@w1")
        where.run()
        scraped()
    for ends in ("copied", "recomputed", "abandoned"):
        mover = Mover(whole("w1"))
        metrics = Metrics(dict, moves=lambda mover=mover: mover.state.parts.claims.figures)  # type: ignore[misc]
        note(seen, metrics.render({}).decode())
        mover.move()
        if ends == "abandoned":
            mover.die("w1", back=False)
        else:
            mover.report("w1", progressed("r", 2, 8, 8 if ends == "copied" else 0), emitted("r", 2, 10, [0]))
        note(seen, metrics.render({}).decode())


def relocated(seen: Seen) -> None:
    """A model that comes together where its traffic is; another time its worker dies meanwhile."""
    for dies in (False, True):
        world = Crossed()

        def scraped(world: Crossed = world) -> None:
            view = {"placement": placement_view(world.state, 0.0, 0.0)}
            note(seen, Metrics(dict).render(view).decode())

        scraped()
        world.manual = dies
        world(TrafficCounted("w0", 1, {}, (BorderTraffic("a", 3, "w1", 2, 20, 640),)))
        world.pass_through(world.spread())
        if dies:
            world.down("w0")
            world.down("w1")
        scraped()


def blended(seen: Seen) -> None:
    """An offline request computes, and goes back when others need its memory."""
    where = World(["w0"], [BASE], [replica("w0", BASE)], budget=12 << 16)
    state = where.workers["w0"].state

    def scraped() -> None:
        note(seen, Metrics(dict).render({"workers": [{"id": "w0", "counters": state.counters}]}).decode())

    scraped()
    where.submit(submission("offline", PROMPT[:16], 40, "base@w0", priority=offline_urgency(), tenant=":left"))
    where.start_plan(where.workers["w0"])
    where.end_plan(where.workers["w0"])
    scraped()
    where.submit(submission("online", PROMPT[1:33], 47, "base@w0"))
    where.run()
    scraped()


def classed(seen: Seen) -> None:
    """An urgent request takes the row of another, and one that waits longer than that rises."""
    where = World(["w0"], [BASE], [replica("w0", BASE)], max_rows=1)

    def scraped() -> None:
        counters = where.workers["w0"].state.counters
        note(seen, Metrics(dict).render({"workers": [{"id": "w0", "counters": counters}]}).decode())

    scraped()
    where.submit(submission("batch", PROMPT[:9], 40, "base@w0", priority=urgency("flex", 0)))
    where.start_plan(where.workers["w0"])
    where.submit(submission("normal", PROMPT[1:9], 12, "base@w0"))
    where.submit(submission("urgent", PROMPT[2:9], 12, "base@w0", priority=urgency("priority", 0)))
    where.now = 10.0
    where.run()
    scraped()


def batched(seen: Seen) -> None:
    """A batch that begins, has lines given back, goes on and ends."""
    requests = [OfflineRequest(prompt=packed([1] * 8 + [n] * (n % 5 + 1)), limit=9) for n in range(12)]
    draws = [0.0 if n == 3 else 1.0 for n in range(12)]
    feed = OfflineFeed(requests, Costs(token=1e-3, attend=0.0, read=1e-5), draws=draws)
    metrics, now = Metrics(dict), 0.0

    def scraped() -> None:
        metrics.batches = lambda: [figures_of({"m": feed.progress(now)})]
        note(seen, metrics.render({}).decode())

    scraped()
    feed.joined("w0", 60)
    while not feed.over:
        scraped()
        placed = feed.pull("w0", 3, 60.0)
        scraped()
        if not feed.progress(now).given_back:
            feed.given_back(placed.pop().request)
        for one in placed:
            now += 1.0
            feed.finished(one.request, 4, cached=4)
        if feed.stale:
            feed.settle()
    for model in ("m", "n"):
        metrics.begin(model, 9, 1, 4, offline=True)
        scraped()
        metrics.begin(model, 9, 1, 4, offline=True).began(StreamProgress(prompt=9), looked=False, first=True)
    scraped()
    other = OfflineFeed(requests[:5], Costs(token=1e-3, attend=0.0, read=1e-5), draws=draws[:5])
    metrics.batches = lambda: [figures_of({"m": other.progress(0.0)})]
    note(seen, metrics.render({}).decode())


def tiered(seen: Seen) -> None:
    """Requests that chose a tier, that a variant served or that changed their chain, drafts by a tier, hidden states: other
    tests serve them."""
    scores = {("m", "m~1"): Similarity(1, 4, 3, -2.0)}
    metrics = Metrics(dict, tiers=lambda: TierFigures({("m", "m:1"): 1}, {("m", "m~1"): 1}, {("m", "gain"): 1}, scores))
    counts = DraftCounts(rounds=2, drafted=4, accepted=3)
    for drafts in ({}, {TIER: counts, MODEL: counts}):
        metrics.begin("m", 9, 1, 4).close(complete=True, sequences=[StreamProgress(drafts=drafts)])
        note(seen, metrics.render({}).decode())
    for count in (0, 3):
        figures = {"hidden_pages": count, "hidden_bytes": 512 * count, "entered_tokens": 8 * count}
        figures |= {"redundant_pages": count}  # another worker has them, too
        figures |= {"short_sweeps": count, "rows_sat_out": 2 * count}
        segments = [{"family": "m", "first": 1, "last": 3, "sweeps": count, "rows": 2 * count}]
        note(seen, Metrics(dict).render({"workers": [{"id": "w0", "counters": figures, "segments": segments}]}).decode())


def scaled(seen: Seen) -> None:
    """A worker that comes and goes with the load."""
    fleet = Fleet()

    def scraped(now: float) -> None:
        note(seen, Metrics(dict).render({"autoscale": fleet.state.scaling.view(now, now)}).decode())

    scraped(1.0)
    fleet(LATE, 1.0)
    scraped(1.0)
    fleet.up("w1", 2.0)
    scraped(2.0)
    fleet.calm(100.0)
    fleet.calm(200.0)
    scraped(200.0)


def dropped(seen: Seen) -> None:
    """Parameters that are dropped, trimmed, restored, wanted in vain, and whose holder dies."""
    burst = Burst("w0", "w1")

    def scraped() -> None:
        view = overload_view(burst.state.overload, burst.state.served, burst.state.workers, 0.0, 0.0)
        note(seen, Metrics(dict).render({"overload": view}).decode())

    scraped()
    burst.order(PAIR)
    scraped()
    burst.left()
    burst.switched()
    burst.manual = True
    for order in (RestoreParameters("w0+w1", {}), PAIR, PAIR):
        burst.order(order)
        scraped()
    burst(MemoryLacks(700, "a burst"))
    burst.order(RestoreParameters("w0+w1", {}))
    load, life = burst.state.residency["w0"].loading, burst.state.workers["w0"].incarnation
    assert load is not None
    burst(LoadRefused("w0", life, load, NoCapacity("no room", 300, False, {"a": 300})))
    burst(LoadFailed("w0", life, load, "disk"))
    burst.down("w1")
    scraped()


async def fetched(seen: Seen, checkpoint: Path, folder: Path) -> None:
    """Parameters that come from nobody, and then from another worker."""
    first, second = await pair(checkpoint, folder, "torch")
    send = first.worker._parameters.send

    def scraped() -> None:
        both = [("w0", first.worker), ("w1", second.worker)]
        workers = [{"id": name, "counters": one._parameters.counters()} for name, one in both]
        note(seen, Metrics(dict).render({"workers": workers}).decode())

    def sent(wanted: ParametersWanted) -> None:
        send(wanted)
        scraped()

    first.worker._parameters.send = sent  # type: ignore[method-assign]
    try:
        scraped()
        await fetch(second, first, "w7")
        await second.publish([])
        await second.ref.unload("a", first.loads["a"].ids)
        await fetch(second, first)
        scraped()
    finally:
        await first.stop()
        await second.stop()


async def by_hash(seen: Seen, checkpoint: Path, folder: Path) -> None:
    """Parameters that come from an origin, into a store that is too small and is damaged, and last from the store."""
    add(folder / "zoo", str(checkpoint), "m")
    with served_folder(folder / "zoo") as origin:
        hosts = Hosts(checkpoint, folder, origin)
        for worker, size in (("w8", 200_000), ("w9", 0)):
            rig = await hosts.start(worker, store="w8", store_size=size)
            note(
                seen, Metrics(dict).render({"workers": [{"id": worker, "counters": await hosts.counters(worker)}]}).decode()
            )
            await rig.ref.load(hosts.block([]), returns=ANSWER, timeout=60)
            note(
                seen, Metrics(dict).render({"workers": [{"id": worker, "counters": await hosts.counters(worker)}]}).decode()
            )
            damage(folder / "store w8")
        await hosts.stop()


@claim("Every exported metric is moved by a test and documented", of="observability")
async def test_every_exported_metric_moves(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    path = checkpoint("llama")
    seen = Seen()
    profile = tmp_path / "profile.json"
    profile.write_text('{"coefficients": {"base": 1e-3}}')
    settings: dict[str, Any] = {"memory": 22 << 16, "chunk_size": 16, "max_rows": 6, "sweep_tokens": 64}
    settings |= {
        "requests_per_minute": {"*": 600},  # each counts for a tenth of a second, so that a look finds it
        "tenant_kv_share": {"n": 0.6},
        "profile": str(profile),
        "tagger": "history",
        "forced": "on",
    }
    async with serve({"m": path, "n": path}, **settings) as server:
        await scrape(server, seen)
        assert await post(server, max_tokens=3, stop_token_ids=list(range(3, 300)), min_tokens=2) == 200
        await busy(server, seen)
        await drafted(server, seen)
        assert await post(server, max_tokens=12, structured_outputs={"choice": ["aaaaaaaa"]}) == 200
        await scrape(server, seen)
        await together(server, seen)
        await expected(server, seen)
        await gone(server)
        await server.running.controller.undeploy("n")
        await scrape(server, seen)
        await server.running.port.drain(0.01)
        assert await post(server) == 503
        await scrape(server, seen)
        await server.running.controller.undeploy("m")
        while (await server.cluster())["workers"][0]["memory"]["parameters"]:
            await scrape(server, seen)  # until its worker has given the memory back
        await scrape(server, seen)
    await refused(seen, path, profile)
    deadly(seen)
    chosen(seen)
    tiered(seen)
    scaled(seen)
    moved(seen)
    relocated(seen)
    blended(seen)
    classed(seen)
    batched(seen)
    dropped(seen)
    await predicted(seen)
    await fetched(seen, path, tmp_path)
    await by_hash(seen, path, tmp_path / "by hash")
    note(seen, Metrics(dict).render({"workers": [{"id": "w0", "counters": play(0)}]}).decode())  # slots move together
    assert len(seen) > 60
    assert {name for name, samples in seen.items() if max(map(len, samples.values())) < 2} == STILL
    assert sorted([*rows(":"), *rows("http_requests_total")]) == sorted(documented.values()), (
        "docs/metrics.md tells every metric as it is exported"
    )
