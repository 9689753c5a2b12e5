"""Variants on a whole server: what serves in a model's place answers bit for bit as that chain alone, and says so."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from blockwright.actors.settings.errors import SettingsError
from blockwright.api.commands.explain import chain_lines
from blockwright.api.demo import siblings
from blockwright.policies.adaptive.equivalence import EquivalenceLimits
from blockwright.policies.adaptive.stitches import StitchPoint
from blockwright.policies.adaptive.variants import Swap, variant_source
from blockwright.policies.requests.book.chain_switching import may_switch, switch
from blockwright.tests.checkpoints import make_checkpoint, with_tensors
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import Served, serve
from blockwright.tests.gpu.reference import confirm, prompt_of
from blockwright.tests.waiting import until
from blockwright.tests.zoo.equivalence.stitched_models import NAMES, NARROW, WIDE, random_stitches, zoo_of_widths
from blockwright.zoo.add import add
from blockwright.zoo.equivalence.records import StoredEquivalences, StoredPair, store_equivalences
from blockwright.zoo.zoo import Zoo

LAYER = 1  # whose feed-forward block differs
BLOCK = 2 * LAYER + 2  # its place in the chain
LENGTH = 96
PROMPTS = [prompt_of(length, seed=3) for length in (9, 20, 33, 41)]
NEW = 16
FAMILY = Path(__file__).parents[2] / "examples" / "demo-family"
SUPPORT, SIBLINGS = siblings.SUPPORT, (siblings.SUPPORT, siblings.SALES, siblings.WIDE)
LONG = 40  # tokens of an answer that changes its chain


def zoo_of(tmp_path: Path, *, counts: bool = True) -> tuple[Path, Path]:
    """Return the folder of a zoo with models a and b, whose blocks are stored as equivalent, and b's checkpoint.

    counts: they count as equivalent; else they only look alike.
    """
    a = make_checkpoint(tmp_path / "a", intermediate_size=1024, num_hidden_layers=3)
    generator = torch.Generator().manual_seed(1)
    own = {k: v for k, v in load_file(a / "model.safetensors").items() if k.startswith(f"model.layers.{LAYER}.mlp.")}
    b = with_tensors(
        a, tmp_path / "b", {k: v + 0.3 * torch.randn(v.shape, generator=generator) * v.std() for k, v in own.items()}
    )
    root = tmp_path / "zoo"
    for name, folder in (("a", a), ("b", b)):
        add(root, str(folder), name)
    store_equivalences(root, [stored_pair(root, "a", "b", BLOCK, counts=counts)])
    return root, b


def stored_pair(root: Path, name: str, other: str, place: int, *, counts: bool = True) -> StoredEquivalences:
    """Return the component at a place of two models as a measured pair."""
    one, donor = (Zoo(root).chain(chain).components for chain in (name, other))
    blocks, kl = (one[place : place + 1], donor[place : place + 1]), 0.01 if counts else 0.5
    pair = StoredPair(*blocks, place, place, 0.99, 0.98, True, counts, kl, None)
    rows = tuple((0.5,) * (len(donor) - 1) for _ in one[:-1])
    return StoredEquivalences(
        components=one, others=donor, probe="0" * 32, tokens=9, prompts=0, right=0, limits=EquivalenceLimits(),
        similarities=rows, pairs=(pair,),
    )  # fmt: skip


def memory_for_one(root: Path) -> int:
    """Return bytes that hold one model with a sequence, and not both."""
    return (bytes_of(root, "a") + bytes_of(root, "a", "b")) // 2 + (1 << 18)


def bytes_of(root: Path, *names: str) -> int:
    """Return the bytes of the parameters of models together."""
    zoo, nbytes = Zoo(root), dict[str, int]()
    for name in names:
        nbytes |= {hash: tensor.nbytes for hash, tensor in zoo.tensors(zoo.chain(name)).items()}
    return sum(nbytes.values())


async def ask(server: Served, prompt: tuple[int, ...], model: str = "a", **fields: Any) -> tuple[str, dict[str, Any]]:
    """Return the variant that answered, and the first choice."""
    body = {
        "model": model, "prompt": list(prompt), "max_tokens": NEW, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, "logprobs": 3, **fields,
    }  # fmt: skip
    async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
        content = await answer.json()
        assert answer.status == 200, content
        return answer.headers.get("x-variant", ""), content["choices"][0]


async def several(server: Served, choices: int) -> str:
    """Send a request with several choices; return its id."""
    body = {"model": "a", "prompt": list(PROMPTS[0]), "max_tokens": NEW, "n": choices, "ignore_eos": True}
    async with server.session.post(f"{server.url}/v1/completions", json=body) as answer:
        assert answer.headers["x-variant"] == "a~1"
        return str((await answer.json())["id"])


@claim("A request that a variant serves has bit for bit the answer of that chain alone", of="adaptive", headline=True)
async def test_a_variant_answers_as_its_chain_alone(tmp_path: Path) -> None:
    root, b = zoo_of(tmp_path)
    folders = {name: root / "chains" / name for name in "ab"}
    options: dict[str, Any] = {"memory": memory_for_one(root), "max_model_len": LENGTH, "chunk_size": 16}
    async with serve(folders, workers=2, adaptive={"a": "equal"}, **options) as server:
        fields = {"adaptive": False, "cache_salt": "alone"}  # or the prompts would return to the worker that has their KV
        alone = {name: [(await ask(server, prompt, name, **fields))[1] for prompt in PROMPTS] for name in "ab"}
        found = await asyncio.gather(*(ask(server, prompt) for prompt in PROMPTS))
        refused = await asyncio.gather(*(ask(server, prompt, adaptive=False) for prompt in PROMPTS))
        view = await server.cluster()
        async with server.session.get(f"{server.url}/metrics") as answer:
            metrics = await answer.text()
        story = await server.story(await several(server, 3))
    assert {variant for variant, _ in found} == {"", "a~1"}
    assert [choice for _, choice in found] == [
        alone["b" if variant else "a"][place] for place, (variant, _) in enumerate(found)
    ]
    assert [variant for variant, _ in refused] == [""] * len(PROMPTS)
    assert view["applications"]["a~1"]["variant_of"] == "a"
    count = sum(variant == "a~1" for variant, _ in found)
    assert view["applications"]["a"]["chains"] == {"": 3 * len(PROMPTS) - count, "a~1": count}
    assert view["applications"]["b"]["chains"] == {}
    assert [(one["choice"], one["listed"]) for one in story["chains"]] == [(0, "a"), (1, "a"), (2, "a")]
    assert {(one["used"], one["why"].partition(" of ")[0]) for one in story["chains"]} == {("a", ""), ("a~1", "an estimate")}
    assert {tuple(one["donors"]) for one in story["chains"] if one["used"] == "a~1"} == {("b",)}
    assert f'blockwright:variant_requests_total{{model_name="a",variant="a~1"}} {count}.0' in metrics
    stored = Zoo(root).tensors(Zoo(root).chain("a")) | Zoo(root).tensors(Zoo(root).chain("b"))
    assert view["parameter_bytes"] == sum(tensor.nbytes for tensor in stored.values()), "no byte more than both models"
    for place, (variant, choice) in enumerate(found):
        if variant:
            confirm(b, PROMPTS[place], tuple(choice["token_ids"]))


@claim("The similarity of an answer is what its model's own chain says of each of its tokens", of="adaptive")
async def test_the_own_chain_scores_what_a_variant_gave(tmp_path: Path) -> None:
    root, _ = zoo_of(tmp_path)
    folders = {name: root / "chains" / name for name in "ab"}
    options: dict[str, Any] = {"memory": memory_for_one(root), "max_model_len": LENGTH, "chunk_size": 16}
    async with serve(folders, workers=2, adaptive={"a": "equal"}, similarity_share=1.0, **options) as server:

        async def complete(prompt: tuple[int, ...], **fields: Any) -> dict[str, Any]:
            body = {"model": "a", "prompt": list(prompt), "max_tokens": NEW, "ignore_eos": True, "return_token_ids": True}
            async with server.session.post(f"{server.url}/v1/completions", json=body | fields) as answer:
                content: dict[str, Any] = await answer.json()
            assert answer.status == 200, content
            return content

        def found(request: str) -> list[Any]:
            view = server.running.port.describe(request)
            return [one["similarity"] for one in view.chains if one["used"] == "a~1"]

        answers = await asyncio.gather(*(complete(prompt, temperature=0) for prompt in PROMPTS))
        places = [place for place, answer in enumerate(answers) if found(answer["id"])]
        assert places
        await until(lambda: all(found(answers[place]["id"])[0] for place in places))
        for place in places:
            (choice,) = answers[place]["choices"]
            tokens = [*PROMPTS[place], *choice["token_ids"]]
            own = await complete(tuple(tokens), prompt_logprobs=0, max_tokens=1, adaptive=False, cache_salt="other")
            entries = own["choices"][0]["prompt_logprobs"][len(PROMPTS[place]) :]
            scores = [one[str(token)] for token, one in zip(choice["token_ids"], entries, strict=True)]
            (similarity,) = (await server.story(answers[place]["id"]))["chains"]
            assert similarity["similarity"] == {
                "answers": 1,
                "tokens": NEW,
                "agreed": sum(one["rank"] == 1 for one in scores) / NEW,
                "logprob": pytest.approx(sum(one["logprob"] for one in scores) / NEW),
            }
        view = await server.cluster()
    assert view["applications"]["a"]["similarity"]["answers"] == len(places)


async def test_a_variant_is_served_by_its_source_and_judged_by_transformers(tmp_path: Path) -> None:
    root, b = zoo_of(tmp_path)
    swaps = [Swap(BLOCK, BLOCK + 1, Zoo(root).chain("b").components[BLOCK : BLOCK + 1])]
    async with serve({"v": Path(variant_source(str(root / "chains" / "a"), swaps))}, max_model_len=LENGTH) as server:
        _, choice = await ask(server, PROMPTS[1], "v")
    assert confirm(b, PROMPTS[1], tuple(choice["token_ids"])) > NEW // 2


def wide_block(root: Path, names: tuple[str, str] = NAMES, first: int = 3, last: int = 5) -> tuple[Swap, StoredEquivalences]:
    """Return the swap of the narrow model's middle, with random stitches around it, and an equivalence that counts."""
    there, back = random_stitches(root, names=names)
    one, other = (Zoo(root).chain(name).components for name in names)
    ends = there[StitchPoint(first, first)], back[StitchPoint(last, last)]
    pair = StoredPair(one[first:last], other[first:last], first, first, 0.99, 0.98, True, True, 0.01, None, *ends)
    rows = tuple((0.5,) * (len(other) - 1) for _ in one[:-1])
    stored = StoredEquivalences(
        components=one, others=other, probe="0" * 32, tokens=9, prompts=0, right=0, limits=EquivalenceLimits(),
        similarities=rows, pairs=(pair,),
    )  # fmt: skip
    return Swap(first, last, pair.replacement), stored


