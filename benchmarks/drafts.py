"""Benchmark of drafts: tokens per second with and without, relative to the ideal, and the policy for their length.

    python benchmarks/drafts.py [--quick] [--json PATH]

One worker on all cores, one or two requests at a time, greedy. ``prediction`` steers acceptance: each of its tokens is the
one of the answer without drafts with probability 0.5, 0.8 or 0.95, else another. Requests without drafts (``off``), with
1, 2, 4 and 8 drafts a round (``g1`` to ``g8``) and with as many as the policy takes (``policy``) take turns on one server.

``of_ideal``: the measured speed-up divided by ``E T(1) / T(g + 1)``, where E is the number of tokens of a round as recorded
and T(n) the shortest time of the kernels for n positions of each request, measured in the same round. ``of_best``: the
policy's tokens per second divided by the ones of the best fixed number, none included, by the medians of all rounds.
``of_off``: with predictions that are always wrong, the policy's tokens per second divided by the ones without drafts.
Drafts by other models and by lower tiers have a benchmark of their own (``draft_models.py``).
``within``: by how much coupling accepts less than the rejection rule, at the demo checkpoint's exits (``draft_acceptance``).
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import draft_acceptance
import harness
from harness import OURS, Bar, Options, Report
from kernels_step import CACHED, Rig
from models import DTYPES, EOS, SIZES, make_model, prompts
from server import Served, ServerError, served
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from blockwright.gpu.backend import Batch

OFF, POLICY = "off", "policy"
FIXED = (1, 2, 4, 8)  # drafts of a round
RIGHT = (0.5, 0.8, 0.95)  # chance that a token of the prediction is the one of the answer
PROMPT = 8
FIRST_LETTER = 0x4E00  # one letter for each token, so that a text has the same tokens again
IDEAL = 0.85
BEST = 0.95
NEVER = 0.95


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring."""

    size: str = "S"
    dtypes: tuple[str, ...] = ("f32", "bf16")
    rounds: int = 2
    tokens: int = 64
    requests: tuple[int, ...] = (1, 2)
    wrong: tuple[int, ...] = (1, 8, 32)  # requests at a time whose predictions are always wrong
    examined: int = 40  # prompts of each task of the demo, for the acceptance of its exits

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        few = cls(dtypes=("bf16",), rounds=1, tokens=32, requests=(1,), wrong=(1,), examined=4)
        return few if quick else cls()

    def cases(self) -> list[str]:
        return [f"{self.size}/{t}/c{n}/p{p:g}" for t in self.dtypes for n in self.requests for p in RIGHT]


def bars(plan: Plan) -> list[Bar]:
    cases = plan.cases()
    found = [Bar(f"{case}/g{g}", "of_ideal", at_least=IDEAL) for case in cases for g in FIXED]
    found += [Bar(f"{case}/{POLICY}", "of_best", at_least=BEST) for case in cases]
    wrong = [f"{plan.size}/{t}/c{n}/wrong" for t in plan.dtypes for n in plan.wrong]
    found += [Bar(case, "of_off", at_least=NEVER) for case in wrong]
    return found + draft_acceptance.bars()


def letter(token: int) -> str:
    return chr(FIRST_LETTER + token)


