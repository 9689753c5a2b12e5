"""Served tokens of a tiny model: the cost of messages when a sweep costs next to nothing.

    python benchmarks/tokens.py [--quick] [--json PATH] [--beside CHECKOUT]

One worker and the head; 4 and 32 clients, each of which requests its next streamed answer when it has the last. With
``--beside`` a server of another checkout (with a ``.venv`` of its own) is up at the same time, and the two alternate.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import harness
from harness import BESIDE, Bar, Options, Report
from models import make_model, prompts
from server import Served, served

CLIENTS = (4, 32)
PROMPT, ANSWER = 16, 128  # tokens
BARS = [Bar(f"tiny/c{clients}", "out_tok_per_s", peer=BESIDE, at_least=1.0) for clients in CLIENTS]


async def client(server: Served, asked: list[list[int]]) -> None:
    for prompt in asked:
        async for _ in server.stream(prompt, ANSWER):
            pass


async def once(server: Served, clients: int, answers: int, seed: int) -> float:
    """Tokens per second; each client has ``answers`` answers, one after the other."""
    asked = prompts("tiny", clients * answers, PROMPT, seed=seed)
    began = time.monotonic()
    await asyncio.gather(*(client(server, asked[at::clients]) for at in range(clients)))
    return clients * answers * ANSWER / (time.monotonic() - began)


async def measure(report: Report, options: Options, folder: Path, rounds: int) -> None:
    async with AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(served(folder, python=python))
            for name, python in harness.interpreters(options).items()
        }
        for clients in CLIENTS:
            for turn in range(-1, rounds):  # the first is not counted
                for name, server in list(servers.items())[:: 1 if turn % 2 else -1]:
                    rate = await once(server, clients, max(1, 32 // clients), seed=1000 * clients + turn)
                    if turn >= 0:
                        report.add(f"tiny/c{clients}", name, {"out_tok_per_s": rate})


def main(options: Options) -> None:
    rounds = 3 if options.quick else 15
    report = Report("tokens", {"prompt": PROMPT, "answer": ANSWER, "rounds": rounds})
    with tempfile.TemporaryDirectory(prefix="blockwright-tokens-") as name:
        folder = make_model("tiny", "f32", Path(name) / "tiny")
        asyncio.run(measure(report, options, folder, rounds))
    harness.finish(report, options, BARS if options.beside else [])


if __name__ == "__main__":
    main(harness.parse(__doc__, beside=True))