@claim("A variant with stitches serves with no parameter bytes but theirs, bit for bit as its chain alone", of="adaptive")
async def test_a_variant_with_stitches_answers_as_its_chain_alone(tmp_path: Path) -> None:
    root = zoo_of_widths(tmp_path)
    swap, stored = wide_block(root)
    store_equivalences(root, [stored])
    narrow, wide = (root / "chains" / name for name in NAMES)
    async with serve({"v": Path(variant_source(str(narrow), [swap]))}, max_model_len=LENGTH) as server:
        alone = [(await ask(server, prompt, "v"))[1] for prompt in PROMPTS]
    folders = dict(zip(NAMES, (narrow, wide), strict=True))
    async with serve(folders, adaptive={NAMES[0]: "equal"}, max_model_len=LENGTH, chunk_size=16) as server:
        view = await server.cluster()
        own = [(await ask(server, prompt, NAMES[0], adaptive=False))[1] for prompt in PROMPTS]
        found = await asyncio.gather(*(ask(server, prompt, NAMES[0]) for prompt in PROMPTS))
    assert own != alone
    assert {variant for variant, _ in found} <= {"", f"{NAMES[0]}~1"}
    assert [choice for _, choice in found] == [(alone if variant else own)[n] for n, (variant, _) in enumerate(found)]
    variant = view["applications"][f"{NAMES[0]}~1"]
    stitches = {t.hash: t.nbytes for id in (swap.ids[0], swap.ids[-1]) for t in Zoo(root).component(id).tensors.values()}
    assert variant["bytes"]["own"] == sum(stitches.values()) == 4 * (2 * NARROW * WIDE + NARROW + WIDE)
    both = Zoo(root).tensors(Zoo(root).chain(NAMES[0])) | Zoo(root).tensors(Zoo(root).chain(NAMES[1]))
    assert view["parameter_bytes"] == sum(tensor.nbytes for tensor in both.values()) + sum(stitches.values())
    assert any(route["application"] == f"{NAMES[0]}~1" for route in view["routes"])