def spell(folder: Path, vocabulary: int) -> None:
    """Give a checkpoint a tokenizer whose tokens are a letter each."""
    names = {"</s>" if token == EOS else letter(token): token for token in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def predicted(answer: Sequence[int], right: float, vocabulary: int, seed: int) -> str:
    """Return the text of an answer in which each token is another one with probability ``1 - right``."""
    draw = random.Random(seed)
    return "".join(letter(token if draw.random() < right else draw.randrange(EOS + 1, vocabulary)) for token in answer)


class Verifier(Rig):
    """The kernels of sweeps that draw a token after each of several positions of a row."""

    def seconds(self, rows: int, positions: int, repeats: int) -> float:
        """Return the shortest time of a sweep."""
        return min(self._verify([(row, CACHED, positions) for row in range(rows)]) for _ in range(repeats))

    def _verify(self, step: Sequence[tuple[int, int, int]]) -> float:
        import numpy as np

        row_N, start_N, count_N = (np.array(column, dtype=np.int32) for column in zip(*step, strict=True))
        count = int(count_N.sum())
        began = time.perf_counter()
        self._backend.forward(self._body, Batch(row_N, start_N, count_N, self._hidden_TD[:count]))
        self._backend.argmax(self._backend.logits(self._head, self._last_ND[:count]))
        return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Turn:
    """The measured answers of one subject: tokens per second, tokens and verified rounds with what stood in them."""

    rate: float
    answers: list[list[int]]
    rounds: int
    accepted: int

    @property
    def of_round(self) -> float:
        """The mean number of tokens of a round."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0


async def answered(server: Served, prompt: Sequence[int], tokens: int, fields: dict[str, Any]) -> tuple[list[int], str]:
    """Return the tokens of an answer and the id of its request."""
    body = server.body(prompt, tokens, return_token_ids=True, **fields)
    async with server.session.post("/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise ServerError(f"completion: {answer.status} {(await answer.text())[:300]}")
        content = await answer.json()
    return content["choices"][0]["token_ids"], content["id"]


async def turn(server: Served, asked: Sequence[Sequence[int]], tokens: int, fields: Sequence[dict[str, Any]]) -> Turn:
    """Ask all at a time."""
    began = time.monotonic()
    pairs = zip(asked, fields, strict=True)
    found = await asyncio.gather(*(answered(server, prompt, tokens, more) for prompt, more in pairs))
    rate = sum(len(answer) for answer, _ in found) / (time.monotonic() - began)
    views = [await server.get(f"/v1/requests/{name}") for _, name in found]
    counts = [counts for view in views for counts in view["drafts"]["sources"].values()]
    rounds, accepted = (sum(one[what] for one in counts) for what in ("rounds", "accepted"))
    return Turn(rate, [answer for answer, _ in found], rounds, accepted)


def drafting(text: str, subject: str) -> dict[str, Any]:
    """Return the fields of a request with a prediction."""
    if subject == OFF:
        return {"draft": OFF}
    number = 0 if subject == POLICY else int(subject.removeprefix("g"))
    return {"prediction": {"type": "content", "content": text}, "draft_tokens": number}


async def steered(report: Report, plan: Plan, server: Served, rig: Verifier, case: str, requests: int, right: float) -> None:
    """Measure one case: all subjects in turns."""
    subjects, rates = (OFF, *(f"g{g}" for g in FIXED), POLICY), dict[str, list[float]]()
    asked = prompts(plan.size, requests, PROMPT, seed=requests)
    plain = await turn(server, asked, plan.tokens, [{"draft": OFF}] * requests)
    texts = [predicted(answer, right, SIZES[plan.size].vocabulary, seed) for seed, answer in enumerate(plain.answers)]
    for number in range(-1, plan.rounds):  # the first is not counted
        kernel = {n: rig.seconds(requests, n, 5) for n in (1, *(g + 1 for g in FIXED))}
        off = 0.0
        for subject in subjects:
            done = await turn(server, asked, plan.tokens, [drafting(text, subject) for text in texts])
            if done.answers != plain.answers:
                raise ServerError(f"{case}: other tokens with {subject}")
            off = off or done.rate
            if number < 0:
                continue
            rates.setdefault(subject, []).append(done.rate)
            report.add(f"{case}/{subject}", OURS, {"out_tok_per_s": done.rate, "tokens_per_round": done.of_round})
            if subject.startswith("g"):
                ideal = done.of_round * kernel[1] / kernel[1 + int(subject[1:])]
                report.add(f"{case}/{subject}", OURS, {"of_ideal": done.rate / off / ideal, "ideal": ideal})
    middle = {subject: statistics.median(found) for subject, found in rates.items()}
    policy = middle.pop(POLICY)
    report.add(f"{case}/{POLICY}", OURS, {"of_best": policy / max(middle.values()), "speedup": policy / middle[OFF]})


async def in_vain(report: Report, plan: Plan, server: Served, case: str, requests: int) -> None:
    """Measure the policy where no draft stands."""
    tokens = max(32, plan.tokens // (1 if requests < 8 else 2))
    asked = prompts(plan.size, requests, PROMPT, seed=1000 + requests)
    plain = await turn(server, asked, tokens, [{"draft": OFF}] * requests)
    texts = [predicted(answer, 0.0, SIZES[plan.size].vocabulary, seed) for seed, answer in enumerate(plain.answers)]
    for number in range(-1, 2 * plan.rounds):
        order = (OFF, POLICY) if number % 2 else (POLICY, OFF)
        rates = {}
        for subject in order:
            rates[subject] = (await turn(server, asked, tokens, [drafting(text, subject) for text in texts])).rate
        if number >= 0:
            report.add(case, OURS, {"of_off": rates[POLICY] / rates[OFF], "out_tok_per_s": rates[POLICY]})


async def measure(report: Report, plan: Plan, folder: Path) -> None:
    threads = len(os.sched_getaffinity(0))
    draft_acceptance.measure(report, plan.examined)
    for dtype in plan.dtypes:
        model = make_model(plan.size, dtype, folder / dtype)
        spell(model, SIZES[plan.size].vocabulary)
        rig = Verifier(SIZES[plan.size], DTYPES[dtype], threads)
        for positions in range(1, 1 + FIXED[-1] + 1):
            report.add(f"{plan.size}/{dtype}/T{positions}", OURS, {"min_ms": 1000 * rig.seconds(1, positions, 20)})
        async with served(model, "--workers", "1", "--set", "memory=1500MiB", "--set", f"threads={threads}") as server:
            for requests in plan.requests:
                for right in RIGHT:
                    case = f"{plan.size}/{dtype}/c{requests}/p{right:g}"
                    await steered(report, plan, server, rig, case, requests, right)
                    print(case, "done", flush=True)
            for requests in plan.wrong:
                await in_vain(report, plan, server, f"{plan.size}/{dtype}/c{requests}/wrong", requests)


@harness.claim("With drafts, answers that were predicted come faster, near the ideal of the kernels", of="drafts")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    settings = {"model": plan.size, "prompt": PROMPT, "answer": plan.tokens, "rounds": plan.rounds}
    report = Report("drafts", settings)
    with tempfile.TemporaryDirectory(prefix="blockwright-drafts-") as folder:
        asyncio.run(measure(report, plan, Path(folder)))
    harness.finish(report, options, bars(plan))


if __name__ == "__main__":
    main(harness.parse(__doc__))
