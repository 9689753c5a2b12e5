"""Guesses of hidden states on whole servers: a pipeline of two workers, the first with a surrogate of its last block."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from blockwright.actors import topology
from blockwright.actors.applications import Applications
from blockwright.actors.gateway.port import ApplicationView, NewApplication, RemovalView
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.sizing import worker_limits
from blockwright.api.commands.explain import guess_line
from blockwright.tests.checkpoints import make_checkpoint, with_tensors
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import serve
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.zoo.surrogate.surrogates import surrogate_of
from blockwright.zoo.add import add

LENGTH, NEW = 96, 12
LONG = 40  # tokens of an answer during which a worker dies
PROMPTS = [prompt_of(length, seed=4) for length in (5, 19, 40)]
FIELDS: list[dict[str, Any]] = [{"logprobs": 2}, {"temperature": 0.8, "seed": 5, "logprobs": 1}]
OPTIONS: dict[str, Any] = {"max_model_len": LENGTH, "chunk_size": 16, "dtype": "float32", "workers": 2, "device": "cpu"}
LAYERS = 4
FIRST, BORDER = 3, 5  # the second layer, behind which a chain of four equal layers is cut in two


def zoo_with_surrogate(root: Path, quiet: float) -> Path:
    """A zoo with a model whose second layer adds ``quiet`` times what it would, and a surrogate of that layer."""
    base = make_checkpoint(root / "a", num_hidden_layers=LAYERS, num_attention_heads=8, num_key_value_heads=4, head_dim=16)
    tensors = load_file(base / "model.safetensors")
    less = {
        name: quiet * one
        for name, one in tensors.items()
        if "layers.1." in name and ("o_proj" in name or "down_proj" in name)
    }
    add(root / "zoo", str(with_tensors(base, root / "calm", less)), "a")
    surrogate_of(root / "zoo", "a", FIRST, BORDER)
    return root / "zoo" / "chains" / "a"


async def answers(server: Any) -> list[dict[str, Any]]:
    return [await server.complete(prompt, NEW, "a", **one) for prompt in PROMPTS for one in FIELDS]


@claim("With speculate=hidden and exact no token and no log-probability changes, and guesses are made", of="adaptive")
async def test_exact_guesses_change_nothing(tmp_path: Path) -> None:
    folder = zoo_with_surrogate(tmp_path, 1.0)
    async with serve({"a": folder}, pipelines={"a": 2}, **OPTIONS) as server:
        plain = await answers(server)
    async with serve({"a": folder}, pipelines={"a": 2}, speculate={"a": "hidden"}, exact=True, **OPTIONS) as server:
        guessed = await answers(server)
        counts = [await server.counters(name) for name in ("guessed_states", "accepted_guesses")]
        view = await server.cluster()
    for one, other in zip(plain, guessed, strict=True):
        assert one["token_ids"] == other["token_ids"]
        assert one["logprobs"] == other["logprobs"]
    assert counts[0] > 0
    assert counts[1] == 0
    assert view["applications"]["a~guess"]["drafts_for"] == "a"
    homes = [hop["worker"] for one in view["routes"] if one["application"] == "a~guess" for hop in one["hops"]]
    assert homes == ["w0"], "the surrogate lies where the pipeline begins, and nowhere else"


@claim("A model that is removed and added again has its guesses again", of="adaptive")
async def test_a_model_that_comes_again_has_guesses(tmp_path: Path) -> None:
    folder = zoo_with_surrogate(tmp_path, 1.0)
    own: dict[str, Any] = {"speculate": {"a": "hidden"}, "exact": True, "pipeline": 2, **OPTIONS}
    async with serve({"a": folder}, **own) as server:
        first = await answers(server)
        running = server.running
        settings = Settings(applications={"a": str(folder)}, app_roots=str(tmp_path), **own)
        limits = worker_limits(settings.worker, {name: one.config for name, one in running.held.items()})
        parts = settings, limits, topology.CONTROLLER, running.held
        changes = await running.cluster.node.spawn(Applications, name="applications", args=parts)
        assert isinstance(await changes.remove("a", 5.0, ""), RemovalView)
        assert isinstance(await changes.add(NewApplication("a", str(folder))), ApplicationView)
        before = await server.counters("guessed_states")
        again = await answers(server)
        assert await server.counters("guessed_states") > before
        view = await server.cluster()
    assert [one["token_ids"] for one in again] == [one["token_ids"] for one in first]
    assert view["applications"]["a~guess"]["drafts_for"] == "a"
    homes = [hop["worker"] for one in view["routes"] if one["application"] == "a~guess" for hop in one["hops"]]
    assert homes == ["w0"]


@claim("Guesses that stand make a request's text approximate, and explain and the request's view say so", of="adaptive")
async def test_guesses_stand_where_the_surrogate_is_near(tmp_path: Path) -> None:
    """The layer adds a hundredth of what the others do, so whatever stands for it is near."""
    folder = zoo_with_surrogate(tmp_path, 0.01)
    async with serve({"a": folder}, pipelines={"a": 2}, speculate={"a": "hidden"}, **OPTIONS) as server:
        body = {"model": "a", "prompt": PROMPTS[1], "max_tokens": NEW, "temperature": 0, "ignore_eos": True}
        async with server.session.post(f"{server.url}/v1/completions", json=body, headers={"x-request-id": "one"}) as answer:
            assert answer.status == 200
        counts = [await server.counters(name) for name in ("guessed_states", "accepted_guesses")]
        story = await server.story("one")
        async with server.session.get(f"{server.url}/metrics") as answer:
            metrics = await answer.text()
        async with server.session.get(f"{server.url}/v1/models") as answer:
            listed = [one["id"] for one in (await answer.json())["data"]]
        for named in ({"model": "a~guess"}, {"model": "a", "draft": "a~guess"}):
            async with server.session.post(f"{server.url}/v1/completions", json={"prompt": [5], **named}) as answer:
                assert answer.status in (400, 404), named
    assert counts[0] == NEW - 1, "the first token is drawn behind the prompt, which is not guessed"
    assert counts[1] > 0.7 * counts[0]
    assert story["guesses"] == {"made": counts[0], "accepted": counts[1], "approximate": True}
    assert f'blockwright:worker_accepted_guesses{{worker="w0"}} {counts[1]:.1f}' in metrics.replace(" ", " ")
    assert f"{NEW - 1} made, {counts[1]:.0f} accepted; its text is approximate" in guess_line(story["guesses"])
    assert listed == ["a"]


async def test_guesses_fall_where_the_surrogate_is_far(tmp_path: Path) -> None:
    """A surrogate of a random layer is nowhere near; what stands all the same counts, and most of it does not."""
    folder = zoo_with_surrogate(tmp_path, 1.0)
    async with serve({"a": folder}, pipelines={"a": 2}, speculate={"a": "hidden"}, **OPTIONS) as server:
        for prompt in PROMPTS:
            await server.complete(prompt, NEW, "a")
        counts = [await server.counters(name) for name in ("guessed_states", "accepted_guesses")]
    assert counts[1] < 0.5 * counts[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pipelines": {}}, "speculate.a is hidden, and all of a is on one worker.*pipelines.a=2"),
        ({}, f"has no surrogate of a block of a that ends with component {BORDER - 1}.*zoo surrogate a"),
        ({"device": "auto"}, "speculate.a is hidden, and device is auto: a card computes no guesses"),
        ({"dispatch": "predicted-latency"}, "speculate.a is hidden, and dispatch is predicted-latency"),
        ({"drafts": {"a": "prompt"}}, "speculate.a is hidden, and drafts.a is 'prompt'; choose one"),
        ({"adaptive": {"a": "equal"}}, "adaptive.a is equal, and pipelines.a spreads it over workers"),
        ({"speculate": {}, "exact": True}, "exact is on, and no model has speculate=hidden"),
        ({"speculate": {"a": "guess"}}, "speculate.a is 'guess'; give off, tokens or hidden"),
    ],
)
async def test_what_cannot_be_guessed_is_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    base = make_checkpoint(
        tmp_path / "a", num_hidden_layers=LAYERS, num_attention_heads=8, num_key_value_heads=4, head_dim=16
    )
    add(tmp_path / "zoo", str(base), "a")
    chosen = {**OPTIONS, "pipelines": {"a": 2}, "speculate": {"a": "hidden"}, **settings}
    with pytest.raises(SettingsError, match=words):
        async with serve({"a": tmp_path / "zoo" / "chains" / "a"}, **chosen):
            pass


@claim("A worker that dies between guess and verdict loses and repeats no token", of="adaptive")
@pytest.mark.parametrize(
    ("rounds", "in_process"), [(2, True), pytest.param(20, False, marks=pytest.mark.nightly, id="kill -9")]
)
async def test_a_death_between_guess_and_verdict_loses_nothing(tmp_path: Path, rounds: int, in_process: bool) -> None:
    """Each worker in turn dies while answers run. They go on, and all tokens are as without guesses."""
    folder = zoo_with_surrogate(tmp_path, 1.0)
    asked = [(prompt, one) for prompt in PROMPTS for one in FIELDS]
    async with serve({"a": folder}, pipelines={"a": 2}, **OPTIONS) as server:
        plain = [(await server.complete(prompt, LONG, "a", **one))["token_ids"] for prompt, one in asked]
    guessing = {"speculate": {"a": "hidden"}, "exact": True, "pipelines": {"a": 2}, "in_process": in_process}
    async with serve({"a": folder}, **guessing, **OPTIONS) as server:
        for number in range(rounds):
            running = [asyncio.create_task(server.complete(prompt, LONG, "a", **one)) for prompt, one in asked]
            active = server.running.port.book.parts.active
            await server.running.port.until(
                lambda active=active: any(4 < one.progress.emitted < LONG - 10 for one in active.values())
            )
            gone = server.running.cluster.members()[f"w{number % 2}"]
            server.running.launcher.kill(gone.id)
            found = [one["token_ids"] for one in await asyncio.gather(*running)]
            assert found == plain, f"round {number}"
            await server.running.ready(whole=True)
        attempts = [view.attempt for view in server.running.port.book.parts.past.values()]
    assert max(attempts) > 1, "nothing was running when the worker died"