@claim("An overloaded model answers through stitched blocks of a wider one, bit for bit as that chain alone", of="adaptive")
async def test_an_overloaded_fine_tune_answers_through_stitched_blocks_of_its_wide_sibling(tmp_path: Path) -> None:
    """A worker has memory for "sales", which shares all else, and "wide" with the stitches; the other one for "support"."""
    root, variant = tmp_path / "zoo", f"{SUPPORT}~1"
    prompts = [tuple(token % 256 for token in prompt) for prompt in PROMPTS]  # tokens that it knows
    for name in SIBLINGS:
        add(root, str(FAMILY / name), name)
    swap, stored = wide_block(root, (SUPPORT, siblings.WIDE), 9, 13)  # where the fine-tunes differ
    store_equivalences(root, [stored])
    folders = {name: root / "chains" / name for name in SIBLINGS}
    source = Path(variant_source(str(folders[SUPPORT]), [swap]))
    async with serve({"v": source}, max_model_len=LENGTH, chunk_size=16) as server:
        alone = [(await ask(server, prompt, "v"))[1] for prompt in prompts]
    memory = bytes_of(root, *SIBLINGS) - 1  # too few for all three on each worker, and enough for stitches beside two
    options: dict[str, Any] = {"memory": memory, "max_model_len": LENGTH, "chunk_size": 16}
    async with serve(folders, workers=2, adaptive={SUPPORT: "equal"}, **options) as server:

        async def placed() -> list[tuple[str, str]]:
            routes = [(one["application"], one["home"]) for one in (await server.cluster())["routes"]]
            return routes if variant in dict(routes) else []

        routes = await until(placed, "the variant has a route")
        found = await asyncio.gather(*(ask(server, prompt, SUPPORT, request_id=f"r{n}") for n, prompt in enumerate(prompts)))
        fields = {"adaptive": False, "cache_salt": "own"}
        own = [(await ask(server, prompt, SUPPORT, **fields))[1] for prompt in prompts]
        stories = [await server.story(f"r{n}") for n in range(len(prompts))]
    homes = {name: {home for one, home in routes if one == name} for name in (SUPPORT, variant)}
    assert all(len(one) == 1 for one in homes.values()), routes
    assert homes[SUPPORT] != homes[variant]
    through = [n for n, (name, _) in enumerate(found) if name]
    assert 0 < len(through) < len(prompts)
    for n, ((name, choice), story) in enumerate(zip(found, stories, strict=True)):
        assert choice == (alone if name else own)[n]
        (line,) = chain_lines(story["chains"]) or ("",)
        used = f"{variant} in the place of {SUPPORT}, with blocks of {siblings.WIDE}: "
        assert used in line if name else variant not in line
    assert {found[n][0] for n in through} == {variant}
    assert all(alone[n] != own[n] for n in through)


