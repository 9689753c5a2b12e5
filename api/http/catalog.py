"""What the front needs of each served model besides its weights: tokenizer, chat template, sampling defaults, end tokens.

Loaded from the checkpoint's folder once, on a thread, when first asked for; the adapters of one base share what its folder
has. Knows which models exist from the gateway port.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from blockwright.actors.gateway.port import GatewayPort, ModelInfo
from blockwright.api.checks import shown
from blockwright.api.errors import ApiError
from blockwright.api.text.chat_template import ChatTemplate
from blockwright.api.text.tokenizer import TextCodec
from blockwright.policies.nearest import suggestion
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.zoo.source import open_source

log = logging.getLogger(__name__)
_LONG = 4096  # characters; shorter texts are tokenized where they are, in less time than a thread's hand-over is worth


Identity = tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class ServedModel:
    """``defaults``: the sampling of a request that says nothing. It is ``generation_config.json`` of the checkpoint, where
    ``do_sample`` false means temperature 0, else no change to the logits.
    """

    codec: TextCodec
    template: ChatTemplate | None
    defaults: SamplingParams
    stop_tokens: list[int]
    vocabulary: int  # ids below this exist


def identity(folder: Path) -> Identity:
    """Equal for equal files, but for weights: of each its name, device, inode, size and time of change. Raises OSError."""
    found = []
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            stat = os.stat(folder / name)
            found.append((name, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def load_model(folder: Path) -> ServedModel:
    """Raises CheckpointError."""
    codec = TextCodec.load(folder)
    checkpoint = open_source(folder)
    generation = checkpoint.generation
    defaults = SamplingParams(
        temperature=0.0 if generation.do_sample is False else generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        repetition_penalty=generation.repetition_penalty,
    )
    stops = list(generation.eos_token_ids)
    if not stops and (named := codec.id_of(codec.named.get("eos_token", ""))) is not None:
        stops = [named]
    template = ChatTemplate.load(folder, codec.named)
    vocabulary = checkpoint.config.vocabulary
    if codec.missing:  # last: of a folder that is refused nothing else is said
        log.warning("%s", codec.missing)
    return ServedModel(codec=codec, template=template, defaults=defaults, stop_tokens=stops, vocabulary=vocabulary)


class Catalog:
    """Models by id. One for each application; ``close`` ends its threads. ``longest``: characters of a text to tokenize."""

    def __init__(self, port: GatewayPort, longest: int) -> None:
        self._port, self._longest = port, longest
        self._loaded: dict[tuple[str, int], asyncio.Task[ServedModel]] = {}  # by folder and time
        self._known: weakref.WeakValueDictionary[Identity, ServedModel] = weakref.WeakValueDictionary()
        self._tried: ServedModel | None = None  # kept for whoever serves it next
        self._loading = asyncio.Lock()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tokenize")

    def models(self) -> list[ModelInfo]:
        """Return what is served; raise a 503 while that is nothing."""
        if not (models := self._port.models()):
            raise ApiError(503, "no model is loaded yet; try again soon", retry_after=1.0)
        return models

    def info(self, model: str | None) -> ModelInfo:
        """Return the model of that id, or the default one where a request has none; raise a 404 with the nearest id, or a
        400 where the default is not served: another model never stands in for it."""
        models = self.models()
        wanted = self._port.default_model() if model is None else model
        for info in models:
            if info.id == wanted:
                return info
        ids = [info.id for info in models]
        if model is None:
            gone = f"the default, {shown(wanted)}, is not served" if wanted else "there is no default"
            remedy = f"name one of {', '.join(ids[:20])}, add {shown(wanted)} again, or start with default_model=NAME"
            raise ApiError(400, f"the request names no model and {gone}; {remedy}", param="model", code="no_default_model")
        message = f"the model {shown(model)} does not exist; {suggestion(model, ids, repr)}"
        raise ApiError(404, message, param="model", code="model_not_found")

    async def load(self, info: ModelInfo) -> ServedModel:
        """Raises CheckpointError."""
        return await asyncio.shield(self._task(info))  # a client that leaves must not end what others wait for

    def begin(self) -> None:
        """Load all that is served before anybody asks. What cannot be loaded is said to whoever asks for it."""
        for info in self._port.models():
            self._task(info)

    def forget(self) -> None:
        """Nobody asks here any more."""
        self._loaded.clear()
        self._tried = None

    def _task(self, info: ModelInfo) -> asyncio.Task[ServedModel]:
        key = info.checkpoint, info.created
        task = self._loaded.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            served = {(one.checkpoint, one.created) for one in self._port.models()}
            for gone in self._loaded.keys() - served:
                del self._loaded[gone]
            task = asyncio.create_task(self._load(info.checkpoint))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, if nobody waits for it
            self._loaded[key] = task
        return task

    async def try_folder(self, folder: Path) -> None:
        """Whether the front could serve a further model from a folder. Raises CheckpointError."""
        self._tried = await self._load(str(folder))

    async def encode(self, model: ServedModel, text: str, *, special: bool) -> list[int]:
        """Raises a 400 for a text that is longer than any memory should be asked for."""
        if len(text) > self._longest:
            message = f"the prompt has {len(text)} characters, more than the limit of {self._longest}; shorten it"
            raise ApiError(400, message, param="prompt", code="context_length_exceeded")
        if model.codec.missing:
            raise ApiError(400, model.codec.missing, param="prompt")
        if len(text) < _LONG:
            return model.codec.encode(text, special=special)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: model.codec.encode(text, special=special))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _load(self, folder: str) -> ServedModel:
        """One at a time, and not on the threads that tokenize: prompts do not wait for it."""
        async with self._loading:
            try:
                key = await asyncio.to_thread(identity, Path(folder))
            except OSError:
                key = ()  # the model's reader says why
            found = self._known.get(key)
            if found is None:
                found = await asyncio.to_thread(load_model, Path(folder))
                if key:
                    self._known[key] = found
            return found
