"""A gateway port without a cluster: each generation plays a script, and remembers how it ended.

A script is a list of steps: news are delivered, an exception raised, an ``asyncio.Event`` waited for.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from blockwright.actors.gateway.port import (
    AnswerBasis,
    ApplicationView,
    Census,
    Credit,
    DispatchFigures,
    DrainAnswered,
    Generation,
    KnownAnswer,
    LengthFigures,
    Listener,
    ModelInfo,
    MoveBegun,
    MoveFigures,
    NewApplication,
    Readiness,
    RemovalView,
    RequestLine,
    RequestView,
    StreamNews,
    StreamProgress,
    TierFigures,
)
from blockwright.policies.plan.sweep_plan import TokenLogprob
from blockwright.policies.requests.rate_limit import LimitStatus, Quotas, Verdict
from blockwright.policies.requests.refusal import RequestRefused
from blockwright.policies.requests.request_ownership import Viewer, first_id
from blockwright.policies.sweep.events import PromptScored, TokensEmitted
from blockwright.tests.checkpoints import SPECIAL, write_tokenizer

EOS = SPECIAL.index("</s>")
MAX_LENGTH = 64
Step = StreamNews | BaseException | asyncio.Event
Script = Callable[[Generation], Sequence[Step]]


class FakeStream:
    def __init__(self, generation: Generation, steps: Sequence[Step], waiting: asyncio.Queue[FakeStream]) -> None:
        self.generation = generation
        self._steps, self._waiting = steps, waiting
        self.now = StreamProgress(prompt=len(generation.prompt))
        self.stopped = False
        self.cancelled = asyncio.Event()
        self.offered = 0  # news that the listener took
        self._listener: Listener | None = None

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    async def __aiter__(self) -> AsyncIterator[StreamNews]:
        for step in self._steps:
            if isinstance(step, asyncio.Event):
                self._waiting.put_nowait(self)
                await step.wait()
            elif isinstance(step, BaseException):
                raise step
            elif self._takes(step):
                self.offered += 1
            else:
                yield step

    def _takes(self, news: StreamNews) -> bool:
        """Offer news to the listener, as the gateway's stream does while its reader waits."""
        taken = isinstance(news, TokensEmitted) and not news.finish
        return taken and self._listener is not None and self._listener(news)

    def stop(self) -> None:
        self.stopped = True

    def cancel(self) -> None:
        self.cancelled.set()

    def progress(self) -> StreamProgress:
        return self.now