@pytest.mark.parametrize("mode", ["off", "equal"])
async def test_without_equivalences_nothing_differs(tmp_path: Path, mode: str) -> None:
    a = make_checkpoint(tmp_path / "a")
    add(tmp_path / "zoo", str(a), "a")
    async with serve({"a": tmp_path / "zoo" / "chains" / "a"}, adaptive={"a": mode}) as server:
        assert [variant for variant, _ in await asyncio.gather(*(ask(server, prompt) for prompt in PROMPTS))] == [""] * 4
        assert list((await server.cluster())["applications"]) == ["a"]


@claim("After a switch at any position the bits are the ones of the new chain alone over the same tokens", of="adaptive")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_after_a_switch_the_answer_goes_on_as_that_chain_alone(tmp_path: Path, temperature: float) -> None:
    root, _ = zoo_of(tmp_path)
    folders = {name: root / "chains" / name for name in "ab"}
    options: dict[str, Any] = {"memory": memory_for_one(root), "max_model_len": LENGTH, "chunk_size": 16}
    sampling = {"temperature": temperature, "seed": 5}
    async with serve(folders, workers=2, adaptive={"a": "equal"}, switches=9, **options) as server:
        for n, prompt in enumerate(PROMPTS):
            asked = asyncio.create_task(ask(server, prompt, request_id=f"r{n}", max_tokens=LONG, **sampling))
            switches = await switched_at(server.running.port, (1 + n, 12, 25))
            _, choice = await asked
            async with server.session.get(f"{server.url}/v1/requests/r{n}") as answer:
                shown = (await answer.json())["switches"]
            assert [(one["position"], one["target"]) for one in shown] == switches
            ids = choice["token_ids"]
            chains = [(0, shown[0]["source"]), *switches, (LONG, "")]
            for (begin, chain), (end, _) in pairwise(chains):
                fields = {**sampling, "adaptive": False, "cache_salt": "alone", "max_tokens": LONG - begin}
                alone = (await ask(server, (*prompt, *ids[:begin]), "b" if chain == "a~1" else "a", **fields))[1]
                assert alone["token_ids"][: end - begin] == ids[begin:end], (begin, chain)
                assert values(alone)[: end - begin] == values(choice)[begin:end]


