"""The worker actor with real tensors: tokens equal to transformers', memory that rises and falls, reports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from blockwright.actors.worker import actor
from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import SweepPlan
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.events import TokensEmitted
from blockwright.runtime import Node
from blockwright.tests.actors.worker_rig import Ear, Record, Rig
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.memory import arena_bytes
from blockwright.tests.parts import some
from blockwright.tests.waiting import PATIENCE

Checkpoints = Callable[..., Path]


async def check_equal(rig: Rig, path: Path, lengths: list[int], new: int = 24, application: str = "a") -> None:
    prompts = {f"r{i}": prompt_of(n, seed=i) for i, n in enumerate(lengths)}
    for name, prompt in prompts.items():
        await rig.submit(name, list(prompt), new, application=application)
    for name, prompt in prompts.items():
        tokens = await rig.finish(name)
        reference = greedy(path, prompt, new)
        assert tokens[: len(reference)] == list(reference), f"{name} with a prompt of {len(prompt)}"
        assert len(tokens) == new
    await rig.quiet()


@pytest.mark.parametrize("backend", some(["torch", "native"], "native"))
@pytest.mark.parametrize(("page", "chunk"), [(16, 256), (8, 32), (5, 7)])
async def test_tokens_equal_the_reference(checkpoint: Checkpoints, backend: str, page: int, chunk: int) -> None:
    path = checkpoint("llama")
    rig = await Rig.start([path], backend=backend, page_size=page, chunk_size=chunk, max_rows=6)
    await check_equal(rig, path, [1, 2, page - 1, page, page + 1, min(3 * chunk + 1, 300), 40, 3])
    await rig.stop()


async def test_it_says_what_it_is_as_soon_as_it_has_routes(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that have tokens wait for its numerics."""
    sent: list[str] = []
    monkeypatch.setattr(Node, "send_heartbeat", lambda node: sent.append(node.heartbeat()["numerics"]))
    rig = await Rig.start([checkpoint("llama")])
    assert sent == [rig.worker.backend.numerics]
    await rig.publish()
    assert len(sent) == 1
    await rig.stop()


@claim("Preemption takes the sequence that loses the least work and changes no token", of="serving")
async def test_preemption_changes_no_token(checkpoint: Checkpoints) -> None:
    path = checkpoint("llama")
    rig = await Rig.start([path])
    parameters = (await rig.ref.status()).parameters
    await rig.stop()
    # two chunks hold 10 pages of 3 layers, the longest sequence takes 6
    rig = await Rig.start([path], memory=parameters + (2 << 16), chunk_size=32)
    await check_equal(rig, path, [60, 60, 60, 60], new=30)
    assert rig.worker.state.counters["preemptions"] > 0
    await rig.stop()


@claim("A seeded request gives the same text whatever else is in the batch", of="numerics", headline=True)
async def test_seeded_sampling_is_the_same_in_any_company(checkpoint: Checkpoints) -> None:
    rig = await Rig.start([checkpoint("llama")])
    params = SamplingParams(temperature=1.3, top_p=0.9, top_k=50, seed=7, repetition_penalty=1.1, presence_penalty=0.2)
    prompt = list(prompt_of(20))
    alone = await rig.generate("alone", prompt, 30, sampling=params)
    for i in range(5):
        await rig.submit(f"other{i}", list(prompt_of(9 + i, seed=i)), 40, sampling=SamplingParams(seed=i))
    assert await rig.generate("again", prompt, 30, sampling=params) == alone
    other = await rig.generate("seed", prompt, 30, sampling=SamplingParams(temperature=1.3, seed=8))
    assert other != alone
    await rig.stop()