class FakePort:
    name = "gw0"

    def __init__(self, folder: Path, script: Script) -> None:
        self._script = script
        self.infos = [
            ModelInfo("tiny", str(folder), MAX_LENGTH, 1700000000, True, rooms=(MAX_LENGTH * 5,)),
            ModelInfo("org/other", str(folder), 16, 1700000001, True, parent="tiny", rooms=(MAX_LENGTH * 5,)),
        ]
        self.default = "tiny"
        self.known: dict[str, list[int]] = {}  # tokens that workers remember, by the request's first id
        self.basis = AnswerBasis(b"chains", ("native-f32",))
        self.readiness = Readiness(True, applications={"tiny": "ready", "org/other": "ready"})
        self.streams: list[FakeStream] = []
        self.waiting: asyncio.Queue[FakeStream] = asyncio.Queue()  # those that have come to a step that is an event
        self.figures = DispatchFigures()
        self.move_figures = MoveFigures()
        self.tier_figures = TierFigures()
        self.views: dict[str, RequestView] = {}
        self.drained: list[float] = []
        self.added: list[NewApplication] = []
        self.removed: list[tuple[str, float]] = []
        self.undrafted: tuple[str, ...] = ()  # what a removal says of the setting drafts
        self.sought: list[str] = []
        self.sequences: dict[str, Census] = {}  # by model
        self.accounts: dict[str, Census] = {}
        self.credit = [Credit(worker="w0", rows=4, positions=MAX_LENGTH * 4, room=MAX_LENGTH * 5)]
        self.grown = asyncio.Event()  # set: who waits for credit looks again
        self.quotas, self.now = Quotas({}), 0.0  # now: by both clocks
        self.settled: list[tuple[str, int, int]] = []
        self.refuse: RequestRefused | None = None
        self.sizes = 21_000_000, 679_000_000  # of what is added: own and shared bytes
        self.nodes: list[dict[str, Any]] = []
        self.body: dict[str, Any] = {"workers": []}

    def models(self) -> list[ModelInfo]:
        return self.infos

    def default_model(self) -> str:
        return self.default

    def ready(self) -> Readiness:
        return self.readiness

    def generate(self, generation: Generation) -> FakeStream:
        if self.refuse is not None:
            raise self.refuse
        stream = FakeStream(generation, self._script(generation), self.waiting)
        self.streams.append(stream)
        return stream

    async def answer_basis(self, models: Sequence[str]) -> AnswerBasis:
        return replace(self.basis, chains=self.basis.chains + "".join(models).encode())

    async def remembered(self, generation: Generation) -> KnownAnswer:
        return KnownAnswer("w1", self.known.get(first_id(generation.id), []))

    def credits(self, application: str) -> list[Credit]:
        return self.credit

    async def credit_grown(self) -> None:
        await self.grown.wait()
        self.grown.clear()

    def census(self) -> dict[str, Census]:
        return self.sequences

    def tenants(self) -> dict[str, Census]:
        return self.accounts

    def describe(self, request: str) -> RequestView | None:
        return self.views.get(request)

    def requests(self, viewer: Viewer, limit: int) -> list[RequestLine]:
        lines = [
            RequestLine(view.id, view.model, view.state, view.place, 3, 2, 1, view.home, view.attempt, 0.5, view.tenant)
            for view in self.views.values()
            if viewer.may_see(view.key)
        ]
        return lines[:limit]

    def tiers(self) -> TierFigures:
        return self.tier_figures

    def lengths(self) -> LengthFigures:
        return LengthFigures()

    def dispatching(self) -> DispatchFigures:
        return self.figures

    def cancel(self, request: str) -> bool:
        streams = [s for s in self.streams if s.generation.id.partition("/")[0] == request and not s.cancelled.is_set()]
        for stream in streams:
            stream.cancel()
        return bool(streams)

    def move(self, request: str, worker: str, route: str) -> list[MoveBegun]:
        if self.refuse is not None:
            raise self.refuse
        moves = [MoveBegun(request, "w0", worker or "w1", route or "m@w1", 3, 3072)]
        return moves if request in self.views else []

    def moves(self) -> MoveFigures:
        return self.move_figures

    async def add_application(self, new: NewApplication) -> ApplicationView:
        self.added.append(new)
        if self.refuse is not None:
            raise self.refuse
        return ApplicationView(new.name, new.path, new.wait > 0, MAX_LENGTH, *self.sizes)

    async def find_application(self, name: str) -> bool:
        self.sought.append(name)
        if self.refuse is not None:
            raise self.refuse
        if name != "found":
            return False
        self.infos = [*self.infos, replace(self.infos[0], id=name)]
        return True

    async def remove_application(self, name: str, grace: float, default: str = "") -> RemovalView:
        self.removed.append((name, grace))
        if self.refuse is not None:
            raise self.refuse
        self.default = default or self.default
        answered = self.default not in (name, "") and any(info.id == self.default for info in self.infos)
        freed, adapters = (0, 19) if name == "tiny" else (3 << 20, 0)
        return RemovalView(name != "slow", freed, adapters, self.default, answered, self.undrafted)

    async def charge(self, tenant: str, tokens: int) -> Verdict:
        return self.quotas.admit(tenant, tokens, self.now, self.now)

    def settle(self, tenant: str, charged: int, used: int) -> None:
        self.settled.append((tenant, charged, used))
        self.quotas.end(tenant, charged, used, self.now)

    async def standings(self, tenants: list[str]) -> dict[str, dict[str, LimitStatus]]:
        return self.quotas.standings(tenants, self.now, self.now)

    async def limit(self, tenant: str, name: str) -> int:
        value: int = getattr(self.quotas.limits(tenant), name)
        return value

    async def drain_worker(self, worker: str, drain: bool) -> DrainAnswered:
        if self.refuse is not None:
            raise self.refuse
        return DrainAnswered(running=3, waiting=2)

    async def cluster(self) -> dict[str, Any]:
        return self.body

    async def claims(self, workers: Sequence[str], models: Sequence[str]) -> list[dict[str, Any]]:
        return [{"worker": worker, "model": model, "why": "it is served"} for worker in workers for model in models]

    async def actors(self) -> list[dict[str, Any]]:
        return self.nodes

    async def drain(self, seconds: float) -> None:
        self.drained.append(seconds)


