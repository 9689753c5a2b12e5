"""Times of guesses of hidden states in a paced pipeline: the demo checkpoint on two workers.

    python benchmarks/adaptive_hidden.py [--quick] [--json PATH]

Sweeps are held to the time that their parameters take (setting ``pace``), so the stages of a pipeline take as long as on
slow devices and a busy machine does not change them. One answer at a time. The surrogate stands for the last layers of the
first stage, and is made and measured as ``zoo surrogate`` does; ``quiet``: what these layers add is a part of what they
would, so that more guesses stand. Servers take turns: ``off``, ``hidden`` and ``exact`` (no guess stands). ``seconds``:
median time per token. ``accepted``: share of guesses that stood.

``speedup``: seconds of ``off`` over those of ``hidden``. ``ideal``: the same by the recorded verdicts and the stages: an
accepted guess takes S + max(B, rest), a refused one S + B + rest, where S ends when the guess leaves and B has the verdict.
``of_ideal`` is the first over the second. ``perfect``: the ideal of a surrogate that takes a fiftieth of its block and is
always right.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import harness
from harness import OURS, ROOT, Bar, Options, Report
from safetensors.torch import load_file, save_file
from server import Served, served

from blockwright.api.commands.probe_text import ComparisonData
from blockwright.api.commands.training_data import DEMO
from blockwright.gpu.backend import HostBackend
from blockwright.gpu.select import open_backend
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.zoo.add import add
from blockwright.zoo.equivalence.probe import same_probe
from blockwright.zoo.records import StoredComponent
from blockwright.zoo.surrogate.making import SurrogateSite, make_surrogate, open_site
from blockwright.zoo.surrogate.records import StoredSurrogate
from blockwright.zoo.zoo import Zoo

NAME = "demo"
QUIET = 0.1
BORDER = 7  # the component behind which the demo checkpoint is cut in two
# first component of the block that ends at the border, and the part that its layers add of what they would
BLOCKS = {"two-layers": (3, 1.0), "two-quiet-layers": (3, QUIET), "three-quiet-layers": (1, QUIET)}
BASE, READ = 0.005, 0.2  # seconds of a sweep, and of a pass of all parameters
PERFECT = 50  # divisor of the block's time
SUBJECTS = ("off", "hidden", "exact")
LEAST_GAIN = 1.05
PROBE = 400  # rows of text from which a surrogate is repaired and measured


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring: answers of each server, and their tokens."""

    answers: int = 6
    tokens: int = 32
    blocks: tuple[str, ...] = tuple(BLOCKS)

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(answers=2, tokens=16, blocks=("three-quiet-layers",)) if quick else cls()


@dataclass(frozen=True, slots=True)
class Stages:
    """The seconds of a token's way: to the border without the block, and through the surrogate, block, head and the rest."""

    before: float
    surrogate: float
    block: float
    head: float
    rest: float

    @property
    def off(self) -> float:
        """Seconds of a token without guesses."""
        return self.before + self.block + self.rest

    def guessed(self, accepted: float) -> float:
        """Return the mean seconds of a token of which this share of guesses stands."""
        sent, verdict = self.before + self.surrogate, self.block + self.head
        return sent + accepted * max(verdict, self.rest) + (1 - accepted) * (verdict + self.rest)

    @property
    def perfect(self) -> float:
        """Seconds of a token whose surrogate takes a part of its block and is always right."""
        return self.before + self.block / PERFECT + max(self.block, self.rest)


def bars(blocks: Sequence[str] = tuple(BLOCKS)) -> list[Bar]:
    return [Bar(f"hidden/{block}", "of_ideal", at_least=0.85) for block in blocks]