async def test_a_copy_adds_no_bytes_and_an_upper_half_only_its_own(checkpoint: Checkpoints, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    base = checkpoint("llama")
    tuned = tmp_path / "tuned"
    tuned.mkdir()
    for file in base.iterdir():
        (tuned / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tuned / "model.safetensors")
    for name in tensors:
        if "layers.2" in name:
            tensors[name] = tensors[name] + 0.05 * torch.ones_like(tensors[name])
    save_file(tensors, tuned / "model.safetensors", metadata={"format": "pt"})
    rig = await Rig.start([base])
    free = rig.worker.state.parts.memory.free_bytes
    assert await rig.load("b", base) == 0
    own = await rig.load("c", tuned)
    assert 0 < own < rig.added["a"] / 2
    assert rig.worker.state.parts.memory.free_bytes < free
    await rig.publish()
    await check_equal(rig, base, [33, 18], application="a")
    shared = rig.worker.state.counters["shared_pages"]
    prompts = {"b": base, "c": tuned}
    for name, path in prompts.items():
        prompt = prompt_of(33, seed=0)
        reference = greedy(path, prompt, 24)
        assert (await rig.generate(f"{name}0", list(prompt), 24, application=name))[: len(reference)] == list(reference)
    assert rig.worker.state.counters["shared_pages"] >= shared + 4  # two pages each: b skips them, c shares their lower span
    await rig.quiet()
    await rig.stop()


@claim("An undeployed model returns its memory to the system", of="serving")
async def test_unloading_frees_what_the_system_sees(checkpoint: Checkpoints) -> None:
    rig = await Rig.start([checkpoint("llama", vocab_size=4000, hidden_size=256, intermediate_size=1024)], memory=64 << 20)
    await rig.generate("r0", list(prompt_of(200)), 8)
    await rig.quiet()
    status = await rig.ref.status()
    before = arena_bytes()
    block = rig.loads["a"]
    await rig.publish([], planned_too=True)
    freed = await rig.ref.unload("a", block.ids)
    await rig.worker.device.call(lambda ex: None)
    await rig.quiet()
    after = await rig.ref.status()
    assert after.parameters == 0
    assert after.kv == 0
    assert after.cached == 0
    assert freed == status.parameters + status.cached
    assert before - arena_bytes() == pytest.approx(freed, rel=0.05)  # but what was never written of the last chunks
    await rig.load("a", Path(block.checkpoint.folder))
    await rig.publish()
    assert (await rig.ref.status()).parameters == status.parameters
    await rig.stop()


@claim("A model that does not fit the memory is refused with the number of bytes that it needs", of="checkpoints")
async def test_too_little_memory_is_one_sentence_and_leaves_nothing(checkpoint: Checkpoints) -> None:
    rig = await Rig.start([])
    with pytest.raises(MemoryError, match=r"needs [\d.]+ MiB .* on worker w0, .* of its 16.0 MiB: [\d.]+ MiB are missing"):
        await rig.load("a", checkpoint("llama", vocab_size=30000, hidden_size=256))
    assert (await rig.ref.status()).parameters == 0
    await rig.quiet()
    await rig.stop()


async def test_cancelling_returns_the_memory(checkpoint: Checkpoints) -> None:
    rig = await Rig.start([checkpoint("llama")])
    await rig.submit("r0", list(prompt_of(50)), 400)
    while not rig.record.tokens["r0"]:
        rig.record.changed.clear()
        await rig.record.changed.wait()
    await rig.ref.cancel(["r0"])
    await rig.quiet()
    assert not rig.record.ended["r0"].done()
    assert rig.worker.state.parts.rows.free_rows
    await rig.stop()


async def test_one_message_ends_a_crowd(checkpoint: Checkpoints) -> None:
    rig = await Rig.start([checkpoint("llama")], max_rows=64)
    names = [f"r{i}" for i in range(1600)]
    for i, name in enumerate(names):
        await rig.submit(name, list(prompt_of(3, seed=i)), 400)
    while not rig.record.tokens["r0"]:
        rig.record.changed.clear()
        await rig.record.changed.wait()
    await rig.ref.cancel(names)
    await rig.quiet()
    status = await rig.ref.status()
    assert (status.waiting, status.running, rig.worker.state.parts.rows.free_rows) == (0, 0, 64)
    await rig.stop()


async def test_reports_are_numbered_and_kept_until_acknowledged(checkpoint: Checkpoints) -> None:
    rig = await Rig.start([checkpoint("llama")])
    await rig.generate("r0", list(prompt_of(5)), 10)
    serials = [report.serial for report in rig.record.reports]
    assert serials == list(range(1, len(serials) + 1))
    count = len(serials)
    rig.record.tokens["r0"], rig.record.ended["r0"] = [], asyncio.get_running_loop().create_future()
    await rig.ref.ack("w0/gateway", 3)
    await rig.ref.replay("w0/gateway", 1)
    await rig.finish("r0")
    assert [report.serial for report in rig.record.reports[count:]] == serials[3:]
    await rig.stop()


async def test_the_memory_is_checked_whenever_the_worker_is_idle(
    checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor, "IDLE_CHECK", 0.0)
    rig = await Rig.start([checkpoint("llama")], check=False)
    assert len(await rig.generate("r0", list(prompt_of(20)), 4)) == 4
    await rig.quiet()
    rig.worker.state.parts.rows._free_rows.pop()
    rig.record.expect("idle")
    await rig.ref.cancel(["nobody"])  # something happens, and then nothing
    with pytest.raises(AssertionError, match="a row is lost or owned twice"):
        await rig.finish("idle")
    await rig.stop()


@claim("A worker sends one message for all tokens of a sweep to each gateway", of="serving")
async def test_a_sweep_is_one_message_to_each_gateway(checkpoint: Checkpoints) -> None:
    rig = await Rig.start([checkpoint("llama")])
    other = Record()
    await rig.node.spawn(Ear(other), name="other")
    plans: list[SweepPlan] = []
    sweep = rig.worker.device.sweep
    rig.worker.device.sweep = lambda plan: (plans.append(plan), sweep(plan))[1]  # type: ignore[method-assign]
    for i in range(12):
        other.expect(f"r{i}")
        gateway = "w0/other" if i % 3 == 0 else "w0/gateway"
        await rig.submit(f"r{i}", list(prompt_of(5 + i, seed=i)), 10 + i, gateway=gateway)
    for i in range(12):
        async with asyncio.timeout(PATIENCE):
            await (other if i % 3 == 0 else rig.record).ended[f"r{i}"]
    await rig.quiet()
    for record, share in ((rig.record, 8), (other, 4)):
        events = [[news for news in report.news if isinstance(news, TokensEmitted)] for report in record.reports]
        telling = [news for news in events if news]
        assert sum(map(len, telling)) == sum(10 + i for i in range(12) if (i % 3 == 0) == (share == 4))
        assert len(telling) <= sum(1 for plan in plans if plan.sample), "a sweep was reported in two messages"
        assert max(map(len, telling)) == share, "the rows of a sweep are reported together"
        for emitted in telling:
            assert len({news.request for news in emitted}) == len(emitted)
    await rig.stop()


@claim("Sequences join and leave a worker between any two sweeps", of="serving")
async def test_32_that_join_late_and_leave_early(checkpoint: Checkpoints) -> None:
    """Each comes when the one before has tokens, every fourth is given up in the middle, the others end at lengths of their
    own: no two sweeps have the same company, and every token is the reference's."""
    path = checkpoint("llama")
    rig = await Rig.start([path], backend="auto", chunk_size=32, max_rows=32)
    sizes: set[int] = set()
    sweep = rig.worker.device.sweep
    rig.worker.device.sweep = lambda plan: (sizes.add(len(plan.row)), sweep(plan))[1]  # type: ignore[method-assign]
    prompts = {f"r{i}": prompt_of(3 + 7 * i % 90, seed=i) for i in range(32)}
    lengths = {name: 24 + 5 * i % 40 for i, name in enumerate(prompts)}
    leaving = list(prompts)[::4]

    async def has(name: str, tokens: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(rig.record.tokens[name]) < tokens:
                rig.record.changed.clear()
                await rig.record.changed.wait()

    for i, (name, prompt) in enumerate(prompts.items()):
        await rig.submit(name, list(prompt), 400 if name in leaving else lengths[name])
        await has(name, 1)
        if i >= 6 and (gone := f"r{i - 6}") in leaving:
            await rig.ref.cancel([gone])
    for name in leaving:
        await rig.ref.cancel([name])
    for name, prompt in prompts.items():
        if name not in leaving:
            await rig.finish(name)
        tokens, reference = rig.record.tokens[name], greedy(path, prompt, lengths[name])
        common = min(len(tokens), len(reference))
        assert tokens[:common] == list(reference[:common]), name
        assert name in leaving or len(tokens) == lengths[name]
        assert common > 0
    assert len(sizes) > 8, "sweeps of many sizes"
    await rig.quiet()
    await rig.stop()


async def test_a_pace_holds_sweeps_but_not_tokens(checkpoint: Checkpoints) -> None:
    path = checkpoint("llama")
    rig = await Rig.start([path], pace=Coefficients(base=0.01))
    await check_equal(rig, path, [10], new=8)
    assert rig.worker.device.lateness() == 0.0
    await rig.stop()


async def test_a_host_that_is_not_there_gives_the_sequence_back(checkpoint: Checkpoints) -> None:
    rig = await Rig.start([checkpoint("llama")])
    chain = rig.chains["a"]
    half = len(chain.components) // 2
    route = Route("a@w0+w9", 1, "a", (Hop("w0", 0, half), Hop("w9", half, len(chain.components))))
    await rig.ref.routes(RoutesChanged(9, [chain], [route], [route]))
    await rig.submit("r0", [1, 2, 3], 5, route=route.id)
    async with asyncio.timeout(PATIENCE):
        assert await rig.record.ended["r0"] == "host-lost"
    await rig.quiet()
    await rig.stop()


async def test_blocks_go_after_the_routes_that_were_withdrawn_before(checkpoint: Checkpoints) -> None:
    """The messages come together; the unloading must not overtake the routes, or plans would name what is gone."""
    rig = await Rig.start([checkpoint("llama")])
    await rig.submit("r0", list(prompt_of(50)), 400)
    while not rig.record.tokens["r0"]:
        rig.record.changed.clear()
        await rig.record.changed.wait()
    chains = list(rig.chains.values())
    for _ in range(500):
        rig.ref.ack.cast("w0/gateway", 1)
    rig.ref.routes.cast(RoutesChanged(9, chains, [], []))
    assert await rig.ref.unload("a", rig.loads["a"].ids) > 0
    async with asyncio.timeout(PATIENCE):
        assert await rig.record.ended["r0"] == "route"
    await rig.quiet()
    await rig.stop()


async def test_a_load_that_is_cancelled_half_way_leaves_nothing_and_can_be_repeated(checkpoint: Checkpoints) -> None:
    path = checkpoint("llama")
    rig = await Rig.start([])
    gate = threading.Event()
    rig.worker.device.call(lambda ex: gate.wait(PATIENCE))
    load = asyncio.create_task(rig.load("a", path))
    while not rig.worker.state.parts.memory.residence.components:
        await rig.ref.status()
    load.cancel()
    await asyncio.wait([load])
    gate.set()
    while rig.worker.state.parts.memory.residence.components:
        await rig.worker.device.call(lambda ex: None)
    await rig.quiet()
    assert (await rig.ref.status()).parameters == 0
    assert await rig.load("a", path) > 0
    await rig.publish()
    await check_equal(rig, path, [9], new=8)
    await rig.stop()
