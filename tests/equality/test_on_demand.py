"""More adapters than fit: each answers as peft does with its adapter alone, whoever has to leave for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

from blockwright.tests.adapters import confirm, make_adapter, peft_model
from blockwright.tests.claims import claim
from blockwright.tests.equality.served import serve
from blockwright.tests.gpu.reference import prompt_of

Checkpoints = Callable[..., Path]
NEW = 12
TENANTS = 6


@claim("Adapters that do not fit in memory are loaded on demand and evicted by use", of="fine-tunes", headline=True)
async def test_tenants_that_do_not_fit_are_loaded_when_they_are_asked_for(checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint("llama")
    adapters = {f"t{i}": make_adapter(base, tmp_path / str(i), seed=i, r=32) for i in range(TENANTS)}
    prompts = [tuple(prompt_of(n, seed=n)) for n in (9, 40)]
    models = {name: peft_model(base, path) for name, path in adapters.items()}
    async with serve({"base": base, **adapters}, memory=2 << 20, kv_reserve=0.4) as server:

        async def states() -> list[str]:
            return [one["state"] for one in (await server.cluster())["applications"].values()]

        async def ask(name: str, which: int) -> None:
            choice = await server.complete(prompts[which], NEW, model=name)
            assert len(choice["token_ids"]) == NEW
            confirm(models[name], prompts[which], choice["token_ids"])

        before = await states()
        assert before[0] == "ready"
        assert 2 <= before.count("on demand") <= TENANTS - 1, before
        for name in [*adapters, *adapters]:  # in turn: of the least recently used none is there
            await ask(name, 0)
        chance = Random(1)
        await asyncio.gather(*(ask(chance.choice([*adapters]), chance.randrange(2)) for _ in range(30)))
        assert (await states()).count("on demand") >= 2


async def test_what_is_longer_than_loaded_tenants_leave_is_answered_with_some_of_them_away(
    checkpoint: Checkpoints, tmp_path: Path
) -> None:
    base = checkpoint("llama")
    adapters = {f"t{i}": make_adapter(base, tmp_path / str(i), seed=i, r=32) for i in range(TENANTS)}
    models = {name: peft_model(base, path) for name, path in adapters.items()}
    async with serve({"base": base, **adapters}, memory=2 << 20, kv_reserve=0.05) as server:
        first = server.running.port.models()[0]
        (room,) = first.rooms
        assert room + 100 < first.longest
        prompt = tuple(prompt_of(room + 50, seed=3))

        async def ask(name: str) -> None:
            choice = await server.complete(prompt, NEW, model=name)
            assert len(choice["token_ids"]) == NEW
            confirm(models[name], prompt, choice["token_ids"])

        for name in adapters:
            await ask(name)
        await asyncio.gather(*(ask(name) for name in [*adapters, *adapters]))