def quieter(folder: Path, first: int, part: float) -> Path:
    """Make a copy of the demo checkpoint whose layers from component ``first`` to the border add less."""
    shutil.copytree(ROOT / "examples" / "demo-checkpoint", folder)
    tensors = load_file(folder / "model.safetensors")
    layers = range((first - 1) // 2, (BORDER - 1) // 2)
    for name in tensors:
        if any(f"layers.{layer}." in name for layer in layers) and ("o_proj" in name or "down_proj" in name):
            tensors[name] = tensors[name] * part
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def zoo_in(root: Path, base: Path, first: int) -> StoredSurrogate:
    """Make a zoo with a checkpoint and a surrogate of components ``first`` to the border."""
    add(root, str(base), NAME)
    checkpoint = Checkpoint.open(base)
    (_, _), whole = ComparisonData((checkpoint, checkpoint), ("one", "two")).prompts_and_probe(DEMO, "")
    site = SurrogateSite(root, NAME, open_site(root, NAME).checkpoint, first, BORDER)
    backend = cast(HostBackend, open_backend("auto", "bfloat16", 1))
    return make_surrogate(site, same_probe(whole.rows[:PROBE]), backend, 1, progress=lambda what, done, total: None)


def stages(root: Path, made: StoredSurrogate, first: int) -> tuple[Stages, dict[str, float]]:
    """Return the paced stages, and the pace."""
    zoo = Zoo(root)
    parts: list[StoredComponent] = [zoo.component(id) for id in zoo.chain(NAME).components]
    sizes = [0, *[one.nbytes for one in parts[1:]]]  # an embedding is looked up
    total = sum(sizes)
    seconds = [READ * size / total for size in sizes]
    found = Stages(
        before=BASE + sum(seconds[:first]),
        surrogate=READ * made.nbytes / total,
        block=sum(seconds[first:BORDER]),
        head=seconds[-1],
        rest=BASE + sum(seconds[BORDER:]),
    )
    return found, {"base": BASE, "read": READ, "parameters": float(total), "kv": 1.0}


async def per_token(server: Served, plan: Plan, prompts: Sequence[Sequence[int]]) -> float:
    """Return the median time of a token behind the first one."""
    gaps: list[float] = []
    for prompt in prompts[: plan.answers]:
        times = [at async for at, _, _ in server.chunks(prompt, plan.tokens)]
        gaps.append((times[-1] - times[1]) / (len(times) - 2))
    return statistics.median(gaps)


async def counts(server: Served) -> tuple[float, float]:
    """Return the guesses made so far, and the ones that stood."""
    workers = (await server.get("/admin/cluster"))["workers"]
    made, accepted = (
        sum(one["counters"].get(name, 0) for one in workers) for name in ("guessed_states", "accepted_guesses")
    )
    return float(made), float(accepted)


async def measure(report: Report, plan: Plan, block: str, folder: Path) -> None:
    """Let the servers take turns, one answer at a time."""
    root = folder / "zoo"
    first, part = BLOCKS[block]
    made = zoo_in(root, quieter(folder / NAME, first, part), first)
    found, pace = stages(root, made, first)
    (folder / "pace.json").write_text(json.dumps(pace))
    draw = random.Random(7)
    texts = ["copy: to be or not =", "repeat 3: a rose is =", "reverse: one two three =", "sort: d c b a ="]
    chosen = [texts[draw.randrange(len(texts))] for _ in range(plan.answers)]
    words = {"off": [], "hidden": [f"speculate.{NAME}=hidden"], "exact": [f"speculate.{NAME}=hidden", "exact=true"]}
    async with AsyncExitStack() as stack:
        servers = dict[str, Served]()
        for subject in SUBJECTS:
            asked = [f"pace={folder / 'pace.json'}", f"pipelines.{NAME}=2", "threads=1", *words[subject]]
            flags = [word for setting in asked for word in ("--set", setting)]
            server = await stack.enter_async_context(served(root / "chains" / NAME, "--workers", "2", *flags))
            servers[subject] = server
        tokens = [await tokens_of(servers["off"], text) for text in chosen]
        seconds = {subject: await per_token(server, plan, tokens) for subject, server in servers.items()}
        guesses, accepted = await counts(servers["hidden"])
    share = accepted / guesses
    for subject, each in seconds.items():
        report.add(f"hidden/{block}/{subject}", OURS, {"seconds": each})
    ideal, speedup = found.off / found.guessed(share), seconds["off"] / seconds["hidden"]
    figures = {"accepted": share, "speedup": speedup, "ideal": ideal, "perfect": found.off / found.perfect}
    figures |= {"similarity": made.similarity, "exact": seconds["off"] / seconds["exact"]}
    if ideal >= LEAST_GAIN:
        figures["of_ideal"] = speedup / ideal
    report.add(f"hidden/{block}", OURS, figures)
    print(f"hidden/{block}: {figures}", flush=True)


async def tokens_of(server: Served, text: str) -> list[int]:
    """Return a prompt's tokens."""
    async with server.session.post("/tokenize", json={"model": server.model, "prompt": text}) as answer:
        return list((await answer.json())["tokens"])


def hidden(report: Report, plan: Plan) -> None:
    """Measure the surrogates of all blocks."""
    for block in plan.blocks:
        with tempfile.TemporaryDirectory(prefix="blockwright-hidden-") as folder:
            asyncio.run(measure(report, plan, block, Path(folder)))


@harness.claim("A pipeline that guesses hidden states gains most of what its stages allow", of="adaptive")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    report = Report("adaptive_hidden", {"base": BASE, "read": READ, "answers": plan.answers, "tokens": plan.tokens})
    hidden(report, plan)
    judged = [bar for bar in bars(plan.blocks) if report.median(bar.case, bar.metric, OURS) is not None]
    harness.finish(report, options, judged)


if __name__ == "__main__":
    main(harness.parse(__doc__))
