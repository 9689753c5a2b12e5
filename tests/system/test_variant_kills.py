"""Requests that variants serve, from their start or after a switch, while workers die: each token and its log-probabilities
are the ones of the chain that gave it, served alone by a server to which nothing happens.

A zoo has three models. Two feed-forward blocks of "b" may stand in for those of "a". A worker has memory for "a" alone, or
for "b" and "d", whose blocks together make the variant: a chain of no model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from blockwright.policies.adaptive.variants import folder_and_swaps
from blockwright.tests.checkpoints import make_checkpoint, with_tensors
from blockwright.tests.claims import claim
from blockwright.tests.equality.test_variants import stored_pair
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.parts import parts
from blockwright.tests.system.client import Answer, Client
from blockwright.tests.system.conftest import FAULTY, slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until
from blockwright.zoo.add import add
from blockwright.zoo.equivalence.records import store_equivalences
from blockwright.zoo.zoo import Zoo

pytestmark = pytest.mark.system
SCHEDULES, DAILY = 20, 1
SWAPPED = (1, 2)  # layers whose feed-forward blocks of "b" may stand in
LENGTH = 192
ROOM = 720_000  # bytes of KV beside "b" and "d": too few for another block; with fewer, one of them gives way to KV
WORKERS = 3  # one chain has two of them, so that its requests can move
STREAMS = 12
STRIKES = ["kill", "move", "move"]  # after the first one, a kill; a request that meets three deaths is not retried
PATIENT = 0.4  # part of the schedules that go on slowly until a request gains by a switch
BEGINNINGS = [prompt_of(64, seed=seed) for seed in range(3)]  # of prompts; both chains get KV of the same tokens
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.2}  # penalties that see prompt and answer alike


@dataclass(frozen=True)
class Chains:
    """A server with the variant, and a judge that serves each of its chains as a model. names: chain -> name there."""

    server: Server
    judge: Server
    names: dict[str, str]


def models_in(folder: Path) -> None:
    """Make the checkpoints of "a", "b" and "d", and of each chain of "a" in which blocks of "b" stand in."""
    a = make_checkpoint(folder / "a", intermediate_size=1024, num_hidden_layers=4)
    source, tensors = torch.Generator().manual_seed(1), load_file(a / "model.safetensors")
    noisy: list[dict[str, torch.Tensor]] = []  # by layer
    for layer in range(4):
        own = {name: tensor for name, tensor in tensors.items() if f"layers.{layer}.mlp." in name}
        noisy.append({n: t + 0.3 * torch.randn(t.shape, generator=source) * t.std() for n, t in own.items()})
    first, second = (noisy[layer] for layer in SWAPPED)
    with_tensors(a, folder / "b", first | second | noisy[3])
    with_tensors(a, folder / "d", first | second | noisy[0])
    for name, blocks in {"a-1": first, "a-2": second, "a-1-2": first | second}.items():
        with_tensors(a, folder / name, blocks)


def zoo_in(folder: Path) -> tuple[Path, int]:
    """Return the folder of a zoo with "a", "b" and "d", and the bytes of parameters of "b" and "d" together."""
    root = folder / "zoo"
    for name in "abd":
        add(root, str(folder / name), name)
    found = [stored_pair(root, "a", "b", 2 * layer + 2, counts=True) for layer in SWAPPED]
    store_equivalences(root, [replace(found[0], pairs=tuple(pair for one in found for pair in one.pairs))])
    zoo = Zoo(root)
    both = zoo.tensors(zoo.chain("b")) | zoo.tensors(zoo.chain("d"))
    return root, sum(tensor.nbytes for tensor in both.values())


async def placed(client: Client) -> dict[str, set[str]]:
    """Return the workers of each chain, once all of them serve and the model and its variant have routes."""
    _, view = await client.get("/admin/cluster")
    found: dict[str, set[str]] = {}
    for route in view["routes"]:
        found.setdefault(route["application"], set()).add(route["home"])
    return found if {"a", "a~1"} <= found.keys() and len(set.union(*found.values())) == WORKERS else {}


async def names_of(server: Server) -> dict[str, str]:
    """Return for each chain of a server the name of the checkpoint that is this chain."""
    async with Client(server) as client:
        where = await until(lambda: placed(client), "the variant has a route")
        assert not where["a"] & where["a~1"], where
        _, view = await client.get("/admin/cluster")
    found = {}
    for name, one in view["applications"].items():
        folder, swaps = folder_and_swaps(one["checkpoint"])
        found[name] = "-".join([Path(folder).name, *(str((swap.first - 2) // 2) for swap in swaps)])
    assert found["a~1"] == "a-1-2"
    return found


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory, pace: Path) -> Iterator[Chains]:
    folder = tmp_path_factory.mktemp("variants")
    models_in(folder)
    root, both = zoo_in(folder)
    apps = [word for name in "bd" for word in ("--app", f"{name}={root}/chains/{name}")]
    asked: dict[str, Any] = {"adaptive.a": "equal", "memory": both + ROOM, "max_model_len": LENGTH, "chunk_size": 16}
    server = Server(Path("a"), workers=WORKERS, module=FAULTY, pace=pace, arguments=["--zoo", str(root), *apps], **asked)
    apps = [word for name in ("b", "d", "a-1", "a-2", "a-1-2") for word in ("--app", f"{name}={folder / name}")]
    judge = Server(folder / "a", workers=1, arguments=apps, prefix_cache="false")
    try:
        yield Chains(server.whole(), judge.whole(), asyncio.run(names_of(server)))
        judge.stop()
        server.stop()
    finally:
        judge.destroy()
        server.destroy()


def requests_of(random: Random) -> list[dict[str, Any]]:
    """Return the load of a schedule: even ones greedy, odd ones sampled; most of the model with a variant."""
    found = []
    for index in range(STREAMS):
        first = index < STREAMS // 2  # no worker has KV of these, so their chains follow from the load
        prompt = () if first else random.choice(BEGINNINGS)[: random.randrange(4, 64)]
        prompt += tuple(random.randrange(3, 384) for _ in range(random.randrange(1, 40)))
        sampling = {**SAMPLED, "seed": random.randrange(1000)} if index % 2 else {"temperature": 0}
        model = "a" if first else random.choice("aaaabd")
        fields = {"ignore_eos": True, "return_token_ids": True, "logprobs": 3}
        found.append({"model": model, "prompt": prompt, "max_tokens": random.randrange(30, 70), **fields, **sampling})
    return found


class Schedule:
    """A load and what happens to it, by a seed."""

    def __init__(self, seed: int, chains: Chains, client: Client) -> None:
        self.random = Random(f"variants/{seed}")
        self.chains, self.client = chains, client
        self.asked = requests_of(self.random)
        self.answers: list[Answer] = []
        self.counts: Counter[str] = Counter()

    async def play(self) -> None:
        """Strike while the streams go on slowly, at moments that count in tokens."""
        await self.client.ready()
        await until(lambda: placed(self.client), "both chains have a route")
        with slow(self.chains.server):
            self._begin(STREAMS // 2)
            await until(lambda: all(answer.tokens for answer in self.answers))
            for strike in ["first kill", *self.random.sample(STRIKES, self.random.randrange(1, len(STRIKES) + 1))]:
                await self._reach(self._made() + self.random.randrange(1, 40))
                await (self._move() if strike == "move" else self._kill(sole=strike == "first kill"))
                self._begin(self.random.randrange(3))
            self._begin(STREAMS)
            if self.random.random() < PATIENT:
                await until(self._gained, "a switch that gains, or the end of all")
        await self.client.finished()

    async def _reach(self, tokens: int) -> None:
        await until(lambda: self._made() >= tokens or self._ended(), f"{tokens} tokens")

    def _begin(self, count: int) -> None:
        begun = len(self.answers)
        self.answers += [self.client.begin(request) for request in self.asked[begun : begun + count]]

    def _made(self) -> int:
        return sum(len(answer.tokens) for answer in self.answers)

    def _ended(self) -> bool:
        return all(answer.done for answer in self.answers)

    async def _kill(self, *, sole: bool) -> None:
        """Kill a worker. sole: the only one of a chain, whose requests must go over to the other chain."""
        alive = sorted(name for name, worker in (await self.client.workers()).items() if worker["pid"])
        if sole:
            where = await placed(self.client)
            (alive,) = [[*workers] for name, workers in where.items() if name in ("a", "a~1") and len(workers) == 1]
        if alive:
            await self.client.kill(self.random.choice(alive))

    async def _move(self) -> None:
        answer = self.random.choice(self.answers)
        status, _ = await self.client.move(answer.name)
        assert status in (202, 404, 409), "it moves, has ended, or has nowhere to go"

    async def _gained(self) -> bool:
        """Return whether a request went over because it gains, or all have ended."""
        views = [await self.client.request(answer.name) for answer in self.answers]
        return self._ended() or any(one["go"] is not None for view in views if view for one in view["switches"])

    async def judge(self, judge: Client) -> None:
        """Compare each answer with its chains alone."""
        await asyncio.gather(*(self._judge(judge, *pair) for pair in zip(self.asked, self.answers, strict=True)))

    async def _judge(self, judge: Client, request: dict[str, Any], answer: Answer) -> None:
        assert (answer.status, answer.error, answer.finish, answer.done) == (200, None, "length", True), answer
        assert len(answer.tokens) == len(answer.logprobs) == request["max_tokens"]
        view = await self.client.request(answer.name)
        assert view is not None, "it has just ended"
        switches = view["switches"]
        first = switches[0]["source"] if switches else view["chains"][0]["used"]
        self.counts["begun on a variant"] += "~" in first
        self.counts["forced"] += sum(one["go"] is None for one in switches)
        borders = [(0, first), *((one["position"], one["target"]) for one in switches), (len(answer.tokens), "")]
        for (begin, chain), (end, _) in pairwise(borders):
            if begin < end:
                known = [*request["prompt"], *answer.tokens[:begin]]
                alone = {"model": self.chains.names[chain], "prompt": known, "max_tokens": end - begin}
                status, found = await judge.post({**request, **alone})
                assert status == 200, found
                (choice,) = found["choices"]
                where = f"tokens {begin} to {end} of {answer.name} by {chain}: {view}"
                assert answer.tokens[begin:end] == choice["token_ids"], where
                columns = choice["logprobs"]
                values = [*zip(columns["token_logprobs"], columns["top_logprobs"], strict=True)]
                assert answer.logprobs[begin:end] == values, where


@claim("Kill -9 of workers leaves each token of a switched request the one of its chain alone", of="adaptive")
@pytest.mark.parametrize("seed", parts(SCHEDULES, DAILY))
async def test_kill_9_while_variants_serve(chains: Chains, seed: int) -> None:
    async with Client(chains.server) as client, Client(chains.judge) as judge:
        schedule = Schedule(seed, chains, client)
        await schedule.play()
        await schedule.judge(judge)
        assert schedule.counts["begun on a variant"] > 0
        assert schedule.counts["forced"] > 0, "the only worker of a chain died"
