"""A cluster from its settings, over the real runtime in one process, with workers that compute no tensors."""

import asyncio
import contextlib

import pytest

from blockwright.actors.settings.errors import SettingsError, StartError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.topology import Http, start
from blockwright.gpu.errors import CheckpointError
from blockwright.policies.requests.book.sweep_report import SweepReport
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.actors import fake_worker
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import generation, reference
from blockwright.tests.waiting import PATIENCE

ENTRY = "blockwright.tests.actors.fake_worker:start"
GATEWAY_ENTRY = "blockwright.tests.actors.fake_worker:start_gateway"


@contextlib.asynccontextmanager
async def cluster(applications, *, ready=True, http=None, **settings):
    settings = {"memory": 1 << 30, "heartbeat": 0.02, "silence": PATIENCE, **settings}
    running = await start(
        Settings(applications={name: str(path) for name, path in applications.items()}, **settings),
        http=http,
        in_process=True,
        worker_entry=ENTRY,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            if ready:
                await running.ready(whole=True)
            yield running
    finally:
        await running.stop()


class Quiet:
    """A front that nobody asks."""

    retry_window = 0.0


@pytest.fixture(autouse=True)
def fate():
    return fake_worker.reset()


async def collect(stream):
    tokens, finish = [], ""
    async for delta in stream:
        tokens += delta.tokens
        finish = delta.finish
    return tokens, finish


async def test_requests_are_served_on_replicas(checkpoint):
    async with cluster({"m": checkpoint()}, workers=2) as running:
        assert running.port.ready().ready
        (model,) = running.port.models()
        assert (model.id, model.max_length, model.ready) == ("m", 512, True)
        asked = [generation(f"r{i}", prompt=5 + i, max_tokens=9) for i in range(8)]
        answers = await asyncio.gather(*[collect(running.port.generate(g)) for g in asked])
        assert answers == [(reference(g), "length") for g in asked]
        assert {running.port.describe(g.id).home for g in asked} == {"w0", "w1"}
        assert running.stages[0][0] == "checkpoints opened"
        assert {name for name, _ in running.stages} == {"checkpoints opened", "hashed", "workers up", "loaded"}


async def test_a_pipeline_has_its_hops_on_its_workers(checkpoint, fate):
    async with cluster({"m": checkpoint()}, workers=2, pipeline=2) as running:
        view = await running.port.cluster()
        (route,) = view["routes"]
        assert [hop["worker"] for hop in route["hops"]] == ["w0", "w1"]
        assert len(fate.workers["w0"].held) + len(fate.workers["w1"].held) == 8, (
            "embedding, three layers of two, head: each once"
        )
        g = generation()
        assert await collect(running.port.generate(g)) == (reference(g), "length")


@claim("A W3C trace context goes from the client to the workers", of="observability")
async def test_the_trace_of_a_request_reaches_its_workers(checkpoint, fate):
    """Every attempt, also those that no client waits in."""
    async with cluster({"m": checkpoint()}, workers=1) as running:
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        traced = generation("a", trace=f"00-{trace_id}-b7ad6b7169203331-01", max_tokens=40)
        fate.hold = asyncio.Event()
        streams = [asyncio.create_task(collect(running.port.generate(g))) for g in (traced, generation("b"))]
        await running.port.until(lambda: len(fate.traces) == 2)
        running.launcher.kill(running.cluster.members()["w0"].id)
        await running.port.until(lambda: len(fate.traces) == 4)
        fate.hold.set()
        await asyncio.gather(*streams)
    assert sorted((name, trace[3:35]) for name, trace in fate.traces) == [("a", trace_id)] * 2 + [("b", "")] * 2


@pytest.mark.parametrize("how", ["cancelled", "clients gone", "stopped"])
async def test_a_crowd_that_leaves_is_one_message_for_each_worker(checkpoint, fate, how):
    requests, choices = 25, 64
    async with cluster({"m": checkpoint()}, workers=2) as running:
        fate.hold = asyncio.Event()
        asked = [generation(f"r{i}/{c}" if c else f"r{i}") for i in range(requests) for c in range(choices)]
        streams = [running.port.generate(g) for g in asked]
        await running.port.until(lambda: sum(fate.running.values()) == len(asked))
        if how == "cancelled":
            assert all(running.port.cancel(f"r{i}") for i in range(requests))
        for stream in streams:
            if how != "cancelled":
                stream.cancel() if how == "clients gone" else stream.stop()
        assert not running.port.book.parts.active
        await running.port.until(lambda: sum(fate.running.values()) == 0)
        assert len(fate.cancels) == 2, "1,600 of them would not have fitted the mailbox of 1,024"
        assert sum(fate.cancels) == len(asked)


@pytest.mark.parametrize("pipeline", [1, 2])
async def test_every_stream_survives_the_death_of_a_worker(checkpoint, fate, pipeline):
    async with cluster({"m": checkpoint()}, workers=2, pipeline=pipeline) as running:
        fate.hold = asyncio.Event()
        asked = [generation(f"r{i}", prompt=9, max_tokens=30) for i in range(6)]
        streams = [asyncio.create_task(collect(running.port.generate(g))) for g in asked]
        await asyncio.sleep(0)
        fate.hold.set()
        await running.port.until(lambda: any(running.port.describe(g.id).emitted_tokens > 3 for g in asked))
        running.launcher.kill(running.cluster.members()["w0"].id)  # as from outside: nobody here knows
        assert await asyncio.gather(*streams) == [(reference(g), "length") for g in asked]
        assert any(running.port.describe(g.id).attempt > 1 for g in asked)
        await running.ready(whole=True)
        assert (await running.port.cluster())["workers"][0]["restarts"] == 1


async def test_a_stalled_worker_is_replaced(checkpoint, fate):
    async with cluster({"m": checkpoint()}, workers=1, stall_timeout=10.0) as running:
        fate.stalled.add("w0")
        await running.progress.until(lambda progress: not progress.whole)
        fate.stalled.clear()
        await running.ready(whole=True)
        (worker,) = (await running.port.cluster())["workers"]
        assert (worker["cause"], worker["incarnation"], worker["restarts"]) == ("stalled", 2, 1)


async def test_requests_for_what_can_never_be_loaded_do_not_wait(checkpoint, fate):
    fate.room = 0
    async with cluster({"m": checkpoint()}, ready=False, workers=1, worker_wait=3600.0) as running:
        with pytest.raises(RequestRefused, match="'m' cannot be loaded: worker w0: component needs 9 bytes") as caught:
            await collect(running.port.generate(generation()))
        assert (caught.value.why, caught.value.retry_after) == (Refusal.UNAVAILABLE, None)


async def test_what_does_not_fit_is_said_in_one_sentence(checkpoint, fate):
    fate.room = 3
    async with cluster({"m": checkpoint()}, ready=False, workers=1) as running:
        with pytest.raises(StartError, match="worker w0 cannot load m: component needs 9 bytes and worker w0 has 8 left"):
            await running.ready()
        assert not running.port.ready().ready


async def test_undeploy_unloads_and_deploy_serves_again(checkpoint, fate):
    async with cluster({"a": checkpoint(), "b": checkpoint(seed=1)}, workers=1) as running:
        await running.controller.undeploy("b")
        assert fate.unloaded == [("w0", "b", 8)]
        await running.port.until(lambda: [m.id for m in running.port.models()] == ["a"])
        with pytest.raises(RequestRefused, match="'b' does not exist; there are: a"):
            running.port.generate(generation(application="b"))
        await running.controller.deploy("b")
        await running.ready(whole=True)
        g = generation(application="b")
        assert await collect(running.port.generate(g)) == (reference(g), "length")


async def test_a_copy_is_one_block_and_shares_all_bytes(checkpoint):
    async with cluster({"a": checkpoint(), "copy": checkpoint()}, workers=1) as running:
        applications = (await running.port.cluster())["applications"]
        assert applications["a"]["blocks"] == applications["copy"]["blocks"]
        assert applications["copy"]["bytes"]["own"] == 0
        assert applications["copy"]["bytes"]["shared"] > 0
        stored, saved = await running.sharing()
        assert stored > 0
        assert saved > 0
    assert await running.sharing() == (0, 0), "a controller that is busy, or gone, keeps no server from being ready"


async def test_cancel_and_stop_end_streams(checkpoint, fate):
    async with cluster({"m": checkpoint()}, workers=1) as running:
        fate.hold = asyncio.Event()
        streams = [running.port.generate(generation(f"r{i}")) for i in range(2)]
        streams[0].cancel()
        streams[0].cancel()
        streams[1].stop()
        assert await asyncio.gather(*[collect(s) for s in streams]) == [([], ""), ([], "")]
        assert [running.port.describe(f"r{i}").state for i in range(2)] == ["cancelled", "finished"]


async def test_drain_lets_running_requests_finish_and_ends_what_takes_too_long(checkpoint, fate):
    async with cluster({"m": checkpoint()}, workers=1) as running:
        g = generation()
        answer = asyncio.create_task(collect(running.port.generate(g)))
        await asyncio.sleep(0)
        await running.port.drain(PATIENCE)
        assert await answer == (reference(g), "length")
        with pytest.raises(RequestRefused, match="shutting down"):
            running.port.generate(generation("late"))
    fake_worker.reset().hold = asyncio.Event()
    async with cluster({"m": checkpoint()}, workers=1) as running:
        answer = asyncio.create_task(collect(running.port.generate(generation())))
        await asyncio.sleep(0)
        await running.port.drain(0.01)
        with pytest.raises(RequestRefused, match="shut down before"):
            await answer


async def test_what_cannot_be_served_is_refused_before_anything_starts(checkpoint, tmp_path):
    with pytest.raises(SettingsError, match="applications is empty"):
        await start(Settings(), in_process=True)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        await start(Settings(applications={"m": str(tmp_path)}), in_process=True)
    with pytest.raises(SettingsError, match="max_model_len is 600"):
        await start(Settings(applications={"m": str(checkpoint())}, max_model_len=600), in_process=True)


async def test_a_chain_shorter_than_its_pipeline_is_said(checkpoint):
    settings = {"workers": 9, "pipeline": 9}
    async with cluster({"m": checkpoint()}, ready=False, **settings) as running:
        with pytest.raises(StartError, match="8 components cannot be spread over 9 workers"):
            await running.ready()


@pytest.mark.parametrize("name", ["pace", "profile"])
@pytest.mark.parametrize(
    ("content", "says"), [(None, "No such file"), ("{", "Expecting"), ('{"token": -1}', "token in the pace table is -1")]
)
async def test_a_cost_file_that_cannot_be_used_is_refused_before_any_worker_starts(
    checkpoint, tmp_path, name, content, says
):
    path = tmp_path / "pace.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=f"{name}: .*{says}"):
        await start(Settings(applications={"m": str(checkpoint())}, **{name: str(path)}), worker_entry=ENTRY)


def test_a_device_of_another_name_is_refused():
    for wrong in ("cuda:x", "cuda1", "gpu", "cuda-interpreted", ""):
        with pytest.raises(SettingsError, match=rf"device is '{wrong}'; choose cpu, cuda, cuda:1 .* or auto"):
            Settings(applications={"m": "x"}, device=wrong)
    for device in ("cuda", "cuda:1", "auto", "cuda-mirror"):
        Settings(applications={"m": "x"}, device=device)
    for more in ({"backend": "torch"}, {"instruction_set": "avx2"}):
        with pytest.raises(SettingsError, match=r"device is 'cuda', but .* is of the CPU; leave it out, or"):
            Settings(applications={"m": "x"}, device="cuda", **more)
        Settings(applications={"m": "x"}, device="auto", **more)
    with pytest.raises(SettingsError, match=r"bits is 'fast', which is of a card, but device is 'cpu'; leave it out"):
        Settings(applications={"m": "x"}, bits="fast")
    for device in ("cuda", "cuda-mirror", "auto"):
        Settings(applications={"m": "x"}, device=device, bits="fast")


async def test_gateways_share_the_places_of_the_server_by_need(checkpoint, fate):
    limits = {"gateways": 2, "gateway_in_head": "yes", "max_waiting": 10}
    async with cluster({"m": checkpoint()}, workers=1, http=Http(Quiet(), 0, GATEWAY_ENTRY), **limits) as running:
        fate.hold = asyncio.Event()
        await running.answering.until(bool)
        head, other = running.port, fate.gateways["g1"]

        def fill(gateway, name):
            with contextlib.suppress(RequestRefused):
                while True:
                    gateway.generate(generation(f"{name}{len(gateway.book.parts.active)}"))
            return len(gateway.book.parts.active)

        async def filled(gateway, name, count):
            while fill(gateway, name) < count:
                await gateway.until(lambda: gateway.book.parts.overload.limit > len(gateway.book.parts.active))
            return fill(gateway, name)

        assert fill(head, "a") == 5, "half of them at first"
        assert await filled(head, "b", 10) == 10
        await other.until(lambda: other.book.parts.overload.limit == 0)
        assert fill(other, "c") == 0, "the head has all"
        head.cancel("a0")
        assert await filled(other, "d", 1) == 1
        await head.until(lambda: head.book.parts.overload.limit == 9)
        assert fill(head, "e") == 9
        await running.cluster.kill("g1")
        assert await filled(head, "f", 10) == 10


async def test_reports_of_many_sweeps_at_once_find_room(checkpoint):
    async with cluster({"m": checkpoint()}, workers=1) as running:
        gateway = running.cluster.node.ref("head/gateway")
        for serial in range(5000):
            gateway.tokens.cast(SweepReport("w9", 1, serial, serial, []))
        await running.port.until(lambda: True)
        assert running.cluster.node.dead_letters["MailboxFull"] == 0
