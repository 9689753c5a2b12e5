"""A chain with a surrogate on a whole server: the tokens of the model in which all that the surrogate lacks is zero."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from blockwright.actors import topology
from blockwright.actors.applications import Applications
from blockwright.actors.gateway.port import ApplicationView, NewApplication, RefusedChange, RemovalView
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.sizing import worker_limits
from blockwright.gpu.weights.loader import read_rows
from blockwright.policies.adaptive.variants import Swap, variant_source
from blockwright.tests.checkpoints import make_checkpoint, with_tensors
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import serve
from blockwright.tests.gpu.reference import confirm, prompt_of
from blockwright.tests.waiting import until
from blockwright.tests.zoo.surrogate.surrogates import surrogate_of
from blockwright.zoo.add import add
from blockwright.zoo.source import open_source
from blockwright.zoo.zoo import Zoo

LAYER = 1  # whose attention and feed-forward have a surrogate
FIRST, LAST = 2 * LAYER + 1, 2 * LAYER + 3
LENGTH = 96
NEW = 16
PROMPTS = [prompt_of(length, seed=4) for length in (5, 19, 40)]


def widened(folder: Path, surrogate: Path | str, target: Path) -> Path:
    """Return the model in which the surrogate's weights stand at their old places, and zeros at the removed ones.

    Heads and columns behind zeros add nothing, so this is the same function, in shapes that transformers computes.
    """
    tensors = load_file(folder / "model.safetensors")
    parts = open_source(surrogate).parts[FIRST:LAST]
    changed = {}
    for (_, refs), rows, out in zip(
        parts, ("self_attn.q_proj", "mlp.up_proj"), ("self_attn.o_proj", "mlp.down_proj"), strict=True
    ):
        role, last = ("q", "o") if "attn" in rows else ("up", "down")
        small, fitted = (read_rows(refs[one], 0, refs[one].shape[0]) for one in (role, last))
        whole = tensors[f"model.layers.{LAYER}.{rows}.weight"]
        kept = [int((whole == row).all(1).nonzero()[0]) for row in small]
        assert kept == sorted(set(kept))
        assert 2 * len(kept) == len(whole)
        wide = torch.zeros_like(tensors[f"model.layers.{LAYER}.{out}.weight"])
        wide[:, kept] = fitted
        changed[f"model.layers.{LAYER}.{out}.weight"] = wide
    return with_tensors(folder, target, changed)


@claim("A chain with a surrogate computes the block with half of its heads and columns, on both back ends", of="adaptive")
@pytest.mark.parametrize("backend", ["native", "torch"])
async def test_a_surrogate_is_served_and_judged_by_transformers(tmp_path: Path, backend: str) -> None:
    a = make_checkpoint(tmp_path / "a", num_attention_heads=8, num_key_value_heads=4, head_dim=16)
    add(tmp_path / "zoo", str(a), "a")
    made = surrogate_of(tmp_path / "zoo", "a", FIRST, LAST)
    folder = tmp_path / "zoo" / "chains" / "a"
    source = variant_source(str(folder), [Swap(FIRST, LAST, made.surrogate)])
    judge = widened(a, source, tmp_path / "wide")
    options: dict[str, Any] = {"max_model_len": LENGTH, "chunk_size": 16, "backend": backend, "dtype": "float32"}
    async with serve({"a": folder, "s": Path(source)}, **options) as server:
        found = [await server.complete(prompt, NEW, "s") for prompt in PROMPTS]
        whole = [await server.complete(prompt, NEW, "a") for prompt in PROMPTS]
        view = await server.cluster()
    assert [one["token_ids"] for one in found] != [one["token_ids"] for one in whole]
    for prompt, one, other in zip(PROMPTS, found, whole, strict=True):
        assert confirm(judge, prompt, tuple(one["token_ids"])) > NEW // 2
        assert confirm(a, prompt, tuple(other["token_ids"])) > NEW // 2
    zoo = Zoo(tmp_path / "zoo")
    stored = zoo.tensors(zoo.chain("a")) | {
        one.hash: one for id in made.surrogate for one in zoo.component(id).tensors.values()
    }
    assert view["parameter_bytes"] == sum(tensor.nbytes for tensor in stored.values()), "all other blocks are shared"


@claim("Drafts by the chain with a surrogate change no token, greedy or sampled, and many of them stand", of="adaptive")
async def test_the_chain_with_a_surrogate_drafts_and_changes_no_token(tmp_path: Path) -> None:
    a = make_checkpoint(tmp_path / "a", num_attention_heads=8, num_key_value_heads=4, head_dim=16)
    tensors = load_file(a / "model.safetensors")
    quiet = {name: 0.2 * one for name, one in tensors.items() if f"layers.{LAYER}." in name and "o_proj" in name}
    add(tmp_path / "zoo", str(with_tensors(a, tmp_path / "calm", quiet)), "a")
    made = surrogate_of(tmp_path / "zoo", "a", FIRST, LAST - 1)
    folder = tmp_path / "zoo" / "chains" / "a"
    source = variant_source(str(folder), [Swap(FIRST, LAST - 1, made.surrogate)])
    fields: list[dict[str, Any]] = [{}, {"temperature": 0.8, "seed": 5}, {"temperature": 1.2, "seed": 6, "top_p": 0.9}]
    async with serve({"a": folder, "s": Path(source)}, max_model_len=LENGTH, chunk_size=16, drafts={"a": "s"}) as server:
        found = [
            [await server.complete(prompt, NEW, "a", **own, **one) for prompt in PROMPTS for one in fields]
            for own in ({"draft": "off"}, {"draft_tokens": 3})
        ]
        counts = [await server.counters(name) for name in ("drafted_tokens", "accepted_tokens")]
    alone, drafted = ([one["token_ids"] for one in choices] for choices in found)
    assert drafted == alone
    assert counts[1] > 0.3 * counts[0] > 0


@claim(
    "With speculate=tokens the chain with a surrogate drafts, is no model for clients, and no token changes", of="adaptive"
)
async def test_speculation_changes_no_token_and_lists_no_model(tmp_path: Path) -> None:
    folder = tmp_path / "zoo" / "chains" / "a"
    a = make_checkpoint(tmp_path / "a", num_attention_heads=8, num_key_value_heads=4, head_dim=16)
    add(tmp_path / "zoo", str(a), "a")
    surrogate_of(tmp_path / "zoo", "a", FIRST, LAST - 1)
    options: dict[str, Any] = {"max_model_len": LENGTH, "chunk_size": 16, "draft_tokens": 3}
    fields: list[dict[str, Any]] = [{}, {"temperature": 0.8, "seed": 5}]
    async with serve({"a": folder}, speculate={"a": "tokens"}, **options) as server:
        found = [
            [await server.complete(prompt, NEW, "a", **own, **one) for prompt in PROMPTS for one in fields]
            for own in ({"draft": "off"}, {})
        ]
        counts = [await server.counters(name) for name in ("drafted_tokens", "accepted_tokens")]
        async with server.session.get(f"{server.url}/v1/models") as answer:
            listed = [one["id"] for one in (await answer.json())["data"]]
        for body in ({"model": "a~surrogate"}, {"model": "a", "draft": "a~surrogate"}):
            async with server.session.post(f"{server.url}/v1/completions", json={"prompt": [5], **body}) as answer:
                assert answer.status in (400, 404), body
        view = await server.cluster()
        running = server.running
        settings = Settings(applications={"a": str(folder)}, speculate={"a": "tokens"})
        parts = settings, worker_limits(settings.worker, {}), topology.CONTROLLER, running.held
        changes = await running.cluster.node.spawn(Applications, name="applications", args=parts)
        removal = await changes.remove("a", 5.0, "")
        left = (await server.cluster())["applications"]
    alone, drafted = ([one["token_ids"] for one in choices] for choices in found)
    assert drafted == alone
    assert counts[0] > 0
    assert counts[1] > 0
    assert listed == ["a"]
    assert view["applications"]["a~surrogate"]["drafts_for"] == "a"
    assert isinstance(removal, RemovalView)
    assert removal.gone
    assert not {"a", "a~surrogate"} & left.keys(), "they go together"


def quiet_at(layer: int, folder: Path, target: Path) -> Path:
    """Return the model with a layer that adds little, so that its surrogate agrees with it."""
    tensors = load_file(folder / "model.safetensors")
    return with_tensors(
        folder, target, {name: 0.2 * one for name, one in tensors.items() if f"layers.{layer}." in name and "o_proj" in name}
    )


@claim("Surrogates draft for a model that is added again, and for one that replaces it, and change no token", of="adaptive")
async def test_surrogates_come_and_go_with_versions(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    for name, seed in (("a", 0), ("b", 1)):
        own = make_checkpoint(tmp_path / name, seed=seed, num_attention_heads=8, num_key_value_heads=4, head_dim=16)
        add(zoo, str(quiet_at(LAYER, own, tmp_path / f"calm {name}")), name)
        surrogate_of(zoo, name, FIRST, LAST - 1)
    c = make_checkpoint(tmp_path / "c", seed=2, num_attention_heads=8, num_key_value_heads=4, head_dim=16)
    add(zoo, str(c), "c")
    options: dict[str, Any] = {"max_model_len": LENGTH, "chunk_size": 16, "draft_tokens": 3}
    speculate = {"a": "tokens"}
    async with serve({"a": zoo / "chains" / "a", "c": zoo / "chains" / "c"}, speculate=speculate, **options) as server:
        running = server.running
        settings = Settings(
            applications={"a": str(zoo / "chains" / "a")}, speculate=speculate, app_roots=str(tmp_path), **options
        )
        limits = worker_limits(settings.worker, {name: one.config for name, one in running.held.items()})
        parts = settings, limits, topology.CONTROLLER, running.held
        changes = await running.cluster.node.spawn(Applications, name="applications", args=parts)

        async def chains() -> dict[str, str]:
            view = (await server.cluster())["applications"]
            return {name: one["drafts_for"] for name, one in view.items() if name != "c"}

        async def drafts() -> list[list[int]]:
            """Return the answers with drafts, some of which stand; they are the ones without."""
            before = await server.counters("accepted_tokens")
            found = [(await server.complete(prompt, NEW, "a"))["token_ids"] for prompt in PROMPTS]
            assert await server.counters("accepted_tokens") > before
            assert found == [(await server.complete(prompt, NEW, "a", draft="off"))["token_ids"] for prompt in PROMPTS]
            return found

        assert await chains() == {"a": "", "a~surrogate": "a"}
        first = await drafts()
        assert isinstance(await changes.remove("a", 5.0, ""), RemovalView)
        assert await chains() == {}
        refused = await changes.add(NewApplication("a", str(zoo / "chains" / "c")))
        assert isinstance(refused, RefusedChange)
        assert refused.message.startswith("speculate.a is tokens, but the zoo has no surrogate of a block of a; make one")
        assert await chains() == {}, "nothing of it has come"
        assert isinstance(await changes.add(NewApplication("a", str(zoo / "chains" / "a"))), ApplicationView)
        assert await chains() == {"a": "", "a~surrogate": "a"}
        assert await drafts() == first
        assert isinstance(await changes.add(NewApplication("a", str(zoo / "chains" / "b"), replace=True)), ApplicationView)
        await until(lambda: only(chains, {"a": "", "a~surrogate": "a"}))
        assert await drafts() != first
        assert isinstance(await changes.remove("a", 5.0, ""), RemovalView)
        assert await chains() == {}


async def only(chains: Callable[[], Awaitable[dict[str, str]]], expected: dict[str, str]) -> bool:
    return await chains() == expected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {},
            "speculate.a is tokens, but the zoo has no surrogate of a block of a; make one: blockwright zoo surrogate",
        ),
        ({"overload": "on"}, "speculate.a is tokens, and overload is on"),
        ({"pipelines": {"a": 2}}, "speculate.a is tokens, and pipelines.a spreads it over workers"),
        ({"drafts": {"a": "prompt"}}, "speculate.a is tokens, and drafts.a is 'prompt'; choose one"),
        ({"speculate": {"a": "fast"}}, "speculate.a is 'fast'; give off, tokens or hidden"),
        ({"speculate": {"b": "tokens"}}, "speculate.b names no application; there are: a"),
    ],
)
async def test_what_can_have_no_drafting_chain_is_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    add(tmp_path / "zoo", str(make_checkpoint(tmp_path / "a")), "a")
    with pytest.raises(SettingsError, match=words):
        async with serve({"a": tmp_path / "zoo" / "chains" / "a"}, workers=2, **{"speculate": {"a": "tokens"}, **settings}):
            pass


async def test_a_folder_outside_a_zoo_has_no_drafting_chain(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"speculate.a is tokens, but a is no application of a zoo"):
        async with serve({"a": make_checkpoint(tmp_path / "a")}, speculate={"a": "tokens"}):
            pass