def values(choice: dict[str, Any]) -> list[tuple[float, dict[str, float]]]:
    """Return the log-probability of each token, and the likeliest tokens."""
    logprobs = choice["logprobs"]
    return list(zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True))


async def switched_at(gateway: Any, positions: tuple[int, ...]) -> list[tuple[int, str]]:
    """Switch the one request to its other chain once it has this many tokens; return where that was, and the chain."""
    parts, found = gateway.book.parts, list[tuple[int, str]]()
    for position in positions:
        while True:
            record = next(iter(parts.active.values()), None)
            if record is not None and record.progress.emitted >= position and may_switch(parts, record):
                break
            await asyncio.sleep(0)
        other = "a" if record.variant else "a~1"
        found.append((record.progress.emitted, other))
        now = gateway.node.clock.now()
        switch(parts, record, parts.table.routes[other][0], 2.0, 1.0, now)
        gateway._perform(gateway.book._effects(now))
    return found


@claim("With adaptive any a less accurate model answers when the asked one lacks memory", of="adaptive")
async def test_any_takes_a_less_accurate_model_when_memory_is_short(tmp_path: Path) -> None:
    root, _ = zoo_of(tmp_path, counts=False)
    folders = {name: root / "chains" / name for name in "ab"}
    options: dict[str, Any] = {"memory": memory_for_one(root), "max_model_len": LENGTH, "chunk_size": 16}
    async with serve(folders, workers=2, adaptive={"a": "any"}, accuracy={"a": "a,b"}, **options) as server:
        fields = {"adaptive": False, "cache_salt": "alone"}
        alone = {name: [(await ask(server, prompt, name, **fields))[1] for prompt in PROMPTS] for name in "ab"}
        one = await ask(server, PROMPTS[0], cache_salt="1")
        many = await asyncio.gather(*(ask(server, PROMPTS[n % 4], cache_salt=f"{n}") for n in range(64)))
        view = await server.cluster()
    assert one == ("", alone["a"][0]), "the more accurate model has room"
    assert {variant for variant, _ in many} == {"", "a~1"}
    assert all(choice == alone["b" if variant else "a"][n % 4] for n, (variant, choice) in enumerate(many))
    assert [*view["applications"]] == ["a", "a~1", "b"], "the block that only looks alike gives the chain of b, too"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"accuracy": {"a": "a,b"}}, "accuracy.a is given, but adaptive.a is not any; set that, or leave accuracy out"),
        ({"adaptive": {"a": "any"}}, "adaptive.a is any, which needs an order of models; give accuracy.a=A,B,..."),
        ({"adaptive": {"a": "any"}, "accuracy": {"a": "a"}}, "adaptive.a is any, which needs an order of models"),
        ({"adaptive": {"a": "any"}, "accuracy": {"a": "a,a"}}, "accuracy.a names a twice; name each model once"),
        ({"adaptive": {"a": "any"}, "accuracy": {"a": "a,x"}}, "accuracy.a names x, which is not served; there are: a, b"),
        ({"adaptive": {"a": "any"}, "accuracy": {"a": "b,a,b"}}, "accuracy.a names b twice; name each model once"),
        ({"adaptive": {"a": "any"}, "accuracy": {"a": "b,,a"}}, "accuracy.a is 'b,,a', with an empty entry"),
        ({"adaptive": {"a": "some"}}, "adaptive.a is 'some'; give off, equal or any"),
        ({"variants": 65}, "variants is 65; give at most 64"),
        ({"adaptive": {"a": "any"}, "accuracy": {"a": "b"}}, "b, which handles 64 tokens, fewer than the 128 of a"),
    ],
)
async def test_an_order_of_accuracy_that_cannot_be_is_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    folders = {
        "a": make_checkpoint(tmp_path / "a", max_position_embeddings=128),
        "b": make_checkpoint(tmp_path / "b", max_position_embeddings=64),
    }
    with pytest.raises(SettingsError, match=re.escape(words)):
        async with serve(folders, **settings):
            pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"overload": "on"}, "adaptive.a is equal, and overload is on"),
        ({"pipelines": {"a": 2}}, "adaptive.a is equal, and pipelines.a spreads it over workers"),
        ({}, "adaptive.a is equal, but a is no application of a zoo"),
    ],
)
async def test_what_can_have_no_variants_is_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    folder = make_checkpoint(tmp_path / "a")
    if settings:
        add(tmp_path / "zoo", str(folder), "a")
        folder = tmp_path / "zoo" / "chains" / "a"
    with pytest.raises(SettingsError, match=words):
        async with serve({"a": folder}, workers=2, adaptive={"a": "equal"}, **settings):
            pass


async def test_there_are_no_more_variants_than_the_setting_says(tmp_path: Path) -> None:
    root, _ = zoo_of(tmp_path)
    folders = {name: root / "chains" / name for name in "ab"}
    async with serve(folders, adaptive={"a": "equal"}, variants=0, max_model_len=LENGTH) as server:
        assert [*(await server.cluster())["applications"]] == ["a", "b"]


async def test_what_accuracy_names_beyond_half_of_the_variants_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, _ = zoo_of(tmp_path)
    folders = {name: root / "chains" / name for name in "ab"}
    adaptive, accuracy = {"a": "any"}, {"a": "a,b"}
    async with serve(folders, adaptive=adaptive, accuracy=accuracy, variants=1, max_model_len=LENGTH) as server:
        assert not any(one.get("drafts_for") for one in (await server.cluster())["applications"].values())
    said = "accuracy.a names 1 models that are served, and 0 of them may answer in the place of a: half of the setting"
    assert f"{said} variants; set variants=2" in caplog.text