def tokens_emitted(tokens: Sequence[int], logprobs: Sequence[TokenLogprob] = (), finish: str = "") -> TokensEmitted:
    """News of a sequence, from a worker that is nowhere."""
    return TokensEmitted("", "", 1, 0, list(tokens), list(logprobs), finish)


def vector_given(values: Sequence[float]) -> list[TokensEmitted]:
    """News of a sequence that gives a vector."""
    return [replace(tokens_emitted([0], finish="stop"), vector=np.asarray(values, "<f4").tobytes())]


def prompt_scored(entries: list[TokenLogprob]) -> PromptScored:
    return PromptScored("", "", 1, 1, entries)


def one_by_one(tokens: Sequence[int], finish: str = "length") -> list[TokensEmitted]:
    """News for each token; the last carry the end."""
    last = len(tokens) - 1
    return [tokens_emitted([token], finish=finish if i == last else "") for i, token in enumerate(tokens)]


def with_logprobs(tokens: Sequence[int], top: int) -> list[TokensEmitted]:
    """As ``one_by_one``, each token with log-probability -0.5 and ``top`` others below it."""
    made = one_by_one(tokens)
    others = [(3 + i, -1.0 - i) for i in range(top)]
    return [tokens_emitted(one.tokens, [TokenLogprob(-0.5, others)], one.finish) for one in made]


def make_folder(folder: Path) -> Path:
    """A checkpoint of one layer of zeros, with the tokenizer of all tests."""
    hidden = 8
    vocabulary = 269
    inner = 16
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
        "tie_word_embeddings": True,
        "eos_token_id": EOS,
    }
    shapes = {
        "model.embed_tokens": (vocabulary, hidden),
        "model.norm": (hidden,),
        "model.layers.0.input_layernorm": (hidden,),
        "model.layers.0.post_attention_layernorm": (hidden,),
        "model.layers.0.self_attn.q_proj": (hidden, hidden),
        "model.layers.0.self_attn.k_proj": (hidden // 2, hidden),
        "model.layers.0.self_attn.v_proj": (hidden // 2, hidden),
        "model.layers.0.self_attn.o_proj": (hidden, hidden),
        "model.layers.0.mlp.gate_proj": (inner, hidden),
        "model.layers.0.mlp.up_proj": (inner, hidden),
        "model.layers.0.mlp.down_proj": (hidden, inner),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}, folder / "model.safetensors"
    )
    write_tokenizer(folder)
    return folder


def with_template(folder: Path, made: Path, template: Any, **more: Any) -> Path:
    """A copy of a checkpoint with another chat template."""
    shutil.copytree(folder, made)
    file = made / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template, **more}))
    return made


def events(body: bytes) -> list[Any]:
    """The JSON objects of a stream's data lines; the end mark must be the last of them and is left out."""
    data = [line.removeprefix("data: ") for line in body.decode("ascii").split("\n\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(line) for line in data[:-1]]
